"""B21: what a handler raises that is no ``Exception`` is a failed attempt like any other.

Required: SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError and other BaseExceptions, out of ``def`` and
``async def`` handlers and out of asyncio tasks that these start, count as one failed attempt, with type and text on
record, and are retried and buried by the rules. The worker and its child stay the same processes and begin the next
task within a second. A real SIGINT still stops the worker.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.apps.hostile import NO_EXCEPTIONS
from tests.probe import Probe
from tests.scenarios.truth import assert_settled
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]

APP = "tests.apps.hostile:app"
HANDLERS = {"raises": "next", "araises": "anext", "gathers": "anext"}


def test_each_is_one_failed_attempt_and_the_next_task_runs_at_once(work: Bench, probe: Probe, weather: Weather) -> None:
    expected, following = {}, []
    for name, after in HANDLERS.items():
        for kind, (_, error_type, text) in NO_EXCEPTIONS.items():
            bad = work.app.enqueue(name, {"kind": kind}, max_retries=1)
            expected[bad.id] = (name, kind, error_type, text)
            following.append((bad.id, work.app.enqueue(after, {}).id))
    worker = work.worker("-c", "1", app=APP).ready()
    (child,) = worker.children()
    good = [task_id for _, task_id in following]

    assert work.ended([*expected, *good]) == {"dead": len(expected), "succeeded": len(good)}

    starts = probe.starts()
    first_start = {m.task_id: m.at for m in reversed(probe.marks("start"))}
    for task_id, (name, kind, error_type, text) in expected.items():
        task = work.app.get(task_id)
        assert task is not None
        assert (task.attempts, task.dead_reason) == (2, "retries_exhausted"), (name, kind)
        assert starts[task_id] == 2, (name, kind)
        assert (task.error_type, task.last_error) == (error_type, text), (name, kind)
        attempts = [(a.attempt, a.outcome, a.error_type, a.error) for a in task.attempts_log]
        assert attempts == [(n, "failed", error_type, text) for n in (1, 2)], (name, kind)
    late = {pair: first_start[pair[1]] - first_start[pair[0]] for pair in following}
    assert max(late.values()) < 1.0 + weather.slack_s, late
    assert worker.process.poll() is None
    assert [p.pid for p in worker.children()] == [child.pid]
    assert probe.pids() == {child.pid}
    assert_settled(work, probe, [*expected, *good])

    os.killpg(worker.pid, signal.SIGINT)  # as Ctrl-C in a terminal does: to the supervisor and its child
    assert worker.wait() == 0
