"""What a worker must outlive: forks, servers that go away at a bad moment, odd rows, a stopped Redis."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.core.clock import SystemClock
from tandemq.core.lifecycle import Release, RetryIn
from tandemq.core.settings import Settings
from tandemq.core.task import Lease
from tandemq.store.answers import Settled
from tandemq.worker.arena import Arena
from tandemq.worker.leases import GIVEN_BACK_MOST, Ending, LeaseEnder, endings
from tandemq.worker.process import ChildProcess
from tests.probe import Probe
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import Bench, bench

FAST = {"lease_s": 3.0, "heartbeat_s": 1.0, "reconcile_s": 0.5, "grace_s": 20.0}
Make = Callable[..., Any]


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **FAST), tmp_path, probe.environ) as made:
        yield made


def test_a_child_that_dies_is_noticed_though_a_fork_of_it_lives_on(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("forker", {})
    worker = work.worker("-p", "2", "-c", "1").ready()
    eventually(lambda: probe.starts()[handle.id] == 1, message=worker.text)
    (busy,) = (child for child in worker.children() if child.pid in probe.pids())
    busy.kill()
    eventually(lambda: probe.starts()[handle.id] == 2, message=worker.text)  # while the fork lives on
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGINT)
    assert worker.wait() == 0


def test_a_child_that_starts_while_the_database_is_away_does_not_end_the_worker(
    settings_for: Callable[..., Settings], own_mysql: Make, redis_url: str, tmp_path: Path, probe: Probe
) -> None:
    server: MySQLServer = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url, **FAST)
    with bench(settings, tmp_path, probe.environ) as work:
        worker = work.worker("-p", "2", "-c", "1").ready()
        eventually(lambda: len(work.app.workers()) == 1, 60, worker.text)
        server.kill9()
        worker.children()[0].kill()
        eventually(lambda: "cannot start yet" in worker.text(), 60, worker.text)
        server.start()
        ids = work.ids("sleep", 0) + [work.app.enqueue("sleep", {"seconds": 0.2}).id for _ in range(20)]
        assert work.ended(ids) == {"succeeded": 20}
        assert worker.process.poll() is None
        eventually(lambda: len(worker.children()) == 2, message=worker.text)


def test_a_result_in_hand_outlives_an_outage_during_the_drain(
    settings_for: Callable[..., Settings], own_mysql: Make, redis_url: str, tmp_path: Path, probe: Probe
) -> None:
    server: MySQLServer = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url, **FAST)
    with bench(settings, tmp_path, probe.environ) as work:
        gate = tmp_path / "gate"
        handle = work.app.enqueue("hold", {"until": str(gate)}, max_retries=0)
        worker = work.worker("-c", "1", "--grace", "100").ready()
        eventually(probe.starts, message=worker.text)
        server.kill9()
        worker.signal(signal.SIGTERM)
        gate.touch()
        eventually(lambda: "results are kept" in worker.text(), message=worker.text)
        down_at = time.monotonic()
        eventually(lambda: time.monotonic() - down_at > 6)  # an outage longer than the lease
        server.start()
        assert worker.wait() == 0
        assert handle.result(timeout=30) == "held"
        probe.assert_once([handle.id])


def test_handlers_cannot_read_what_the_supervisor_says(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("stdin", {})
    worker = work.worker("-c", "1").ready()
    assert handle.result(timeout=60) == ""
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_rows_with_odd_options_run_like_others(
    work: Bench, mysql_server: MySQLServer, mysql_url: str, probe: Probe
) -> None:
    odd = ['{"timeout":1e300}', '{"timeout":' + "9" * 400 + "}", '{"timeout":-1}', '{"timeout":true}', "[]", "{broken"]
    ids = []
    for options in odd:
        ids.append(work.app.enqueue("noop", {}).id)
        statement = "UPDATE tandemq_tasks SET options = %s WHERE id = %s"
        mysql_server.sql(statement, (options, ids[-1]), database=mysql_url.rsplit("/", 1)[1])
    work.worker("-c", "2")
    assert work.ended(ids) == {"succeeded": len(odd)}
    probe.assert_once(ids)


def test_tasks_on_their_last_attempt_are_not_popped_and_put_back_in_a_loop(
    work: Bench, mysql_server: MySQLServer, probe: Probe
) -> None:
    ids = [work.app.enqueue("sleep", {"seconds": 0.05}, max_retries=0).id for _ in range(80)]
    mysql_server.general_log(True)
    work.burst("-c", "4", "--no-reconcile", "--no-mover")
    log = mysql_server.read_general_log()
    mysql_server.general_log(False)
    assert work.statuses(ids) == {"succeeded": 80}
    claims = [line for line in log.splitlines() if "SKIP LOCKED" in line and "status = 'pending'" in line]
    assert len(claims) <= 2 * 80, len(claims)


def test_work_goes_on_from_mysql_while_redis_stays_away(
    settings_for: Callable[..., Settings], mysql_url: str, own_redis: Make, tmp_path: Path, probe: Probe
) -> None:
    server: RedisServer = own_redis()
    with bench(settings_for(mysql_url, server.url(), **FAST), tmp_path, probe.environ) as work:
        worker = work.worker("-c", "4").ready()
        server.kill9()
        ids = work.ids("noop", 20)
        assert work.ended(ids) == {"succeeded": 20}
        probe.assert_once(ids)
        assert worker.process.poll() is None


class RecordingStore:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def give_back(self, token: int, ids: object) -> Settled:
        self.calls.append(f"give_back {token} {ids}")
        return Settled()

    def end_lease(self, token: int, ids: object, **_: object) -> Settled:
        self.calls.append(f"end_lease {token} {ids}")
        return Settled(locked=(1,)) if len(self.calls) < 3 else Settled()


def test_a_claim_that_was_under_way_is_given_back_and_locked_rows_are_asked_for_again() -> None:
    """Ended by token instead, its claims row would go while its COMMIT is still in the server."""
    arena, store = Arena.create(), RecordingStore()
    ender = LeaseEnder(store, None, worker_id="w", clock=SystemClock(), on_dead=lambda _: None)  # type: ignore[arg-type]
    arena.open(7, [1, 2], 1.0)
    held = arena.open(8, [3], 1.0)
    assert held is not None
    held.held([3])
    for snapshot in arena.snapshots():
        ending = Ending(snapshot, rng=random.Random(1))
        ender.add(ending)
    while not ender.is_idle:
        ender.step()
    assert store.calls == ["give_back 7 [1, 2]", "end_lease 8 [3]", "end_lease 8 [3]"]
    arena.close()


def test_a_waiting_task_of_a_dead_process_is_handed_back_even_on_its_last_attempt() -> None:
    arena = Arena.create()
    batch = arena.open(8, [3], 1.0)
    assert batch is not None
    batch.held([3])
    (snapshot,) = arena.snapshots()
    ending = Ending(snapshot, rng=random.Random(1))
    assert ending.judge(Lease(3, "q", 0, "t", "{}", "", 1, 0, 0, 1, 8)) == Release(None)
    arena.close()


def test_who_had_ended_loses_no_attempt_to_the_one_that_killed_the_process(tmp_path: Path) -> None:
    """Not yet written is not running: only what was in the middle of its handler can have killed the process."""
    arena = Arena.create()
    for token, ended in ((8, (3,)), (9, (4, 5))):
        batch = arena.open(token, [3] if token == 8 else [4, 5], 10.0)
        assert batch is not None
        batch.held([3] if token == 8 else [4, 5])
        for task_id in ended:
            batch.begin(task_id, 1.0, None)
            batch.end(task_id, 2.0)
    child = ChildProcess(arena, None, 0, 0.0)  # type: ignore[arg-type]

    def verdicts(*running: int) -> dict[int, Any]:
        for task_id in running:
            again = arena.open(10, [task_id], 10.0)
            assert again is not None
            again.held([task_id])
            again.begin(task_id, 1.0, None)
        leases = [Lease(i, "q", 0, "t", "{}", "", 1, 3, 0, 1, 8) for i in (3, 4, 5, *running)]
        by_id = {i: ending for ending in endings(child, random.Random(1)) for i in ending.ids}
        return {lease.id: by_id[lease.id].judge(lease) for lease in leases}

    alone = verdicts()
    assert all(isinstance(verdict, RetryIn) for verdict in alone.values())
    beside = verdicts(7)
    assert {i: type(verdict) for i, verdict in beside.items()} == {3: Release, 4: Release, 5: Release, 7: RetryIn}
    by_id = {i: ending for ending in endings(child, random.Random(1)) for i in ending.ids}
    often = Lease(3, "q", 0, "t", "{}", "", 1, 3, 0, 1 + GIVEN_BACK_MOST, 8)
    assert isinstance(by_id[3].judge(often), RetryIn)  # whoever ends like that again and again is a suspect
    arena.close()
