"""What the doctor makes of what servers and settings say: facts in, findings out."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandemq import RetryPolicy, TandemQ
from tandemq.broker.facts import RedisFacts
from tandemq.cli import session
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tandemq.doctor import Diagnosis, Finding, Grade, database, redis_server
from tandemq.doctor import settings as settings_judge
from tandemq.store.facts import DatabaseFacts
from tests.servers import ROOT

URLS = {"database_url": "mysql://root@localhost/x", "redis_url": "redis://localhost/0"}
SERVER = {
    "innodb_flush_log_at_trx_commit": "1", "sync_binlog": "0", "log_bin": "OFF", "binlog_format": "MIXED",
    "read_only": "OFF", "innodb_read_only": "OFF", "max_connections": "151", "init_connect": "",
}  # fmt: skip
SESSION = {
    "tx_isolation": "READ-COMMITTED", "autocommit": "ON", "innodb_lock_wait_timeout": "3", "time_zone": "+00:00",
    "character_set_client": "utf8mb4", "idle_transaction_timeout": "10", "wait_timeout": "60",
    "max_allowed_packet": "16777216",
}  # fmt: skip
FACTS = DatabaseFacts(
    dialect="mysql",
    version="10.11.6-MariaDB-log",
    server=SERVER,
    session=SESSION,
    status={"threads_connected": "5", "max_used_connections": "20"},
    tables={"tandemq_tasks": "InnoDB"},
    charsets=(),
    finds_rows=True,
)
INFO = {
    "redis_version": "7.0.15", "maxmemory": "0", "maxmemory_policy": "noeviction", "used_memory": "1000000",
    "role": "master", "cluster_enabled": "0", "aof_enabled": "0", "evicted_keys": "0",
}  # fmt: skip
STATEMENTS = {"server__log_bin": "ON", "server__sync_binlog": "1", "server__binlog_format": "STATEMENT"}
FULL = {"maxmemory": "9999999", "evicted_keys": "7"}
#: Named by the server that is away.
REACHABLE = {"database.reachable", "redis.reachable"}
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def of_database(**changes: Any) -> dict[str, Finding]:
    """Findings by name; ``server__x`` changes a variable."""
    maps = {"server": dict(SERVER), "session": dict(SESSION), "status": dict(FACTS.status or {})}
    plain = {}
    for name, value in changes.items():
        kind, _, variable = name.partition("__")
        if variable:
            maps[kind][variable] = value
        else:
            plain[name] = value
    found = list(database.judge(replace(FACTS, **(maps | plain)), Settings(**URLS)))
    assert len({f.name for f in found}) == len(found)
    return {f.name: f for f in found}


def of_redis(info: dict[str, str] | None = None, /, **changes: Any) -> dict[str, Finding]:
    facts = RedisFacts(info=INFO | (info or {}), denied=(), masters=0)
    return {f.name: f for f in redis_server.judge(replace(facts, **changes))}


def of_settings(**changes: Any) -> dict[str, Finding]:
    return {f.name: f for f in settings_judge.judge(Settings(**(URLS | changes)), ())}


def test_a_sound_database_has_no_finding_above_ok() -> None:
    found = of_database()

    assert {f.level for f in found.values()} == {Grade.OK}
    assert set(found) == {
        "database.migrations", "database.version", "database.flush_log", "database.sync_binlog",
        "database.binlog_format", "database.read_only", "database.isolation", "database.autocommit",
        "database.lock_wait", "database.time_zone", "database.connection_charset", "database.stopped_client",
        "database.found_rows", "database.engine", "database.charset", "database.packet", "database.connections",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "level", "says", "changes"),
    [
        ("flush_log", "fault", "is 2, wanted 1", {"server__innodb_flush_log_at_trx_commit": "2"}),
        ("flush_log", "fault", "is 0, wanted 1", {"server__innodb_flush_log_at_trx_commit": "0"}),
        ("sync_binlog", "fault", "is 0, wanted 1", {"server__log_bin": "ON"}),
        ("sync_binlog", "fault", "is 1000, wanted 1", {"server__log_bin": "1", "server__sync_binlog": "1000"}),
        ("sync_binlog", "ok", "is 1", {"server__log_bin": "ON", "server__sync_binlog": "1"}),
        ("binlog_format", "fault", "is STATEMENT", STATEMENTS),
        ("binlog_format", "ok", "does not matter", {"server__binlog_format": "STATEMENT"}),
        ("read_only", "fault", "read_only is ON", {"server__read_only": "ON"}),
        ("read_only", "fault", "super_read_only is 1", {"server__super_read_only": "1"}),
        ("read_only", "fault", "innodb_read_only is ON", {"server__innodb_read_only": "ON"}),
        ("isolation", "fault", "REPEATABLE-READ", {"session__tx_isolation": "REPEATABLE-READ"}),
        ("isolation", "fault", "SERIALIZABLE", {"session__transaction_isolation": "SERIALIZABLE"}),
        ("autocommit", "fault", "is OFF", {"session__autocommit": "OFF"}),
        ("lock_wait", "warning", "is 50, wanted 3", {"session__innodb_lock_wait_timeout": "50"}),
        ("time_zone", "warning", "is SYSTEM", {"session__time_zone": "SYSTEM"}),
        ("connection_charset", "fault", "is latin1, wanted UTF8MB4", {"session__character_set_client": "latin1"}),
        ("stopped_client", "warning", "is 0, wanted 10", {"session__idle_transaction_timeout": "0"}),
        ("stopped_client", "warning", "is 28800, wanted 60", {"session__wait_timeout": "28800"}),
        ("init_connect", "info", "SET autocommit=0", {"server__init_connect": "SET autocommit=0"}),
        ("found_rows", "fault", "how many it found", {"finds_rows": False}),
        ("found_rows", "unknown", "could not be tried", {"finds_rows": None}),
        (
            "engine",
            "fault",
            "tandemq_meta is MyISAM",
            {"tables": {"tandemq_meta": "MyISAM", "tandemq_tasks": "InnoDB"}},
        ),
        ("engine", "unknown", "does not tell", {"tables": None}),
        ("charset", "fault", "tandemq_tasks.payload (latin1)", {"charsets": ("tandemq_tasks.payload (latin1)",)}),
        ("charset", "unknown", "does not tell", {"charsets": None}),
        ("packet", "fault", "is 1048576, wanted 2162688", {"session__max_allowed_packet": "1048576"}),
        ("packet", "warning", "is 2000000, wanted 2162688", {"session__max_allowed_packet": "2000000"}),
        ("packet", "ok", "is 2162688", {"session__max_allowed_packet": "2162688"}),
        ("packet", "unknown", "does not tell", {"session": None}),
        ("connections", "warning", "140 of 151", {"status__threads_connected": "140"}),
        ("connections", "warning", "at most 151 were", {"status__max_used_connections": "151"}),
        ("connections", "unknown", "does not tell", {"status": None}),
        ("flush_log", "unknown", "does not tell", {"server": None}),
        ("isolation", "unknown", "does not tell", {"session": None}),
        ("version", "fault", "wanted MariaDB 10.6 or newer", {"version": "10.5.29-MariaDB"}),
        ("version", "fault", "wanted MySQL 8.0.13 or newer", {"version": "5.7.44-log"}),
        ("version", "fault", "wanted MySQL 8.0.13 or newer", {"version": "8.0.11-TiDB-v7.5.0"}),
        ("version", "ok", "MySQL 8.0.13", {"version": "8.0.13"}),
        ("version", "ok", "MySQL 9.7.0", {"version": "9.7.0"}),
        ("version", "ok", "MariaDB 11.8", {"version": "11.8.3-MariaDB-ubu2404"}),
        ("migrations", "fault", "0001_tasks, 0002_x, wanted all", {"missing": ("0001_tasks", "0002_x")}),
        ("migrations", "warning", "0009_later", {"unknown": ("0009_later",)}),
        ("migrations", "unknown", "may not be read", {"missing": None}),
    ],
)
def test_what_the_database_says(name: str, level: str, says: str, changes: dict[str, Any]) -> None:
    found = of_database(**changes)

    finding = found.pop(f"database.{name}")
    assert finding.level == level
    assert says in finding.says
    assert finding.remedy or level in {"ok", "unknown"}
    # A fault of one kind is not shown as one of another kind.
    assert {f.level for f in found.values()} <= {Grade.OK, Grade.UNKNOWN}


def test_what_names_a_setting_names_the_statement_that_changes_it() -> None:
    found = of_database(server__innodb_flush_log_at_trx_commit="2", session__max_allowed_packet="1")

    assert "SET GLOBAL innodb_flush_log_at_trx_commit = 1" in found["database.flush_log"].remedy
    assert "[mysqld]" in found["database.flush_log"].remedy
    assert "SET GLOBAL max_allowed_packet = 2162688" in found["database.packet"].remedy
    assert of_database(missing=("0001_tasks",))["database.migrations"].remedy == "tandemq migrate"


@pytest.mark.parametrize(
    ("off_s", "level", "says"),
    [
        (0.0, "ok", "agrees"),
        (0.9, "ok", "agrees"),
        (-1.5, "warning", "1.5 s behind"),
        (1.5, "warning", "1.5 s ahead"),
        (-31, "fault", "31.0 s behind"),
        (3600, "fault", "3600.0 s ahead"),
    ],
)
def test_the_clocks(off_s: float, level: str, says: str) -> None:
    finding = database.clock(NOW + timedelta(seconds=off_s), NOW, NOW)

    assert finding.level == level
    assert says in finding.says


def test_a_slow_answer_is_no_difference_of_clocks() -> None:
    assert database.clock(NOW + timedelta(seconds=9), NOW, NOW + timedelta(seconds=9.5)).level is Grade.OK


def test_a_sound_redis_has_no_finding_above_info() -> None:
    found = of_redis()

    assert {f.level for name, f in found.items() if name != "redis.persistence"} == {Grade.OK}
    assert found["redis.persistence"].level is Grade.INFO


@pytest.mark.parametrize(
    ("name", "level", "says", "info", "changes"),
    [
        ("eviction", "fault", "allkeys-lru, wanted noeviction", {"maxmemory_policy": "allkeys-lru"} | FULL, {}),
        ("eviction", "fault", "7 keys were", {"maxmemory_policy": "volatile-ttl"} | FULL, {}),
        ("eviction", "warning", "maxmemory, which is 0", {"maxmemory_policy": "allkeys-lru"}, {}),
        ("eviction", "unknown", "wanted noeviction", {"maxmemory_policy": ""}, {}),
        ("eviction", "unknown", "wanted noeviction", {}, {"info": None}),
        ("info", "unknown", "INFO is refused", {}, {"info": None}),
        ("memory", "warning", "1000000 of 1100000", {"maxmemory": "1100000"}, {}),
        ("memory", "ok", "1000000 of 1200000", {"maxmemory": "1200000"}, {}),
        ("memory", "unknown", "how much", {"used_memory": ""}, {}),
        ("role", "fault", "replica of db2:6380", {"role": "slave", "master_host": "db2", "master_port": "6380"}, {}),
        ("role", "unknown", "its role", {"role": ""}, {}),
        ("version", "fault", "Redis 6.0.16, wanted Redis 6.2", {"redis_version": "6.0.16"}, {}),
        ("version", "ok", "Valkey 9.0.1", {"redis_version": "7.2.4", "valkey_version": "9.0.1"}, {}),
        ("version", "unknown", "its version", {"redis_version": ""}, {}),
        ("cluster", "fault", "one of 3 masters", {}, {"masters": 3}),
        ("cluster", "ok", "of one master", {}, {"masters": 1}),
        ("cluster", "unknown", "its size", {}, {"masters": None}),
        ("permissions", "fault", "LPUSH, EVALSHA", {}, {"denied": ("LPUSH", "EVALSHA")}),
        ("permissions", "unknown", "MULTI is refused", {}, {"denied": None}),
        ("persistence", "info", "appendonly is on", {"aof_enabled": "1"}, {}),
    ],
)  # fmt: skip
def test_what_redis_says(name: str, level: str, says: str, info: dict[str, str], changes: dict[str, Any]) -> None:
    finding = of_redis(info, **changes)[f"redis.{name}"]

    assert finding.level == level
    assert says in finding.says
    assert finding.remedy or level != "fault"


def test_missing_rights_are_named_as_the_acl_takes_them() -> None:
    remedy = of_redis(denied=("LPUSH", "EVALSHA"))["redis.permissions"].remedy

    assert "ACL SETUSER <user> +lpush +evalsha ~<namespace>:*" in remedy


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("lease", {"lease_s": 3.0, "heartbeat_s": 1.0}, "TANDEMQ_LEASE_S is 3, wanted 12 or more"),
        ("lease", {"lease_s": 7200.0}, "TANDEMQ_LEASE_S is 7200, wanted 3600 or less"),
        ("heartbeat", {"heartbeat_s": 14.0}, "TANDEMQ_HEARTBEAT_S is 14 with TANDEMQ_LEASE_S=30"),
        ("reconcile", {"reconcile_s": 300.0}, "TANDEMQ_RECONCILE_S is 300"),
        ("mover", {"mover_s": 30.0}, "TANDEMQ_MOVER_S is 30"),
        ("grace", {"grace_s": 0.0}, "TANDEMQ_GRACE_S is 0"),
        ("unknown_task", {"unknown_task_s": 1.0}, "TANDEMQ_UNKNOWN_TASK_S is 1"),
    ],
)
def test_unwise_settings_are_warned_of(name: str, changes: dict[str, Any], says: str) -> None:
    found = of_settings(**changes)

    finding = found.pop(f"settings.{name}")
    assert finding.level is Grade.WARNING
    assert says in finding.says
    assert "TANDEMQ_" in finding.remedy
    assert {f.level for f in found.values()} <= {Grade.OK, Grade.INFO}
    assert f"settings.{name}" not in of_settings() or of_settings()[f"settings.{name}"].level is Grade.OK


def test_armed_crash_points_are_a_fault() -> None:
    assert of_settings(crash="claim.after_pop:1:kill9")["settings.crash"].level is Grade.FAULT


def limits(**options: Any) -> dict[str, Finding]:
    app = TandemQ(**URLS)
    app.task(name="shop.pay", **options)(lambda: None)
    return {f.name: f for f in settings_judge.judge(app.settings, app.registry)}


def test_time_limits_of_the_registered_tasks() -> None:
    assert limits(timeout=600)["settings.limits"].level is Grade.OK
    assert "600 s: leases are renewed" in limits(timeout=600)["settings.limits"].says
    endless = limits(timeout=None)["settings.limits"]
    assert endless.level is Grade.WARNING
    assert "shop.pay" in endless.says
    once = limits(max_retries=0)["settings.grace_once"]
    assert once.level is Grade.WARNING
    assert "TANDEMQ_GRACE_S=30" in once.says
    assert limits(retry=RetryPolicy(max_retries=0))["settings.grace_once"].level is Grade.WARNING
    assert "settings.grace_once" not in limits(max_retries=0, timeout=20)


def test_the_worst_finding_names_the_diagnosis() -> None:
    ok, bad = Finding("a", Grade.OK, "fine"), Finding("b", Grade.WARNING, "hm", "do this", fixed="")

    assert Diagnosis((ok, bad)).worst is Grade.WARNING
    assert Diagnosis((ok, bad)).healthy
    assert not Diagnosis((ok,), ("redis",)).healthy
    assert [f.sentence for f in Diagnosis((ok, bad))] == ["fine", "hm; do this"]
    assert replace(bad, fixed="did it").sentence == "hm; fixed: did it"


# The embedded default, on the command line


def doctor(monkeypatch: pytest.MonkeyPatch, app: TandemQ, *arguments: str) -> Result:
    monkeypatch.setattr(session, "TandemQ", lambda: app)
    return CliRunner().invoke(tandemq_command, ["doctor", *arguments], standalone_mode=False)


def test_the_embedded_default_is_examined_too(
    monkeypatch: pytest.MonkeyPatch, tandemq_app: TandemQ, tmp_path: Path
) -> None:
    tandemq_app.enqueue("shop.pay", {})

    told = doctor(monkeypatch, tandemq_app)
    assert told.return_value == 0, told.output
    assert "database.flush_log" in told.output
    assert "redis.eviction" not in told.output
    assert told.output.splitlines()[-1].endswith("ok")

    shape = json.loads(doctor(monkeypatch, tandemq_app, "--json").output)
    assert shape["level"] in {"info", "warning"}
    assert shape["unreachable"] == []
    assert {frozenset(f) for f in shape["findings"]} == {
        frozenset({"name", "level", "says", "remedy", "subject", "fixed"})
    }
    assert {f["name"] for f in shape["findings"]} >= {"settings.servers", "queues.missing", "workers.serving"}


@pytest.mark.parametrize(
    ("diagnosis", "code"),
    [
        (Diagnosis((Finding("a", Grade.WARNING, "hm"), Finding("b", Grade.UNKNOWN, "?"))), 0),
        (Diagnosis((Finding("a", Grade.FAULT, "bad"),)), 1),
        (Diagnosis((Finding("a", Grade.FAULT, "bad"),), ("redis",)), 3),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, tandemq_app: TandemQ, diagnosis: Diagnosis, code: int) -> None:
    monkeypatch.setattr(tandemq_app, "doctor", lambda **_: diagnosis)

    assert doctor(monkeypatch, tandemq_app).return_value == code
    assert doctor(monkeypatch, tandemq_app, "--json").return_value == code


def test_the_page_names_every_finding_and_no_other() -> None:
    pattern = re.compile(r"\b(?:database|redis|settings|queues|leases|workers)\.[a-z_]+")
    sources = "".join(path.read_text() for path in (ROOT / "src" / "tandemq" / "doctor").glob("*.py"))
    made = {name.strip('"') for name in re.findall(rf'"{pattern.pattern}"', sources)}

    assert set(re.findall(r"`([a-z]+\.[a-z_]+)`", (ROOT / "docs" / "doctor.md").read_text())) == made | REACHABLE
