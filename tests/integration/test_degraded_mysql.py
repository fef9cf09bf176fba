"""The degraded modes of docs/degraded.md, second part: MySQL is away, frozen, full or has no connection left.

The scenarios have the rest: B25 (lock waits), B28 (connections that are cut), B29 (read-only).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from tandemq.core.errors import StoreUnavailable
from tandemq.core.settings import Settings
from tests.integration.test_degraded import PACE, Make
from tests.probe import Probe
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import Bench, Worker, bench


@contextmanager
def _own_servers(
    settings_for: Make, database: MySQLServer, redis_url: str, tmp_path: Path, probe: Probe, user: str = "root"
) -> Iterator[Bench]:
    """A bench on a database server of its own; ``user`` app may write its tables, and no more."""
    name = database.create_database()
    settings = settings_for(database.url(name), redis_url, **PACE)
    if user != "root":
        database.sql(f"CREATE USER {user}@'127.0.0.1'")
        database.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {user}@'127.0.0.1'")
        url = settings.database_url.replace("root@", f"{user}@")
        settings = Settings.load(settings.environ() | {"TANDEMQ_DATABASE_URL": url})
    with bench(settings, tmp_path, probe.environ) as work:
        yield work


def _listed(work: Bench, level: int = 0) -> set[int]:
    with redis.Redis.from_url(work.settings.redis_url) as raw:
        return {int(i) for i in raw.lrange(f"{work.settings.namespace}:{{default}}:ready:{level}", 0, -1)}


def _accepted(work: Bench, n: int) -> list[int]:
    """The ids of so many new tasks; none while the database is away."""
    try:
        return work.ids("noop", n)
    except StoreUnavailable:
        return []


def _begin(work: Bench, probe: Probe, gate: Path, n: int = 2) -> tuple[Worker, list[int]]:
    """A worker whose slots are all busy until the gate opens."""
    worker = work.worker("-c", str(n)).ready()
    held = [work.app.enqueue("hold", {"until": str(gate)}, max_retries=0).id for _ in range(n)]
    eventually(lambda: len(probe.starts()) == n, message=worker.text)
    return worker, held


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_while_mysql_is_away_lists_are_left_alone_and_results_are_kept(
    settings_for: Callable[..., Settings], own_mysql: Make, redis_url: str, tmp_path: Path, probe: Probe, how: str
) -> None:
    server: MySQLServer = own_mysql()
    with _own_servers(settings_for, server, redis_url, tmp_path, probe) as work:
        gate = tmp_path / "gate"
        worker, held = _begin(work, probe, gate)
        ids = work.ids("noop", 100)
        assert _listed(work) == set(ids)

        server.kill9() if how == "killed" else server.sigstop()
        down_at = time.monotonic()
        gate.touch()
        if how == "killed":
            eventually(lambda: "results are kept" in worker.text(), message=worker.text)
            eventually(lambda: "the database is away, waiting" in worker.text(), message=worker.text)
            with pytest.raises(StoreUnavailable):
                work.app.enqueue("noop", {})
            while time.monotonic() - down_at < 4:  # longer than the lease
                assert eventually(lambda: _listed(work) == set(ids), 1, "put back and left alone")
                time.sleep(0.2)
            server.start()
        else:
            time.sleep(1.5)
            left = _listed(work)  # one claim is under way
            assert len(left) > 50
            time.sleep(2.5)
            assert _listed(work) == left, "no more is popped"
            server.sigcont()

        assert work.ended([*held, *ids]) == {"succeeded": 102}
        probe.assert_once([*held, *ids])
        assert {work.app.get(i).attempts for i in held} == {1}  # type: ignore[union-attr]
        assert worker.process.poll() is None
        assert "Traceback" not in worker.text()


def test_with_both_away_nothing_is_lost_whichever_comes_back_first(
    settings_for: Callable[..., Settings], own_mysql: Make, own_redis: Make, tmp_path: Path, probe: Probe
) -> None:
    database: MySQLServer = own_mysql()
    server: RedisServer = own_redis()
    with _own_servers(settings_for, database, server.url(), tmp_path, probe) as work:
        gate = tmp_path / "gate"
        worker, held = _begin(work, probe, gate)
        ids = work.ids("noop", 40)
        for first in ("mysql", "redis"):
            server.kill9()
            database.kill9()
            gate.touch()
            eventually(lambda: "results are kept" in worker.text(), message=worker.text)
            with pytest.raises(StoreUnavailable):
                work.app.enqueue("noop", {})
            if first == "mysql":
                database.start()
                assert work.ended([*held, *ids]) == {"succeeded": 42}, "without Redis"
                server.start()
            else:
                server.start()
                database.start()
            more = eventually(lambda: _accepted(work, 20))
            assert work.ended(more) == {"succeeded": 20}
            ids += more
        probe.assert_once([*held, *ids])
        assert worker.process.poll() is None


def test_with_no_connection_to_be_had_all_wait_and_go_on(
    settings_for: Callable[..., Settings], own_mysql: Make, redis_url: str, tmp_path: Path, probe: Probe
) -> None:
    server: MySQLServer = own_mysql()
    with _own_servers(settings_for, server, redis_url, tmp_path, probe, user="app") as work:
        gate = tmp_path / "gate"
        worker, held = _begin(work, probe, gate)
        ids = work.ids("noop", 20)
        server.sql("SET GLOBAL max_connections = 10")
        hogs: list[Any] = []

        def hog() -> bool:
            for (thread,) in server.sql("SELECT id FROM information_schema.processlist WHERE db IS NOT NULL"):
                with contextlib.suppress(pymysql.err.OperationalError):  # it has gone by itself meanwhile
                    server.sql(f"KILL {thread}")
            try:
                while True:
                    hogs.append(pymysql.connect(host="127.0.0.1", port=server.port, user="app"))
            except pymysql.err.OperationalError:
                return "Too many connections" in worker.text()

        eventually(hog, message=worker.text)
        gate.touch()
        with pytest.raises(StoreUnavailable, match="Too many connections"):
            work.app.enqueue("noop", {})
        eventually(lambda: "results are kept" in worker.text(), message=worker.text)
        for one in hogs:
            one.close()
        server.sql("SET GLOBAL max_connections = 400")
        assert work.ended([*held, *ids]) == {"succeeded": 22}
        probe.assert_once([*held, *ids])
        assert worker.process.poll() is None


def test_a_full_database_refuses_new_tasks_and_goes_on_when_there_is_room(
    settings_for: Callable[..., Settings], own_mysql: Make, redis_url: str, tmp_path: Path, probe: Probe
) -> None:
    server: MySQLServer = own_mysql(
        "--innodb-file-per-table=OFF", "--innodb-data-file-path=ibdata1:12M:autoextend:max:24M"
    )
    with _own_servers(settings_for, server, redis_url, tmp_path, probe) as work:
        gate = tmp_path / "gate"
        worker, held = _begin(work, probe, gate)
        name = work.settings.database_url.rsplit("/", 1)[1]
        server.sql("CREATE TABLE filler (x VARCHAR(8000) CHARACTER SET latin1) ENGINE=InnoDB", database=name)
        stored: list[int] = []

        def fill(size: int) -> None:
            with pytest.raises(pymysql.err.OperationalError, match="is full"):
                while True:
                    server.sql(f"INSERT INTO filler SELECT REPEAT('x', 7900) FROM seq_1_to_{size}", database=name)

        fill(100)
        fill(1)
        with pytest.raises(StoreUnavailable, match="1114"):
            while len(stored) < 5000:
                stored += work.ids("noop", 50)
        assert len(stored) < 5000
        gate.touch()
        time.sleep(1)
        server.sql("DROP TABLE filler", database=name)
        more = eventually(lambda: _accepted(work, 20))
        assert work.ended([*held, *stored, *more]) == {"succeeded": len(stored) + 22}
        probe.assert_once([*held, *stored, *more])
        assert worker.process.poll() is None
        assert "Traceback" not in worker.text()
