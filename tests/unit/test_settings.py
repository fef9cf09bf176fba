"""Settings from arguments and variables: one frozen value, or every fault at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandemq.core.errors import ConfigurationError
from tandemq.core.settings import Settings, mask

MYSQL = "mysql+pymysql://user:secret@127.0.0.1:3306/app"
REDIS = "redis://:secret@127.0.0.1:6379/0"
PASSWORD = "p@ss#1/%:?"
ENCODED = "p%40ss%231%2F%25%3A%3F"


def load(environ: dict[str, str] | None = None, **given: Any) -> Settings:
    return Settings.load(environ or {}, **given)


def faults(environ: dict[str, str] | None = None, **given: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(environ, **given)
    return str(refused.value)


def test_nothing_set_is_the_embedded_default() -> None:
    settings = load()

    assert settings.is_embedded
    assert settings.data_path == Path.cwd() / ".tandemq"
    assert (settings.lease_s, settings.heartbeat_s, settings.reconcile_s, settings.mover_s, settings.grace_s) == (
        30,
        5,
        2,
        0.2,
        30,
    )
    assert (settings.namespace, settings.table_prefix) == ("tandemq", "tandemq_")


def test_arguments_win_over_variables_and_empty_variables_are_unset() -> None:
    environ = {
        "TANDEMQ_DATABASE_URL": MYSQL,
        "TANDEMQ_REDIS_URL": REDIS,
        "TANDEMQ_NAMESPACE": "from-environ",
        "TANDEMQ_LEASE_S": "12.5",
        "TANDEMQ_TABLE_PREFIX": "",
        "TANDEMQ_MAX_PAYLOAD_BYTES": "2048",
        "UNRELATED": "x",
    }

    settings = load(environ, namespace="from-argument", database_url=None)

    assert settings.namespace == "from-argument"
    assert settings.database_url == MYSQL
    assert (settings.lease_s, settings.table_prefix, settings.max_payload_bytes) == (12.5, "tandemq_", 2048)
    assert not settings.is_embedded


@pytest.mark.parametrize(("text", "value"), [("0", False), ("false", False), ("NO", False), ("1", True), ("Yes", True)])
def test_switches(text: str, value: bool) -> None:
    settings = load({"TANDEMQ_EMBEDDED": text, "TANDEMQ_DATABASE_URL": MYSQL, "TANDEMQ_REDIS_URL": REDIS})

    assert settings.embedded is value


def test_arguments_take_paths_and_whole_numbers(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path, lease_s=20)

    assert settings.data_dir == str(tmp_path)
    assert type(settings.lease_s) is float


def test_every_fault_is_named_at_once_with_its_values() -> None:
    text = faults(
        {
            "TANDEMQ_DATABASE_URL": MYSQL,
            "TANDEMQ_LEASE_S": "3",
            "TANDEMQ_HEARTBEAT_S": "10",
            "TANDEMQ_NAMESPACE": "a b",
            "TANDEMQ_TABLE_PREFIX": "1x",
            "TANDEMQ_MOVER_S": "soon",
            "TANDEMQ_GRACE_S": "-1",
            "TANDEMQ_EMBEDDED": "maybe",
            "TANDEMQ_KEY_CONFLICT": "last",
            "TANDEMQ_MAX_PAYLOAD_BYTES": "0",
        }
    )

    for part in (
        "TANDEMQ_DATABASE_URL is set but TANDEMQ_REDIS_URL is not",
        "TANDEMQ_HEARTBEAT_S=10 is more than half of TANDEMQ_LEASE_S=3",
        "TANDEMQ_NAMESPACE='a b'",
        "TANDEMQ_TABLE_PREFIX='1x'",
        "TANDEMQ_MOVER_S='soon' is no float",
        "TANDEMQ_GRACE_S=-1.0",
        "TANDEMQ_EMBEDDED='maybe' is no bool",
        "TANDEMQ_KEY_CONFLICT='last'",
        "TANDEMQ_MAX_PAYLOAD_BYTES=0",
    ):
        assert part in text
    assert text.count("; ") >= 8


@pytest.mark.parametrize("name", ["LEASE_S", "HEARTBEAT_S", "RECONCILE_S", "MOVER_S", "REDIS_AWAY_S", "UNKNOWN_TASK_S"])
@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e12", ""])
def test_seconds_are_positive_and_finite(name: str, text: str) -> None:
    if text:
        assert f"TANDEMQ_{name}=" in faults({f"TANDEMQ_{name}": text})
    else:
        load({f"TANDEMQ_{name}": text})


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"leese_s": 3}, "leese_s=3 is no setting"),
        ({"lease_s": "30"}, "lease_s='30' is no float"),
        ({"lease_s": True}, "lease_s=True is no float"),
        ({"namespace": 5}, "namespace=5 is no str"),
        ({"embedded": 0}, "embedded=0 is no bool"),
        ({"max_payload_bytes": 1.5}, "max_payload_bytes=1.5 is no int"),
    ],
)
def test_a_misspelt_or_mistyped_argument_is_refused(given: dict[str, Any], part: str) -> None:
    assert part in faults(**given)


def test_one_url_without_the_other_is_refused() -> None:
    assert "TANDEMQ_DATABASE_URL is set but TANDEMQ_REDIS_URL is not" in faults(database_url=MYSQL)
    assert "TANDEMQ_REDIS_URL is set but TANDEMQ_DATABASE_URL is not" in faults(redis_url=REDIS)


def test_the_embedded_default_can_be_forbidden() -> None:
    assert "TANDEMQ_EMBEDDED=0 forbids" in faults({"TANDEMQ_EMBEDDED": "0"})


@pytest.mark.parametrize(
    ("database_url", "redis_url"),
    [
        (MYSQL, REDIS),
        (f"mysql+pymysql://u:{ENCODED}@h/db", f"redis://:{ENCODED}@h:6379/1"),
        ("mariadb+pymysql://u@[::1]:3306/db?charset=utf8mb4", "rediss://h:6380/0?ssl_cert_reqs=none"),
        ("mysql+pymysql://u:pw@/db?unix_socket=/run/mysqld.sock", "unix:///run/redis.sock?db=1"),
        ("sqlite:////tmp/x.db", "redis://h"),
    ],
)
def test_urls_that_work_are_accepted(database_url: str, redis_url: str) -> None:
    load(database_url=database_url, redis_url=redis_url)


@pytest.mark.scenario
@pytest.mark.parametrize("raw", [PASSWORD, "p@ss", "a#b", "a/b", "a?b", "a/b@c", "x@y@z", "#", "@"])
def test_a_raw_special_character_in_a_password_never_names_another_host(raw: str) -> None:
    for given in (
        {"database_url": f"mysql+pymysql://user:{raw}@127.0.0.1:3306/app", "redis_url": REDIS},
        {"database_url": MYSQL, "redis_url": f"redis://:{raw}@127.0.0.1:6379/0"},
    ):
        text = faults(**given)

        assert "percent-encode" in text
        assert raw not in text.replace("(@ %40, # %23, / %2F)", "") or len(raw) == 1


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("database_url", "postgresql://u:secret@h/db"),
        ("database_url", "127.0.0.1:3306"),
        ("database_url", "user:secret@host"),
        ("database_url", "mysql+pymysql://"),
        ("database_url", "mysql+pymysql://h:port/db"),
        ("redis_url", "http://u:secret@h"),
        ("redis_url", "redis://:secret@/0"),
        ("redis_url", "localhost:6379"),
    ],
)
def test_urls_that_cannot_work_are_refused_without_showing_the_password(name: str, url: str) -> None:
    text = faults(**{"database_url": MYSQL, "redis_url": REDIS, name: url})

    assert f"TANDEMQ_{name.upper()}" in text
    assert "secret" not in text


def test_the_passwords_are_not_shown_by_repr() -> None:
    assert "secret" not in repr(load(database_url=MYSQL, redis_url=REDIS))


def test_a_url_is_masked_up_to_its_host() -> None:
    assert mask(MYSQL) == "mysql+pymysql://***@127.0.0.1:3306/app"
    assert mask(f"redis://:{PASSWORD}@h") == "redis://***@h"
    assert mask("user:secret@host") == "***@host"
    assert mask("redis://h/0") == "redis://h/0"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load().lease_s = 1  # type: ignore[misc]


def test_settings_survive_a_way_through_variables() -> None:
    given = load(
        database_url=MYSQL, redis_url=REDIS, embedded=False, lease_s=12.5, max_payload_bytes=17, key_conflict="first"
    )

    assert load(given.environ()) == given
    assert load(load().environ()) == load()
    assert all(isinstance(value, str) for value in given.environ().values())
