"""B11: a password with special characters in a URL, and TLS, for every kind of process.

Required: percent-encoded it works, for both servers; raw it is refused with the hint to encode it, and nothing connects
anywhere. Redis over TLS works with its authority named and with the check switched off; without either the refusal
names the setting. The password shows up in no output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from tandemq.core.settings import Settings
from tests import recipes
from tests.apiprocess import running
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer, RedisServer, free_port
from tests.tls import make_authority, redis_options
from tests.waiting import eventually
from tests.workers import bench

pytestmark = pytest.mark.scenario

PASSWORD = "p@ss#1/%:?"
AUTHORITY = "ssl_ca_certs=FILE in TANDEMQ_REDIS_URL"
#: How Redis is spoken to: no TLS, the authority named, no check at all.
LINKS = {"plain": None, "authority": "ssl_ca_certs={ca}", "unchecked": "ssl_cert_reqs=none&ssl_check_hostname=false"}


@pytest.fixture
def guarded(
    settings_for: Callable[..., Settings],
    mysql_server: MySQLServer,
    mysql_url: str,
    own_redis: Callable[..., RedisServer],
    tls_port: int,
    tmp_path: Path,
) -> Iterator[Settings]:
    """Both servers want the password; Redis speaks TLS as well."""
    redis = own_redis(*redis_options(make_authority(tmp_path), tls_port))
    user = f"b11_{os.getpid()}"
    settings = settings_for(recipes.administrator(mysql_url), redis.url())
    mysql_server.sql("CREATE USER %s@'%%' IDENTIFIED BY %s", (user, PASSWORD))
    mysql_server.sql("GRANT ALL ON *.* TO %s@'%%'", (user,))
    with redis.client() as client:
        client.config_set("requirepass", PASSWORD)
    secret = quote(PASSWORD, safe="")
    scheme, _, rest = mysql_url.partition("://")
    yield Settings.load(
        settings.environ()
        | {
            "TANDEMQ_DATABASE_URL": f"{scheme}://{user}:{secret}@{rest.rpartition('@')[2]}",
            "TANDEMQ_REDIS_URL": redis.url().replace("redis://", f"redis://:{secret}@"),
        }
    )
    mysql_server.sql("DROP USER %s@'%%'", (user,))


@pytest.fixture
def tls_port() -> int:
    return free_port()


def over_tls(settings: Settings, tls_port: int, options: str) -> Settings:
    """The same with Redis by its TLS port."""
    where = urlsplit(settings.redis_url)
    login = where.netloc.rpartition("@")[0]
    url = f"rediss://{login}@127.0.0.1:{tls_port}{where.path}?{options}"
    return Settings.load(settings.environ() | {"TANDEMQ_REDIS_URL": url})


@pytest.mark.parametrize("link", LINKS)
def test_encoded_it_works_in_worker_mover_and_command_line(
    guarded: Settings, tls_port: int, tmp_path: Path, probe: Probe, link: str
) -> None:
    options = LINKS[link]
    settings = guarded if options is None else over_tls(guarded, tls_port, options.format(ca=tmp_path / "ca.pem"))
    said = []
    with bench(settings, tmp_path, probe.environ) as work:
        mover = work.worker(verb="mover")
        worker = work.worker("-c", "1", "--no-mover").ready()
        ids = [work.app.enqueue("noop", {}, delay=0.2).id]
        told = tandemq(settings, "enqueue", "noop", "{}", "--json")
        ids.append(told.json["id"])
        assert work.ended(ids) == {"succeeded": 2}
        health = tandemq(settings, "health", "--all", "--json")
        assert (health.json["database"], health.json["redis"]) == ("ok", "ok")
        doctor = tandemq(settings, "doctor", "--json")
        said = [mover.text(), worker.text(), *(a.out + a.err for a in (told, health, doctor))]
    for text in said:
        assert "p@ss" not in text
        assert quote(PASSWORD, safe="") not in text


@pytest.mark.parametrize("verb", ["worker", "health", "doctor"])
def test_an_unknown_authority_is_refused_and_the_setting_named(guarded: Settings, tls_port: int, verb: str) -> None:
    app = () if verb == "doctor" else ("-A", "tests.apps.work:app")
    refused = tandemq(over_tls(guarded, tls_port, "socket_timeout=3"), *app, verb, code=3)
    assert AUTHORITY in refused.out + refused.err
    assert quote(PASSWORD, safe="") not in refused.out + refused.err


def test_a_mover_that_is_refused_names_the_setting_and_goes_on_trying(
    guarded: Settings, tls_port: int, tmp_path: Path, probe: Probe
) -> None:
    with bench(over_tls(guarded, tls_port, "socket_timeout=3"), tmp_path, probe.environ) as work:
        mover = work.worker(verb="mover")
        eventually(lambda: AUTHORITY in mover.text(), message=mover.text)
        assert mover.process.poll() is None
        assert quote(PASSWORD, safe="") not in mover.text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_encoded_it_works_in_the_api(guarded: Settings, tmp_path: Path, workers: str) -> None:
    with running(guarded, tmp_path, "--workers", workers) as api, api.client() as client:
        assert client.post("/jobs", json={"type": "a"}).status_code == 201
        claimed = client.post("/jobs/claim", json={"worker_id": "w", "wait": 20})
        assert claimed.status_code == 200, "through Redis"
        ready = client.get("/health/ready").json()
        assert ready == {"status": "ok", "database": "ok", "redis": "ok"}
        api.process.terminate()
        assert api.wait() == 0
        assert "p@ss" not in api.text()
        assert quote(PASSWORD, safe="") not in api.text()


@pytest.mark.parametrize("name", ["TANDEMQ_DATABASE_URL", "TANDEMQ_REDIS_URL"])
def test_raw_it_is_refused_with_the_hint(guarded: Settings, name: str) -> None:
    url = guarded.environ()[name].replace(quote(PASSWORD, safe=""), PASSWORD)
    refused = tandemq(guarded, "api", "--port", "0", code=2, **{name: url})
    assert "percent-encode" in refused.err
    assert name in refused.err
    assert "p@ss" not in refused.err
    assert "listening" not in refused.err


def test_a_wrong_password_is_told_at_the_start(guarded: Settings) -> None:
    url = guarded.database_url.replace(quote(PASSWORD, safe=""), "wrong")
    refused = tandemq(guarded, "api", "--port", "0", code=3, TANDEMQ_DATABASE_URL=url)
    assert "refused the connection" in refused.err
    assert "wrong" not in refused.err
