"""B20: a worker that is told to stop finishes what it can, hands back the rest at once, and loses nothing.

Required: after SIGTERM a worker claims nothing more. What ends within the grace time is recorded; what does not is
handed back as it was, with the interruption on record and no attempt used, and another worker begins it within two
seconds of the exit. The exit code is 0, at the latest two seconds after the grace time. A SIGTERM in the moment in
which an id is popped does not lose the id, even with no reconciler to bring it back.
"""

from __future__ import annotations

import random
import signal
import time

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, sql
from tests.waiting import eventually
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

GRACE_S, SHORT_S = size(2.5, 5.0), size(1.0, 2.0)
WAITING = 100


def test_sigterm_with_short_long_and_waiting_tasks(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    first = work.worker("-c", "2", "--grace", f"{GRACE_S}").ready()
    short = work.app.enqueue("sleep", {"seconds": SHORT_S})
    long = work.app.enqueue("sleep", {"seconds": 60})
    eventually(lambda: len(probe.starts()) == 2, 20, first.text)
    waiting = work.ids("noop", WAITING)
    (begun_in,) = probe.pids()

    first.signal(signal.SIGTERM)
    told = time.monotonic()
    second = work.worker("-c", "4").ready()
    wait_until_blocked(redis_client, second)
    more = work.ids("noop", 10)

    assert first.wait(GRACE_S + 10) == 0
    left = time.time()
    assert time.monotonic() - told < GRACE_S + 2
    task = work.app.get(long.id)
    assert task is not None
    assert (short.state(), task.status in {"pending", "running"}) == ("succeeded", True)
    eventually(lambda: probe.starts()[long.id] == 2, 10, second.text)
    again = probe.marks("start", long.id)[1]
    assert again.at - left < 2.0
    assert again.attempt == 1
    task = work.app.get(long.id)
    assert task is not None
    assert [(a.attempt, a.outcome) for a in task.attempts_log] == [(1, "interrupted")]
    assert task.attempts == 1

    assert work.ended([*waiting, *more]) == {"succeeded": WAITING + 10}
    assert {m.task_id for m in probe.marks("start") if m.pid == begun_in} == {short.id, long.id}
    claimed_once = sql(work, "SELECT COUNT(*) FROM {t}tasks WHERE fence = 1")
    assert claimed_once == [(WAITING + 10 + 1,)], "something was claimed and handed back after the signal"
    starts = probe.starts()
    assert all(starts[task_id] == 1 for task_id in [short.id, *waiting, *more])


def test_sigterm_in_the_moment_of_the_pop(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    rng = random.Random(20)
    at_once = size(3, 4)
    ids: list[int] = []
    for _ in range(size(2, 50)):
        workers = [work.worker("-c", "2", "--no-reconcile", "--no-mover").ready() for _ in range(at_once)]
        for worker in workers:
            wait_until_blocked(redis_client, worker)
        for worker in workers:
            ids += work.ids("noop", 3)
            time.sleep(rng.uniform(0, 0.01))  # the moment of the signal is what is tried here
            worker.signal(signal.SIGTERM)
            ids += work.ids("noop", 3)
        for worker in workers:
            assert worker.wait(10) == 0
    work.burst("-c", "2", "--no-reconcile")
    assert work.statuses(ids) == {"succeeded": len(ids)}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
