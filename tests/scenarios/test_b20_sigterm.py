"""B20: a worker that is told to stop finishes what it can, hands back the rest at once, and loses nothing.

Required: after SIGTERM a worker claims nothing more. What ends within the grace time is recorded; what does not is
handed back as it was, with the interruption on record and no attempt used, and another worker begins it within two
seconds of the exit. The exit code is 0, at the latest two seconds after the grace time. A SIGTERM in the moment in
which an id is popped does not lose the id, even with no reconciler to bring it back.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200), pytest.mark.usefixtures("calm")]

GRACE_S = size(4.0, 5.0)
WAITING = 100


class Exit:
    """Notes the moment in which a worker exits, whatever the test does meanwhile."""

    def __init__(self, worker: Worker) -> None:
        self.at = 0.0
        self._worker = worker
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self._worker.wait()
        self.at = time.time()

    def wait(self) -> float:
        self._thread.join()
        return self.at


def test_sigterm_with_short_long_and_waiting_tasks(
    work: Bench, probe: Probe, redis_client: redis.Redis, mysql_server: MySQLServer, tmp_path: Path, weather: Weather
) -> None:
    first = work.worker("-c", "2", "--grace", f"{GRACE_S}", "--name", "first").ready()
    gate = tmp_path / "gate"
    short = work.app.enqueue("hold", {"until": str(gate)})
    long = work.app.enqueue("sleep", {"seconds": 200})
    eventually(lambda: len(probe.starts()) == 2, message=first.text)
    waiting = work.ids("noop", WAITING)
    (begun_in,) = probe.pids()

    mysql_server.general_log(True)
    leaves = Exit(first)
    first.signal(signal.SIGTERM)
    told = time.time()
    eventually(lambda: " stops: " in first.text(), message=first.text)
    gate.touch()
    second = work.worker("-c", "4").ready()
    wait_until_blocked(redis_client, second)
    listening = time.time()
    more = work.ids("noop", 10)

    left = leaves.wait()
    assert first.wait() == 0
    mysql_server.general_log(False)
    assert left - told < GRACE_S + 2 + weather.slack_s
    task = work.app.get(long.id)
    assert task is not None
    assert (short.state(), task.status in {"pending", "running"}) == ("succeeded", True)
    eventually(lambda: probe.starts()[long.id] == 2, message=second.text)
    again = probe.marks("start", long.id)[1]
    assert again.at - max(left, listening) < 2.0 + weather.slack_s
    assert again.attempt == 1
    task = work.app.get(long.id)
    assert task is not None
    assert [(a.attempt, a.outcome) for a in task.attempts_log] == [(1, "interrupted")]
    assert task.attempts == 1

    assert work.ended([*waiting, *more]) == {"succeeded": WAITING + 10}
    assert {m.task_id for m in probe.marks("start") if m.pid == begun_in} == {short.id, long.id}
    claims = [line for line in mysql_server.read_general_log().splitlines() if "SET status = 'running'" in line]
    assert claims, "the second worker's"
    assert not [line for line in claims if "'first" in line], "something was claimed after the signal"
    starts = probe.starts()
    assert all(starts[task_id] == 1 for task_id in [short.id, *waiting, *more])


def test_sigterm_in_the_moment_of_the_pop(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    rng = random.Random(20)
    at_once = size(3, 4)
    ids: list[int] = []
    for _ in range(size(2, 50)):
        workers = [
            work.worker("-c", "2", "--grace", "30", "--no-reconcile", "--no-mover").ready() for _ in range(at_once)
        ]
        for worker in workers:
            wait_until_blocked(redis_client, worker)
        for worker in workers:
            ids += work.ids("noop", 3)
            time.sleep(rng.uniform(0, 0.01))  # the moment of the signal is what is tried here
            worker.signal(signal.SIGTERM)
            ids += work.ids("noop", 3)
        for worker in workers:
            assert worker.wait() == 0
    work.burst("-c", "2", "--no-reconcile")
    assert work.statuses(ids) == {"succeeded": len(ids)}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
