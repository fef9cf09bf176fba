"""B28: a connection that the server has closed is replaced, and nobody hears of it.

Required with ``wait_timeout=2``: after an idle time longer than that tasks run as before; while a long task runs every
connection of worker, mover, reconciler and producer is killed, twice: no process exits, no attempt fails, the long task
is done with one start, and the first enqueue after each of these is answered.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.apiprocess import running
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, assert_settled
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

IDLE_S = size(3.0, 8.0)
LONG_S = size(5.0, 10.0)


def _kill_all(server: MySQLServer) -> set[int]:
    """KILL every connection to a database but this one; which they were."""
    found = "SELECT id FROM information_schema.processlist WHERE db IS NOT NULL AND db <> 'information_schema'"
    killed = {int(thread) for (thread,) in server.sql(found)}
    for thread in killed:
        with contextlib.suppress(pymysql.err.OperationalError):  # it has gone by itself meanwhile
            server.sql(f"KILL {thread}")
    return killed


def _assert_undisturbed(work: Bench, probe: Probe, ids: list[int]) -> None:
    probe.assert_once(ids)
    assert {mark.attempt for mark in probe.marks("start")} == {1}
    assert_settled(work, probe, ids)


def test_idle_and_killed_connections_cost_nothing(
    settings_for: Callable[..., Settings],
    own_mysql: Callable[..., MySQLServer],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
) -> None:
    server = own_mysql("--wait-timeout=2", "--interactive-timeout=2")
    with contextlib.ExitStack() as stack:
        settings = settings_for(server.url(server.create_database()), redis_url, **PACE)
        work = stack.enter_context(bench(settings, tmp_path, probe.environ))
        client = stack.enter_context(stack.enter_context(running(work.settings, tmp_path)).client())
        work.worker("-c", "2").ready()
        mover = work.worker(verb="mover", app="tests.apps.work:app")
        ids = work.ids("noop", 3)
        assert work.ended(ids) == {"succeeded": 3}
        server.sql("SET GLOBAL wait_timeout = 2")
        assert client.get(f"/jobs/{ids[0]}").status_code == 200
        time.sleep(IDLE_S)  # the idle time is what is tried
        assert client.get(f"/jobs/{ids[0]}").status_code == 200, "the first call after it"
        ids += work.ids("noop", 3)
        assert work.ended(ids) == {"succeeded": 6}

        ids.append(long := work.app.enqueue("sleep", {"seconds": LONG_S}, max_retries=0).id)
        eventually(lambda: probe.starts()[long] == 1, message=work.workers[0].text)
        killed: set[int] = set()
        for turn in range(2):
            if turn:
                time.sleep(LONG_S / 3)
            now = _kill_all(server)
            assert len(now) >= 3, "of the worker's two processes and of the test"
            assert not now & killed
            killed |= now
            assert client.get(f"/jobs/{long}").json()["status"] == "running"
            ids.append(work.app.enqueue("noop", {}, delay=0.3).id)
            ids += work.ids("noop", 3)
        assert work.ended(ids) == {"succeeded": len(ids)}
        assert mover.process.poll() is None, mover.text()
        _assert_undisturbed(work, probe, ids)


@pytest.mark.parametrize("seconds", size([0.1], [0.3, 0.1, 0.03]))
def test_connections_killed_over_and_over_under_load(
    settings_for: Callable[..., Settings],
    own_mysql: Callable[..., MySQLServer],
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    seconds: float,
) -> None:
    """Beyond the report: they die in the middle of claims and finishes, so of COMMITs as well."""
    server = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url, **PACE | {"lease_s": 30.0})
    with bench(settings, tmp_path, probe.environ) as work:
        work.worker("-c", "8", "-p", "2").ready()
        news = [NewTask("sleep", {"seconds": 0.05})] * size(600, 3000)
        ids = [handle.id for handle in work.app.enqueue_many(news)]
        eventually(probe.starts, message=work.workers[0].text)
        kills = 0
        while len(probe.starts()) < len(ids) and kills < 1000:
            kills += len(_kill_all(server))
            time.sleep(seconds)
        assert kills > 10
        print(f"{kills} connections killed while {len(ids)} tasks ran")
        assert work.ended(ids) == {"succeeded": len(ids)}
        _assert_undisturbed(work, probe, ids)
