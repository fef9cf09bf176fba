"""The doctor on real servers: every fault is planted in one, and seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq import broker as brokers
from tandemq import store as stores
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.settings import Settings
from tandemq.doctor import Diagnosis, Doctor, Finding, Grade, unsafe
from tandemq.store import engines
from tests.healing import LOW
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer, RedisServer
from tests.workers import bench

Make = Callable[..., Settings]


class OffClock(SystemClock):
    """This machine, if its clock went wrong."""

    def __init__(self, off_s: float) -> None:
        self._off = timedelta(seconds=off_s)

    def now(self) -> datetime:
        return super().now() + self._off


@contextmanager
def connected(settings: Settings) -> Iterator[tuple[Any, Any]]:
    store, broker = stores.connect(settings), brokers.connect(settings, SystemClock())
    try:
        yield store, broker
    finally:
        store.close()
        broker.close()


def examine(settings: Settings, clock: Clock | None = None, *, fix: bool = False) -> Diagnosis:
    with connected(settings) as (store, broker):
        return Doctor(store, broker, clock or SystemClock(), settings).examine(fix=fix)


def find(diagnosis: Diagnosis, name: str) -> Finding:
    return next(f for f in diagnosis if f.name == name)


def bad(diagnosis: Diagnosis) -> dict[str, Grade]:
    """What is neither ok nor info."""
    return {f.name: f.level for f in diagnosis.of(Grade.UNKNOWN, Grade.WARNING, Grade.FAULT)}


def test_sound_servers_are_sound(env: Settings) -> None:
    assert bad(examine(env)) == {}
    diagnosis = examine(env)
    assert (diagnosis.healthy, diagnosis.worst) == (True, Grade.INFO)
    with connected(env) as (store, broker):
        assert unsafe(store, broker) == []


def test_each_unsafe_setting_of_the_database_is_named(
    own_mysql: Callable[..., MySQLServer], settings_for: Make, redis_url: str, probe: Probe, tmp_path: Path
) -> None:
    server = own_mysql("--log-bin=log", "--sync-binlog=0", "--binlog-format=ROW", "--max-allowed-packet=16M")
    settings = settings_for(server.url(server.create_database()), redis_url)
    assert bad(examine(settings)) == {"database.sync_binlog": Grade.FAULT}
    server.sql("SET GLOBAL sync_binlog = 1")
    assert bad(examine(settings)) == {}

    planted = [
        ("innodb_flush_log_at_trx_commit", "2", "1", "database.flush_log", Grade.FAULT),
        ("binlog_format", "'STATEMENT'", "'ROW'", "database.binlog_format", Grade.FAULT),
        ("read_only", "1", "0", "database.read_only", Grade.FAULT),
        ("init_connect", "'SET autocommit = 0'", "''", "database.init_connect", Grade.INFO),
        ("max_allowed_packet", "1048576", "16777216", "database.packet", Grade.FAULT),
        ("max_connections", "20", "400", "database.connections", Grade.WARNING),
    ]
    for variable, wrong, right, name, grade in planted:
        server.sql(f"SET GLOBAL {variable} = {wrong}")
        diagnosis = examine(settings)
        finding = find(diagnosis, name)
        assert finding.level is grade, finding
        assert variable in finding.sentence, finding
        assert bad(diagnosis).keys() - {"database.found_rows"} == {name} - ({name} if grade is Grade.INFO else set())
        server.sql(f"SET GLOBAL {variable} = {right}")
    assert bad(examine(settings)) == {}

    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    with bench(settings, tmp_path, probe.environ) as work:
        task = work.app.enqueue("noop", {})
        worker = work.burst()
        told = [line for line in worker.text().splitlines() if "database.flush_log" in line]
        assert len(told) == 1, worker.text()
        assert "WARNING" in told[0]
        assert "innodb_flush_log_at_trx_commit is 0, wanted 1" in told[0]
        assert task.state() == "succeeded"


def test_tables_that_somebody_has_changed(env: Settings, mysql_server: MySQLServer) -> None:
    database = env.database_url.rpartition("/")[2]
    mysql_server.sql("ALTER TABLE tandemq_leaders ENGINE = MyISAM", database=database)
    mysql_server.sql("ALTER TABLE tandemq_task_attempts CONVERT TO CHARACTER SET latin1", database=database)
    mysql_server.sql("CREATE TABLE tandemq_other (x TEXT) ENGINE = MyISAM CHARACTER SET latin1", database=database)

    diagnosis = examine(env)

    assert bad(diagnosis) == {"database.engine": Grade.FAULT, "database.charset": Grade.FAULT}
    engine, charset = find(diagnosis, "database.engine"), find(diagnosis, "database.charset")
    assert (engine.subject, engine.remedy) == ("tandemq_leaders", "ALTER TABLE tandemq_leaders ENGINE = InnoDB")
    assert "tandemq_task_attempts.error (latin1)" in charset.says
    for finding in (engine, charset):
        mysql_server.sql(finding.remedy, database=database)
    assert bad(examine(env)) == {}, "what it says mends it"


def test_connections_that_are_not_prepared(env: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_prepare_mysql", lambda *_: None)

    found = bad(examine(env))

    assert found.pop("database.isolation") is Grade.FAULT
    assert found.pop("database.lock_wait") is Grade.WARNING
    assert found.pop("database.stopped_client") is Grade.WARNING
    assert set(found) <= {"database.time_zone"}


def test_connections_that_count_changed_rows(env: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_FOUND_ROWS", 0)

    assert bad(examine(env)) == {"database.found_rows": Grade.FAULT}


@pytest.mark.parametrize(("off_s", "grade"), [(5.0, Grade.WARNING), (-100.0, Grade.FAULT)])
def test_a_clock_that_is_wrong(env: Settings, off_s: float, grade: Grade) -> None:
    diagnosis = examine(env, OffClock(off_s))

    assert bad(diagnosis) == {"database.clock": grade}
    assert ("behind" if off_s > 0 else "ahead of") in find(diagnosis, "database.clock").says


def test_a_database_that_was_not_migrated(mysql_url: str, redis_url: str, namespace: str) -> None:
    settings = Settings(database_url=mysql_url, redis_url=redis_url, namespace=namespace)

    diagnosis = examine(settings, fix=True)

    finding = find(diagnosis, "database.migrations")
    assert (finding.level, finding.remedy) == (Grade.FAULT, "tandemq migrate")
    assert not diagnosis.unreachable
    assert find(diagnosis, "database.flush_log").level is Grade.OK
    assert find(diagnosis, "redis.eviction").level is Grade.OK
    assert not [f for f in diagnosis if f.name.startswith("queues.")]
    answer = tandemq(settings, "doctor", code=1)
    assert "0001_tasks" in answer.out


def test_a_user_with_few_rights_gets_unknown_and_no_crash(env: Settings, mysql_server: MySQLServer) -> None:
    database = env.database_url.rpartition("/")[2]
    mysql_server.sql("CREATE OR REPLACE USER clerk@'%' IDENTIFIED BY 'p'")
    try:
        mysql_server.sql(f"GRANT SELECT ON {database}.tandemq_tasks TO clerk@'%'")
        mysql_server.sql(f"GRANT SELECT ON {database}.tandemq_meta TO clerk@'%'")
        login = f"clerk:p@127.0.0.1:{mysql_server.login['port']}/{database}"

        diagnosis = examine(replace(env, database_url=f"mysql+pymysql://{login}"))
    finally:
        mysql_server.sql("DROP USER clerk@'%'")

    assert not diagnosis.unreachable
    assert bad(diagnosis)["database.migrations"] is Grade.UNKNOWN
    assert bad(diagnosis)["database.found_rows"] is Grade.UNKNOWN
    assert bad(diagnosis)["queues.compared"] is Grade.UNKNOWN
    assert "tandemq_claims" in find(diagnosis, "queues.compared").says
    assert find(diagnosis, "database.flush_log").level is Grade.OK


def test_each_unsafe_setting_of_redis_is_named(
    own_redis: Callable[..., RedisServer], settings_for: Make, mysql_url: str
) -> None:
    server = own_redis()
    settings = settings_for(mysql_url, server.url())
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert bad(examine(settings)) == {"redis.eviction": Grade.WARNING}
        client.config_set("maxmemory", "64mb")
        finding = find(examine(settings), "redis.eviction")
        assert finding.level is Grade.FAULT
        assert "allkeys-lru, wanted noeviction" in finding.says
        assert "CONFIG SET maxmemory-policy noeviction" in finding.remedy
        with connected(settings) as (store, broker):
            assert [f.name for f in unsafe(store, broker)] == ["redis.eviction"]

        client.config_set("maxmemory-policy", "noeviction")
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", int(used * 1.05))
        assert bad(examine(settings)) == {"redis.memory": Grade.WARNING}
        client.config_set("maxmemory", 0)

        client.replicaof("127.0.0.1", "1")
        found = bad(examine(settings, fix=True))
        assert found.pop("redis.role") is Grade.FAULT
        assert found.keys() <= {"redis.reachable"}, "marking the namespace was refused"
        client.replicaof("NO", "ONE")
        assert bad(examine(settings, fix=True)) == {}


def test_rights_are_tried_and_nothing_is_left_behind(
    own_redis: Callable[..., RedisServer], settings_for: Make, mysql_url: str, namespace: str
) -> None:
    server = own_redis()
    url = server.url().replace("redis://", "redis://worker:secret@")
    settings = settings_for(mysql_url, url)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", f"~{namespace}:*", "+@all", "-@dangerous")
        found = examine(settings)
        assert bad(found) == {"redis.info": Grade.UNKNOWN, "redis.eviction": Grade.UNKNOWN}

        client.execute_command("ACL", "SETUSER", "worker", "+info", "-lpush", "-evalsha")
        finding = find(examine(settings), "redis.permissions")
        assert finding.level is Grade.FAULT
        assert "LPUSH, EVALSHA" in finding.says

        client.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~other:*")
        assert "SADD" in find(examine(settings), "redis.permissions").says

        client.execute_command("ACL", "SETUSER", "worker", f"~{namespace}:*", "+lpush", "+evalsha", "-multi")
        assert bad(examine(settings)) == {"redis.permissions": Grade.UNKNOWN}
        assert client.keys() == []


def test_a_cluster_of_one_node(own_redis: Callable[..., RedisServer], settings_for: Make, mysql_url: str) -> None:
    server = own_redis("--cluster-enabled", "yes")
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")

    finding = find(examine(settings_for(mysql_url, server.url())), "redis.cluster")

    assert finding.level is Grade.OK
    assert "of one master" in finding.says


def test_a_server_that_is_away_is_told_and_the_other_one_is_examined(env: Settings) -> None:
    nowhere = "127.0.0.1:1"
    no_redis = replace(env, redis_url=f"redis://:hush-hush@{nowhere}/0")
    no_database = replace(env, database_url=f"mysql+pymysql://root:hush-hush@{nowhere}/x")

    for settings, away, seen in (
        (no_redis, "redis", "database.flush_log"),
        (no_database, "database", "redis.eviction"),
    ):
        answer = tandemq(settings, "doctor", "--json", code=3)
        shape = answer.json
        assert shape["unreachable"] == [away]
        levels = {f["name"]: f["level"] for f in shape["findings"]}
        assert levels[f"{away}.reachable"] == "fault"
        assert levels[seen] == "ok"
        assert "hush-hush" not in answer.out + answer.err


def test_the_command_line_fixes(env: Settings) -> None:
    with TandemQ(database_url=env.database_url, redis_url=env.redis_url, namespace=env.namespace) as app:
        handle = app.enqueue("shop.pay", {})
        with connected(env) as (_, broker):
            assert broker.pop([LOW], limit=1, wait_s=0).ids == (handle.id,)
        app.clock.sleep(2.5)  # a row that has just become due is on its way

        told = tandemq(env, "doctor")
        assert "1 due tasks are not in Redis" in told.out
        fixed = tandemq(env, "doctor", "--fix", "--json").json

        assert [f["fixed"] for f in fixed["findings"] if f["name"] == "queues.missing"] == ["pushed 1"]
        with connected(env) as (_, broker):
            assert broker.pop([LOW], limit=1, wait_s=0).ids == (handle.id,)
        assert {f.name for f in app.doctor()} >= {"queues.missing", "database.flush_log", "redis.eviction"}


def test_app_doctor_knows_the_registered_tasks(env: Settings) -> None:
    told = json.loads(tandemq(env, "-A", "tests.apps.work:app", "doctor", "--json").out)

    (limits,) = [f for f in told["findings"] if f["name"] == "settings.grace_once"]
    assert "poison_order" in limits["says"]
