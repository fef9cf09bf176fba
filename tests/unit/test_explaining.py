"""``why``: every case of a task that is (not) running, as one true sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandemq import NonRetryable, RetryPolicy, TandemQ, explaining
from tandemq.acting import os_user
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.lifecycle import Bury, DeadReason, Failure
from tandemq.core.task import Level
from tandemq.store.answers import Filter, Settlement, WorkerRecord
from tandemq.testing import FakeClock, run_until_idle

LOW = Level("default", 0)


class Case:
    """An app with its clock, and short ways to bring a task about."""

    def __init__(self, app: TandemQ, clock: FakeClock) -> None:
        self.app, self.clock = app, clock

        @app.task(name="fails", retry=RetryPolicy(max_retries=2, backoff=30, jitter=0))
        def fails() -> None:
            raise ValueError("no stock.\nSecond line")

        @app.task(name="dies")
        def dies() -> None:
            raise NonRetryable("for good")

        @app.task(name="works")
        def works() -> int:
            return 1

    def put(self, name: str = "works", **options: Any) -> int:
        return self.app.enqueue(name, {}, **options).id

    def worker(self, name: str = "w-1", queues: str = "other,default", state: str = "running") -> None:
        now = self.clock.now()
        record = WorkerRecord(name, name, "host", 1, queues, 8, 1, "running", now, now, True)
        self.app.store.worker_started(record)
        self.app.store.worker_beat(name, state)

    def claim(self, task_id: int, *, known: set[str] | None = None) -> Any:
        return self.app.store.claim(
            [task_id], token=7, worker_id="w-1", lease_s=30, free=1, known=known, unknown_task_s=600
        )

    def run(self, task_id: int) -> int:
        run_until_idle(self.app)
        return task_id

    def prune(self) -> int:
        task_id = self.run(self.put())
        self.clock.advance(10)
        self.app.prune(5)
        return task_id


T = "2030-01-01T00:00:"


def _not_due(c: Case) -> int:
    return c.put(delay=50)


def _not_due_by_a_snooze_or_run_at(c: Case) -> int:
    from datetime import timedelta

    return c.put(run_at=c.clock.now() + timedelta(seconds=9.5))


def _no_worker(c: Case) -> int:
    c.worker("w-2", "other")
    return c.put()


def _worker_gone(c: Case) -> int:
    c.worker("w-0")
    c.clock.advance(1)
    c.worker("w-1")
    c.clock.advance(31)
    return c.put()


def _worker_drains(c: Case) -> int:
    c.worker(state="draining")
    return c.put()


def _worker_late(c: Case) -> int:
    c.worker(state="late")
    return c.put()


def _unknown(c: Case) -> int:
    task_id = c.put("stranger")
    c.clock.advance(1)
    c.claim(task_id, known={"works"})
    return task_id


def _unknown_and_due(c: Case) -> int:
    task_id = _unknown(c)
    c.clock.advance(5)
    return task_id


def _expired(c: Case) -> int:
    task_id = c.put(expires=5)
    c.clock.advance(6)
    return task_id


def _next(c: Case) -> int:
    c.worker()
    return c.put()


def _one_ahead(c: Case) -> int:
    c.worker()
    c.put()
    return c.put()


def _some_ahead(c: Case) -> int:
    c.worker("w-1")
    c.worker("w-2")
    for _ in range(3):
        c.put()
    c.put(priority="high")
    c.put(priority=7)
    task_id = c.put()
    c.put()
    return task_id


def _very_many_ahead(c: Case) -> int:
    c.worker()
    for _ in range(6):
        c.put()
    c.clock.advance(1)
    return c.put()


def _many_of_higher_priority(c: Case) -> int:
    c.worker()
    for _ in range(6):
        c.put(priority="high")
    return c.put()


def _lost_behind_copies(c: Case) -> int:
    """The list is long, but not by tasks that are older: the id is not there."""
    c.worker()
    task_id = c.put()
    c.app.broker.pop([LOW], limit=1, wait_s=0)
    c.app.broker.push(LOW, [10**6] * 9)
    return task_id


def _lost_with_all_before_it(c: Case) -> int:
    """Redis was wiped: the rows before it are many, but they do not stand in a list."""
    task_id = _very_many_ahead(c)
    c.app.broker.pop([LOW], limit=99, wait_s=0)
    return task_id


def _lost(c: Case) -> int:
    c.worker()
    task_id = c.put()
    c.app.broker.pop([LOW], limit=1, wait_s=0)
    return task_id


def _not_moved(c: Case) -> int:
    c.worker()
    task_id = c.put(delay=5)
    c.clock.advance(8)
    return task_id


def _retry_is_due(c: Case) -> int:
    c.worker()
    task_id = c.run(c.put("fails"))
    c.clock.advance(30)
    c.app.broker.promote(LOW, now_ms=10**15, limit=9)
    return task_id


def _running(c: Case) -> int:
    task_id = c.put()
    c.clock.advance(3)
    c.claim(task_id)
    return task_id


def _running_to_be_stopped(c: Case) -> int:
    task_id = _running(c)
    c.clock.advance(1)
    c.app.cancel(task_id, who="ann", reason="too slow.")
    return task_id


def _lease_is_out(c: Case) -> int:
    task_id = _running(c)
    c.clock.advance(40)
    return task_id


def _no_lease(c: Case) -> int:
    task_id = _running(c)
    c.app.store.db.write(lambda tx: tx.write("DELETE FROM tandemq_claims"))  # type: ignore[attr-defined]
    return task_id


def _lease_lost(c: Case) -> int:
    task_id = c.put()
    (lease,) = c.claim(task_id).leases
    gone = Bury(DeadReason.LEASE_LOST, Failure("LeaseLost", "the lease ran out"))
    c.app.store.finish([Settlement(lease, gone)], closing=[7], worker_id="w-1")
    return task_id


def _cancelled(c: Case) -> int:
    task_id = c.put(delay=9)
    c.clock.advance(2)
    c.app.cancel(task_id, who="ann", reason="customer\n left")
    return task_id


def _cancelled_by_sql(c: Case) -> int:
    task_id = c.put(delay=9)
    c.app.store.cancel(task_id)
    return task_id


def _purged(c: Case) -> int:
    task_id = c.run(c.put("dies"))
    c.clock.advance(4)
    c.app.dead.purge([task_id], who="ann", reason="test data")
    return task_id


def _purged_with_others(c: Case) -> int:
    ids = [c.put("dies") for _ in range(3)]
    c.run(ids[0])
    c.app.dead.purge(where=Filter(task_type="dies"))
    return ids[1]


CASES: list[tuple[Callable[[Case], int], str]] = [
    (_not_due, f"is not due before {T}50.000000Z."),
    (_not_due_by_a_snooze_or_run_at, f"is not due before {T}09.500000Z."),
    (
        _no_worker,
        f"is ready since {T}00.000000Z, but no live worker serves the queue 'default'; none that did was seen in the"
        " last hour.",
    ),
    (
        _worker_gone,
        f"is ready since {T}32.000000Z, but no live worker serves the queue 'default'; the last one that did, w-1, was"
        f" seen at {T}01.000000Z.",
    ),
    (
        _worker_drains,
        f"is ready since {T}00.000000Z, but no live worker serves the queue 'default'; the last one that did, w-1, was"
        f" seen at {T}00.000000Z.",
    ),
    (
        _worker_late,
        f"is ready since {T}00.000000Z and waits its turn: no task is ahead of it in the queue 'default', which 1 live"
        " worker serves; but w-1 is late, see tandemq health.",
    ),
    (_unknown, f"waits since {T}01.000000Z for a worker that knows its type 'stranger', next look at {T}02.000000Z."),
    (
        _unknown_and_due,
        f"waits since {T}01.000000Z for a worker that knows its type 'stranger', it is about to be looked at again.",
    ),
    (_expired, f"was to start before {T}05.000000Z, did not, and is about to be dead (expired)."),
    (
        _next,
        f"is ready since {T}00.000000Z and waits its turn: no task is ahead of it in the queue 'default', which 1 live"
        " worker serves.",
    ),
    (
        _one_ahead,
        f"is ready since {T}00.000000Z and waits its turn: 1 task is ahead of it in the queue 'default', which 1 live"
        " worker serves.",
    ),
    (
        _some_ahead,
        f"is ready since {T}00.000000Z and waits its turn: 5 tasks are ahead of it in the queue 'default', which 2 live"
        " workers serve.",
    ),
    (
        _very_many_ahead,
        f"is ready since {T}01.000000Z and waits its turn: more than 5 tasks are ahead of it in the queue 'default',"
        " which 1 live worker serves.",
    ),
    (
        _many_of_higher_priority,
        f"is ready since {T}00.000000Z and waits its turn: more than 5 tasks are ahead of it in the queue 'default',"
        " which 1 live worker serves.",
    ),
    (_lost, f"is ready since {T}00.000000Z and its id was not in Redis and has been pushed now."),
    (
        _lost_with_all_before_it,
        f"is ready since {T}01.000000Z and its id was not in Redis and has been pushed now.",
    ),
    (_lost_behind_copies, f"is ready since {T}00.000000Z and its id was not in Redis and has been pushed now."),
    (
        _not_moved,
        f"is ready since {T}05.000000Z and its id was still among the delayed ones, which the mover empties, and has"
        " been pushed now.",
    ),
    (
        lambda c: c.run(c.put("fails")),
        f"failed and waits for retry 1 of 2, due at {T}30.000000Z: ValueError: no stock.",
    ),
    (
        _retry_is_due,
        f"is ready since {T}30.000000Z for retry 1 of 2 and waits its turn: no task is ahead of it in the queue"
        " 'default', which 1 live worker serves.",
    ),
    (
        _running,
        f"is running since {T}03.000000Z on worker w-1, begun 1 of 4 runs; its lease ends at {T}33.000000Z unless"
        " renewed.",
    ),
    (
        _running_to_be_stopped,
        f"is running since {T}03.000000Z on worker w-1, begun 1 of 4 runs; it was asked to stop at {T}04.000000Z by ann"
        f" (too slow); its lease ends at {T}33.000000Z unless renewed.",
    ),
    (
        _lease_is_out,
        f"is running since {T}03.000000Z on worker w-1, begun 1 of 4 runs; its lease ran out at {T}33.000000Z, so the"
        " reconciler will end this run.",
    ),
    (
        _no_lease,
        f"is running since {T}03.000000Z on worker w-1, begun 1 of 4 runs; it has no lease any more, so the reconciler"
        " will end this run.",
    ),
    (
        lambda c: c.run(c.put("dies")),
        f"is dead (non_retryable) since {T}00.000000Z, after 1 of 4 runs: NonRetryable: for good.",
    ),
    (_lease_lost, f"is dead (lease_lost) since {T}00.000000Z, after 1 of 4 runs: LeaseLost: the lease ran out."),
    (_cancelled, f"was cancelled at {T}02.000000Z by ann (customer left)."),
    (_cancelled_by_sql, f"was cancelled at {T}00.000000Z."),
    (lambda c: c.run(c.put()), f"succeeded at {T}00.000000Z, in run 1."),
    (lambda c: 4711, "does not exist: it was never stored, was rolled back, or was purged."),
    (_purged, f"does not exist: it was purged at {T}04.000000Z by ann (test data)."),
    (_purged_with_others, f"does not exist: it was purged at {T}00.000000Z by {os_user()}."),
    (
        Case.prune,
        f"does not exist: it was never stored, was rolled back, or was removed by retention (which last removed 1 tasks"
        f" at {T}10.000000Z).",
    ),
]


@pytest.mark.parametrize(("make", "says"), CASES, ids=[make.__name__.strip("_<>") for make, _ in CASES])
def test_why_says_what_is_so(
    tandemq_app: TandemQ,
    tandemq_clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Case], int],
    says: str,
) -> None:
    monkeypatch.setattr(explaining, "AHEAD", 5)
    task_id = make(Case(tandemq_app, tandemq_clock))

    said = tandemq_app.why(task_id)

    assert said == f"Task {task_id} {says}"
    assert "\n" not in said


@pytest.mark.parametrize("make", [_lost, _lost_behind_copies, _not_moved])
def test_an_id_that_was_missing_runs_next(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch, make: Callable[[Case], int]
) -> None:
    monkeypatch.setattr(explaining, "AHEAD", 5)
    task_id = make(Case(tandemq_app, tandemq_clock))
    tandemq_app.why(task_id)

    assert tandemq_app.broker.pop([LOW], limit=1, wait_s=0).ids == (task_id,)
    tandemq_app.broker.push_next(LOW, [task_id])
    assert "no task is ahead of it" in tandemq_app.why(task_id), "pushed once"


def test_what_was_taken_while_it_was_looked_for_is_not_pushed(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tandemq_app, tandemq_clock)
    task_id = _lost(case)
    delayed = tandemq_app.broker.delayed_sample

    def meanwhile(*args: Any) -> Any:
        case.claim(task_id)
        return delayed(*args)

    monkeypatch.setattr(tandemq_app.broker, "delayed_sample", meanwhile)
    assert tandemq_app.why(task_id).endswith("and has just been taken.")
    assert tandemq_app.broker.depth(LOW) == 0


def test_with_redis_away_it_says_so(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tandemq_app, tandemq_clock)
    case.worker()
    task_id = case.put()

    def away(*_: Any) -> Any:
        raise BrokerUnavailable("Connection refused.")

    monkeypatch.setattr(tandemq_app.broker, "depth", away)
    monkeypatch.setattr(tandemq_app.broker, "levels", away)
    assert tandemq_app.why(task_id) == (
        f"Task {task_id} is ready since {T}00.000000Z, and its id waits for Redis, which is away or not ours, to be"
        " pushed or popped (Connection refused)."
    )
