"""Handlers that take ``tx`` in a real worker: failures, lost leases, slow ones, a lost COMMIT."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tests import recipes
from tests.probe import Probe
from tests.proxy import Proxy
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Bench, bench

APP = "tests.apps.tx:app"
FAST = {"lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "grace_s": 5.0}
Steps = Callable[[], list[tuple[int, int]]]


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **FAST), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def steps(mysql_server: MySQLServer, mysql_url: str) -> Steps:
    database = mysql_url.rpartition("/")[2]
    mysql_server.sql("CREATE TABLE steps (chain INT NOT NULL, n INT NOT NULL) ENGINE=InnoDB", database=database)
    recipes.own_table(partial(mysql_server.sql, database=database), "steps")
    return lambda: [(c, n) for c, n in mysql_server.sql("SELECT chain, n FROM steps ORDER BY 1, 2", database=database)]


def test_a_failed_attempt_leaves_nothing(work: Bench, steps: Steps) -> None:
    task = work.app.enqueue("flaky_link", {"chain": 1}, max_retries=3)
    work.worker("-c", "2", app=APP)
    assert work.ended([task.id]) == {"succeeded": 1}
    assert steps() == [(1, 3)]
    assert [a.error_type for a in work.app.store.get(task.id, attempts=True).attempts_log] == ["OSError", "OSError"]


def test_a_handler_that_commits_by_itself_fails_and_leaves_nothing(work: Bench, steps: Steps) -> None:
    task = work.app.enqueue("committing_link", {"chain": 1}, max_retries=0)
    work.worker("-c", "2", app=APP)
    assert work.ended([task.id]) == {"dead": 1}
    assert "committed by tandemq" in work.app.store.get(task.id).last_error
    assert steps() == []


def test_what_is_counted_and_left_behind(work: Bench, steps: Steps) -> None:
    for chain in range(20):
        work.app.enqueue("link", {"chain": chain, "n": 3})
    worker = work.worker("--burst", "-c", "4", app=APP)
    assert worker.wait() == 0, worker.text()
    assert len(steps()) == len(set(steps())) == 60
    assert work.app.stats()["ended"]["succeeded"] == 60
    assert work.app.store.expired_claims(10) == []


def test_a_worker_that_was_stopped_beyond_its_lease_commits_nothing(work: Bench, steps: Steps, probe: Probe) -> None:
    task = work.app.enqueue("slow_link", {"chain": 1, "seconds": 0.5}, max_retries=3)
    first = work.worker("-c", "1", app=APP)
    eventually(lambda: probe.starts()[task.id] == 1, 60, first.text)
    everyone = [first.process.pid, *[p.pid for p in first.children()]]
    import os

    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    second = work.worker("-c", "1", app=APP)
    assert work.ended([task.id]) == {"succeeded": 1}, second.text()
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: "fenced" in first.text() or "was lost" in first.text(), 60, first.text)
    assert steps() == [(1, 1), (1, 2)]
    # The first one goes on with other tasks.
    second.process.terminate()
    assert second.wait() == 0
    other = work.app.enqueue("link", {"chain": 2, "n": 1})
    assert work.ended([other.id]) == {"succeeded": 1}, first.text()


@pytest.mark.parametrize("fault", ["swallow", "stop_before"])
def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_doubled(
    work: Bench, steps: Steps, mysql_server: MySQLServer, fault: str
) -> None:
    proxy = Proxy(*mysql_server.address)
    host, port = mysql_server.address
    url = work.settings.database_url.replace(f"{host}:{port}", f"127.0.0.1:{proxy.port}")
    work.settings = replace(work.settings, database_url=url)
    try:
        warm = work.app.enqueue("link", {"chain": 0, "n": 1})
        worker = work.worker("-c", "1", app=APP)
        assert work.ended([warm.id]) == {"succeeded": 1}, worker.text()
        # A transaction of ours commits in the same packet as its statements; a bare COMMIT is a handler's.
        getattr(proxy, fault)(b"\x03COMMIT")
        task = work.app.enqueue("link", {"chain": 1, "n": 2}, max_retries=3)
        assert work.ended([task.id]) == {"succeeded": 1}, worker.text()
        eventually(lambda: not work.app.store.busy(["default"]), 60, worker.text)
        assert proxy.hits == 1
        assert steps() == [(0, 1), (1, 1), (1, 2)]
        # Counted by the flush that finds it out, which is after the COMMIT.
        eventually(lambda: work.app.stats()["ended"].get("succeeded") == 3, 60, worker.text)
    finally:
        proxy.close()
