"""The degraded modes of docs/degraded.md: a server is away, frozen, full, read-only or refuses, and what goes on.

Here is Redis; ``test_degraded_mysql.py`` has MySQL, the scenario B04 how quick enqueue is meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tandemq import NewTask
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.worker import direct, fetcher
from tandemq.worker.arena import Arena
from tandemq.worker.child import Child
from tests import recipes
from tests.apps import work as tasks
from tests.healing import World
from tests.probe import VARIABLE, Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import Bench, bench

PACE = {"lease_s": 3.0, "heartbeat_s": 1.0, "reconcile_s": 0.5, "mover_s": 0.2, "grace_s": 20.0, "redis_away_s": 1.0}
Make = Callable[..., Any]
Fault = Callable[[RedisServer], AbstractContextManager[None]]


# Redis refuses, each in its own words


@contextmanager
def _down(server: RedisServer) -> Iterator[None]:
    server.kill9()
    yield
    server.start()


@contextmanager
def _frozen(server: RedisServer) -> Iterator[None]:
    server.sigstop()
    yield
    server.sigcont()


@contextmanager
def _at_maxmemory(server: RedisServer) -> Iterator[None]:
    with server.client() as raw:
        raw.config_set("maxmemory", "1")
        yield
        raw.config_set("maxmemory", "0")


@contextmanager
def _disk_broken(server: RedisServer) -> Iterator[None]:
    with server.client() as raw:
        (server.folder / "dump.rdb").mkdir()
        raw.config_set("save", "1 1")
        raw.set("dirty", "1")
        eventually(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err", message="a failed save")
        yield
        raw.config_set("save", "")


@contextmanager
def _demoted(server: RedisServer) -> Iterator[None]:
    with server.client() as raw:
        raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        yield
        raw.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def _password_changed(server: RedisServer) -> Iterator[None]:
    with server.client() as raw:
        own = [name for name in raw.acl_users() if name.startswith("tandemq")]
        raw.config_set("requirepass", "new")
        for name in own:
            raw.execute_command("ACL", "SETUSER", name, "resetpass", ">new")
        raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield
        raw.config_set("requirepass", "")
        for name in own:
            raw.execute_command("ACL", "SETUSER", name, "resetpass", f">{recipes.password('app')}")


@contextmanager
def _loading(server: RedisServer) -> Iterator[None]:
    """It starts with a file that takes for ever to read, and answers LOADING meanwhile."""
    with server.client() as raw:
        raw.mset({f"other:{n}": "x" * 1100 for n in range(2000)})
        raw.save()
    server.kill9()
    slowly = ["--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"]
    server.options += [*slowly, "--rdbcompression", "no"]
    starting = threading.Thread(target=server.start)
    starting.start()

    def is_loading() -> bool:
        try:
            with server.client(socket_timeout=2) as raw:
                raw.ping()
        except redis.exceptions.BusyLoadingError:
            return True
        except redis.RedisError:
            return False
        raise AssertionError("it has loaded already")

    eventually(is_loading)
    yield
    assert is_loading()
    with server.client() as raw:
        raw.config_set("key-load-delay", "0")
    starting.join()


FAULTS: dict[str, tuple[Fault, str]] = {
    "down": (_down, "Error"),
    "frozen": (_frozen, "Timeout"),
    "OOM": (_at_maxmemory, "OOM"),
    "MISCONF": (_disk_broken, "MISCONF"),
    "READONLY": (_demoted, "READONLY"),
    "LOADING": (_loading, "Redis"),
    "wrong password": (_password_changed, "password"),
}


@contextmanager
def _inside(work: Bench, slots: int = 4) -> Iterator[Child]:
    """The part of a worker that runs tasks, in this process: fetcher, slots and acker."""
    orders = {"worker_id": "inside", "queues": None, "slots": slots, "fair": False, "max_tasks": 0, "max_memory_mb": 0}
    arena = Arena.create()
    store, broker = work.app.store, work.app.broker
    child = Child(
        tasks.app.registry, work.settings, orders, store=store, broker=broker, arena=arena, clock=SystemClock(),
        encoder=None,
    )  # fmt: skip
    child.start()
    try:
        yield child
    finally:
        child.drain()
        assert child.wait_over(60)
        assert child.exit_code == 0
        arena.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, probe: Probe) -> None:
    """The pauses of a worker in this process are short."""
    monkeypatch.setattr(direct, "TRY_REDIS_S", 0.2)
    monkeypatch.setattr(direct, "LOOK_S", 0.1)
    monkeypatch.setattr(fetcher, "CHECK_S", 0.2)
    monkeypatch.setenv(VARIABLE, str(probe.path))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_redis_refuses_tasks_are_stored_and_run_and_lists_are_used_again(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    own_redis: Make,
    tmp_path: Path,
    probe: Probe,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    server: RedisServer = own_redis()
    settings = settings_for(mysql_url, server.url(), **PACE | {"redis_away_s": 0.3, "lease_s": 30.0})
    break_it, word = FAULTS[fault]
    caplog.set_level(logging.INFO)
    with bench(settings, tmp_path, probe.environ) as work, _inside(work):
        ids = work.ids("noop", 5)
        assert work.ended(ids) == {"succeeded": 5}
        caplog.clear()
        with break_it(server):
            away = work.ids("noop", 30) + work.ids("noop", 3, priority=20, max_retries=0)
            away += [work.app.enqueue("noop", {}, delay=0.5).id, work.app.enqueue("flaky", {}).id]
            assert work.ended(away) == {"succeeded": len(away)}
            said = [r.message for r in caplog.records if r.name == "tandemq.worker"]
            assert any("due tasks are taken from the database" in line and word in line for line in said), said
            assert len(said) < 10, said
        eventually(lambda: "Redis is back" in caplog.text)
        with bench(settings, tmp_path, probe.environ) as fresh:  # whose breaker is closed: there is no reconciler here
            back = fresh.ids("noop", 5)
            assert fresh.ended(back) == {"succeeded": 5}
    starts = probe.starts()
    assert {i: n for i, n in starts.items() if n > 1} == {away[-1]: 2}
    assert set(starts) == {*ids, *away, *back}


@pytest.mark.usefixtures("quick")
def test_a_redis_that_evicts_lists_gets_them_back_from_mysql(
    settings_for: Callable[..., Settings], mysql_url: str, own_redis: Make, tmp_path: Path, probe: Probe
) -> None:
    server: RedisServer = own_redis("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random")
    with bench(settings_for(mysql_url, server.url(), **PACE), tmp_path, probe.environ) as work:
        ids = work.ids("noop", 50)
        with server.client() as raw:
            key = f"{work.settings.namespace}:{{default}}:ready:0"
            for n in range(200_000):
                raw.set(f"other:{n}", "x" * 10_000)
                if n % 100 == 0 and not raw.exists(key):
                    break
            assert not raw.exists(key)
        work.worker("-c", "4")
        assert work.ended(ids) == {"succeeded": 50}
        probe.assert_once(ids)


def test_while_redis_is_away_workers_share_the_work_of_all_their_levels(
    settings_for: Callable[..., Settings],
    mysql_server: MySQLServer,
    mysql_url: str,
    own_redis: Make,
    tmp_path: Path,
    probe: Probe,
) -> None:
    server: RedisServer = own_redis()
    with bench(settings_for(mysql_url, server.url(), **PACE), tmp_path, probe.environ) as work:
        workers = [work.worker("-c", "4", "-q", "other,default").ready() for _ in range(2)]
        with server.client() as raw:
            for worker in workers:
                wait_until_blocked(raw, worker)
        server.kill9()
        held = work.ids("noop", 5, priority=30)
        operator = mysql_server.connect(mysql_url.rsplit("/", 1)[1], autocommit=False)
        rows = ",".join(map(str, held))
        with operator.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")  # no gaps: others may insert
            cursor.execute(f"SELECT id FROM tandemq_tasks WHERE id IN ({rows}) FOR UPDATE")

            unknown = [h.id for h in work.app.enqueue_many([NewTask("nobody.knows", {}, priority=20)] * 60)]
            ids = work.ids("noop", 100) + work.ids("noop", 100, queue="other", priority=10)
            ids += work.ids("noop", 20, queue="other", max_retries=0)
            ids += [work.app.enqueue("noop", {}, delay=1).id]
            late = work.worker("-c", "4", "--no-mover", "--no-reconcile")
            begun_at = time.time()
            assert work.ended(ids) == {"succeeded": len(ids)}
            assert work.statuses(held) == {"pending": 5}
        operator.rollback()
        operator.close()
        assert work.ended(held) == {"succeeded": 5}
        assert work.statuses(unknown) == {"pending": 60}
        probe.assert_once([*ids, *held])
        assert len(probe.pids()) == 2, "one worker did it all"
        took = max(m.at for m in probe.marks("end") if m.task_id in ids) - begun_at
        print(f"{len(ids)} tasks from MySQL by 2 workers in {took:.1f} s")

        assert late.wait() == 3, "it cannot know whose namespace this is"
        server.start()
        eventually(lambda: all("Redis is back" in w.text() for w in workers), 30)
        assert work.ended(work.ids("noop", 20)) == {"succeeded": 20}
        assert [w.process.poll() for w in workers] == [None, None]


def test_leases_of_dead_workers_end_while_redis_is_frozen(fast_world: World) -> None:
    """Its time-outs are no silence of the database, however short the leases are."""
    settings = replace(fast_world.settings, lease_s=3.0, reconcile_s=2.0)
    reconciler = fast_world.reconciler(settings=settings)
    (task_id,) = fast_world.enqueue()
    fast_world.claim([task_id], lease_s=3.0)

    def time_out(*_: object) -> None:
        fast_world.clock.advance(3.1)
        raise BrokerUnavailable("frozen")

    fast_world.broker.before["mark_install"] = time_out
    for _ in range(4):
        fast_world.clock.advance(reconciler.step())
    assert fast_world.status(task_id) is Status.PENDING
    assert any("Redis is away" in alarm for alarm in reconciler.last_report.alarms)


# The page


def _rows(page: str) -> list[list[str]]:
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_row_of_the_page_names_a_test_that_exists() -> None:
    root = Path(__file__).parents[2]
    rows = [row for row in _rows((root / "docs" / "degraded.md").read_text()) if row[0] != "what is wrong"]
    assert len(rows) >= 14
    for row in rows:
        where = row[-1].strip("`")
        path, _, name = where.partition("::")
        file = root / "tests" / path
        assert file.exists(), row[0]
        function, _, case = name.partition("[")
        assert f"def {function}(" in file.read_text(), f"{row[0]}: {where}"
        if case and file.name == Path(__file__).name:
            assert case.strip("]") in FAULTS, where
