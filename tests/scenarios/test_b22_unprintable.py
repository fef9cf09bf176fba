"""B22: an exception that cannot be printed, compared or pickled is recorded all the same.

Required: exceptions whose text or repr raises or is no text, that need constructor arguments, hold a socket, a lock or
a lambda, have a cyclic cause, 10,000 members or five megabytes of text, end like any other: a failed attempt with the
name of the class and some text, valid UTF-8 of less than 64 KB, retried and then dead, and no harm to the worker.
"""

from __future__ import annotations

import pytest

from tests.apps.hostile import UNPRINTABLE
from tests.probe import Probe
from tests.scenarios.truth import assert_settled, sql
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]

APP = "tests.apps.hostile:app"
#: What nobody can ask for the name of its class.
NAMELESS = {"nameless": "Exception"}


def class_of(kind: str) -> str:
    return NAMELESS.get(kind) or type(UNPRINTABLE[kind]()).__name__


def assert_bounded_text(*columns: bytes) -> None:
    for column in columns:
        assert 0 < len(column) < 64 * 1024
        column.decode("utf-8", "strict")


def test_each_is_recorded_and_retried_and_the_worker_goes_on(work: Bench, probe: Probe) -> None:
    kinds = {
        work.app.enqueue(name, {"kind": kind}, max_retries=1).id: (name, kind)
        for kind in UNPRINTABLE
        for name in ("raises", "araises")
    }
    worker = work.worker("-c", "1", app=APP).ready()
    (child,) = worker.children()

    assert work.ended(list(kinds)) == {"dead": len(kinds)}

    good = [work.app.enqueue(name, {}).id for name in ("next", "anext")]
    assert work.ended(good) == {"succeeded": 2}
    starts = probe.starts()
    for task_id, (name, kind) in kinds.items():
        task = work.app.get(task_id)
        assert task is not None
        assert (task.attempts, task.dead_reason) == (2, "retries_exhausted"), (name, kind)
        assert starts[task_id] == 2, (name, kind)
        assert task.error_type == class_of(kind), (name, kind)
        assert [(a.outcome, a.error_type) for a in task.attempts_log] == [("failed", class_of(kind))] * 2, (name, kind)
        texts = sql(work, "SELECT CAST(last_error AS BINARY) FROM {t}tasks WHERE id = :id", id=task_id)
        texts += sql(
            work,
            "SELECT CAST(error AS BINARY), CAST(traceback AS BINARY) FROM {t}task_attempts WHERE task_id = :id",
            id=task_id,
        )
        assert len(texts) == 3
        for row in texts:
            assert_bounded_text(*row)
    assert worker.process.poll() is None
    assert probe.pids() == {child.pid}
    assert len(worker.text()) < 1000 * len(kinds) * 10
    assert_settled(work, probe, [*kinds, *good])
