"""B34: many callers enqueue under one idempotency key at the same moment.

Required: one row per key, and every caller gets the id of it; exactly one is told that it created the task; nobody gets
an error, from threads and from processes alike. When the first caller rolls back, exactly one of those who waited
creates the task. When it commits, all get its task. A caller with another payload gets an error that names the first
id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tandemq import Handle, IdempotencyConflict
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, row_count, sql
from tests.waiting import eventually
from tests.workers import ROOT, Bench, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"
CALLERS = 50
KEYS = size(3, 100)


@pytest.fixture
def crowd() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CALLERS) as pool:
        yield pool


def at_once(crowd: ThreadPoolExecutor, calls: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Start all of them at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(60)
        return call()

    return [crowd.submit(run, call) for call in calls]


def run_all(work: Bench, probe: Probe, ids: list[int]) -> None:
    """What was accepted runs, each once."""
    work.worker("-c", "8", app=APP).ready()
    assert work.ended(ids) == {"succeeded": len(ids)}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)


def test_threads_get_one_task_per_key(work: Bench, probe: Probe, crowd: ThreadPoolExecutor) -> None:
    ids = []
    for n in range(KEYS):

        def call(n: int = n) -> Handle[Any]:
            return work.app.enqueue("b.noop", {"n": n}, idempotency_key=f"order-{n}")

        handles = [future.result() for future in at_once(crowd, [call] * CALLERS)]
        assert len({handle.id for handle in handles}) == 1
        assert sum(handle.created for handle in handles) == 1
        ids.append(handles[0].id)
    assert row_count(work) == len(set(ids)) == KEYS
    run_all(work, probe, ids)


def test_processes_get_one_task_per_key(work: Bench, probe: Probe) -> None:
    processes = 5
    command = [sys.executable, "-m", "tests.apps.rush", "order-", str(KEYS), str(CALLERS // processes)]
    made = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment(work.settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(processes)
    ]
    try:
        for process in made:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in made:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in made]
    finally:
        for process in made:
            process.kill()
            process.communicate()
    ids = []
    for n in range(KEYS):
        given = [tuple(answer) for each in answers for answer in each[f"order-{n}"]]
        assert len(given) == CALLERS
        assert len({task_id for task_id, _ in given}) == 1, given
        assert sum(created is True for _, created in given) == 1, given
        ids.append(given[0][0])
    assert row_count(work) == KEYS
    run_all(work, probe, ids)


@pytest.mark.parametrize("hold_s", size([0.0], [0.0, 1.0, 4.0]))
@pytest.mark.parametrize("ending", ["rollback", "commit"])
def test_those_who_wait_for_the_first_caller_agree_on_one_task_whatever_becomes_of_it(
    work: Bench, probe: Probe, crowd: ThreadPoolExecutor, mysql_url: str, ending: str, hold_s: float
) -> None:
    ids = []
    engine = sa.create_engine(mysql_url)
    for n in range(size(1, 10)):
        key = f"{ending}-{n}"
        with engine.connect() as first:
            held = work.app.enqueue("b.noop", {"n": n}, idempotency_key=key, connection=first)
            assert held.created

            def call(n: int = n, key: str = key) -> Handle[Any]:
                return work.app.enqueue("b.noop", {"n": n}, idempotency_key=key)

            futures = at_once(crowd, [call] * 20)
            waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
            # Asked more often than ten times a second, the server would answer from an old copy for ever.
            eventually(lambda waiting=waiting: sql(work, waiting)[0][0] >= 20, every_s=0.2)
            until = time.monotonic() + hold_s
            eventually(lambda until=until: time.monotonic() >= until, hold_s + 30)
            assert not any(future.done() for future in futures)
            getattr(first, ending)()
        handles = [future.result() for future in futures]
        assert len({handle.id for handle in handles}) == 1
        assert sum(handle.created for handle in handles) == (ending == "rollback")
        if ending == "commit":
            assert handles[0].id == held.id
        ids.append(handles[0].id)
    engine.dispose()
    assert row_count(work) == len(ids)
    run_all(work, probe, ids)


def test_another_payload_is_a_conflict_that_names_the_first_id(work: Bench, crowd: ThreadPoolExecutor) -> None:
    ids = []
    for n in range(KEYS):

        def call(version: int, n: int = n) -> Handle[Any]:
            payload = {"n": n, "unused": 1} if version else {"n": n}
            return work.app.enqueue(f"b.{'echo' if version else 'noop'}", payload, idempotency_key=f"order-{n}")

        futures = at_once(crowd, [lambda version=c % 2: call(version) for c in range(20)])
        sides: list[list[int]] = [[], []]
        conflicts: list[list[IdempotencyConflict]] = [[], []]
        for c, future in enumerate(futures):
            error = future.exception()
            if error is None:
                sides[c % 2].append(future.result().id)
            else:
                assert isinstance(error, IdempotencyConflict)
                conflicts[c % 2].append(error)
        won = 0 if sides[0] else 1
        assert (len(sides[won]), len(conflicts[1 - won])) == (10, 10)
        (winner,) = set(sides[won])
        assert all(error.task_id == winner and str(winner) in str(error) for error in conflicts[1 - won])
        ids.append(winner)
    assert row_count(work) == KEYS
    answer = tandemq(work.settings, "enqueue", "b.noop", '{"n": -1}', "--key", "order-0", code=1)
    assert str(ids[0]) in answer.err


def test_a_caller_with_an_old_snapshot_gets_the_task_that_it_cannot_see_yet(work: Bench, mysql_url: str) -> None:
    engine = sa.create_engine(mysql_url, isolation_level="REPEATABLE READ")
    with engine.begin() as old:
        assert old.execute(sa.text("SELECT COUNT(*) FROM tandemq_tasks")).scalar() == 0
        first = work.app.enqueue("b.noop", {"n": 1}, idempotency_key="k")
        again = work.app.enqueue("b.noop", {"n": 1}, idempotency_key="k", connection=old)
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(IdempotencyConflict) as conflict:
            work.app.enqueue("b.noop", {"n": 2}, idempotency_key="k", connection=old)
        assert conflict.value.task_id == first.id
        other = work.app.enqueue("b.noop", {"n": 3}, idempotency_key="other", connection=old)  # the transaction goes on
    engine.dispose()
    assert {first.id, other.id} == {task_id for (task_id,) in sql(work, "SELECT id FROM {t}tasks")}
