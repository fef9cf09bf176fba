"""Retention as an app calls it: what goes, what stays, how it rests, and what it may be told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tandemq import InvalidTask, NonRetryable, TandemQ
from tandemq.pruning import Pruned
from tandemq.testing import FakeClock, run_until_idle

DAY = 86_400.0


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> TandemQ:
    """An app whose batches are of two tasks."""
    monkeypatch.setattr("tandemq.pruning.BATCH", 2)

    @tandemq_app.task(name="add")
    def add(n: int) -> int:
        return n

    @tandemq_app.task(name="die")
    def die(n: int) -> int:
        raise NonRetryable("for good")

    return tandemq_app


def run(app: TandemQ, count: int, name: str = "add", **options: Any) -> list[int]:
    """Ids of tasks that have been run just now."""
    ids = [app.enqueue(name, {"n": n}, **options).id for n in range(count)]
    run_until_idle(app)
    return ids


def left(app: TandemQ, ids: Iterable[int]) -> list[int]:
    return [i for i in ids if app.get(i) is not None]


def test_succeeded_and_cancelled_tasks_go_when_they_are_old_enough(app: TandemQ, tandemq_clock: FakeClock) -> None:
    old = run(app, 5)
    dead = run(app, 3, "die")
    waiting = app.enqueue("add", {"n": 1}, delay=30 * DAY)
    cancelled = app.enqueue("add", {"n": 2}, delay=10)
    cancelled.cancel()
    tandemq_clock.advance(7 * DAY)
    young = run(app, 2)

    assert app.prune(timedelta(days=7)) == Pruned(0, 0, datetime(2030, 1, 1, tzinfo=UTC), True)
    assert app.prune(6.9 * DAY, dry_run=True)[:2] == (6, 0)
    assert left(app, old) == old
    answer = app.prune(6.9 * DAY)

    assert (answer.removed, answer.kept, answer.complete) == (6, 0, True)
    assert left(app, [*old, *dead, waiting.id, cancelled.id, *young]) == [*dead, waiting.id, *young]
    assert app.prune(6.9 * DAY)[:2] == (0, 0)
    assert app.stats()["ended"]["purged"] == 6
    assert app.prune(6.9 * DAY, statuses=["dead"]).removed == 3


def test_a_queue_a_type_and_a_limit_narrow_it(app: TandemQ, tandemq_clock: FakeClock) -> None:
    mail, other = run(app, 5, queue="mail"), run(app, 2)
    tandemq_clock.advance(60)
    seen: list[int] = []

    assert app.prune(30, task_type="die", queue="mail")[:2] == (0, 0)
    first = app.prune(30, queue="mail", limit=3, on_batch=seen.append)
    assert (first.removed, first.complete, seen) == (3, False, [2, 3])
    assert app.prune(30, queue="mail", limit=3, dry_run=True)[::3] == (2, True)
    rest = app.prune(30, task_type="add", limit=2)
    assert (rest.removed, rest.complete) == (2, False)
    assert app.prune(30, task_type="add", limit=9)[::3] == (2, True)
    assert left(app, [*mail, *other]) == []


def test_it_rests_after_a_batch_as_long_as_that_took(
    app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(app, 4)
    tandemq_clock.advance(60)
    rests: list[float] = []
    prune, took = app.store.prune, iter([0.02, 30.0])

    def slow(*args: Any, **options: Any) -> int:
        tandemq_clock.advance(next(took))
        return prune(*args, **options)

    monkeypatch.setattr(app.store, "prune", slow)
    monkeypatch.setattr(tandemq_clock, "sleep", rests.append)

    assert app.prune(30).removed == 4
    assert rests == pytest.approx([0.02, 0.5])


def test_what_is_replayed_meanwhile_stays_and_is_told(
    app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = app.enqueue("add", {"n": 1})
    handle.cancel()
    tandemq_clock.advance(60)
    prune = app.store.prune

    def too_late(*args: Any, **options: Any) -> int:
        app.dead.replay([handle.id])
        return prune(*args, **options)

    monkeypatch.setattr(app.store, "prune", too_late)

    assert app.prune(30)[:2] == (0, 1)
    assert handle.state() == "ready"


@pytest.mark.parametrize(
    ("age", "options", "says"),
    [
        (-1, {}, "older_than"),
        (1, {"statuses": ["running"]}, "not running"),
        (1, {"statuses": []}, "not nothing"),
        (1, {"statuses": ["dead", "lost"]}, "not dead, lost"),
        (1, {"queue": "a b"}, "queue"),
        (1, {"task_type": ""}, "type"),
        (1, {"limit": 0}, "limit must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(app: TandemQ, age: float, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says):
        app.prune(age, **options)


def test_any_age_is_an_age(app: TandemQ) -> None:
    run(app, 1)

    assert app.prune(1e300) == Pruned(0, 0, datetime(1970, 1, 1, tzinfo=UTC), True)
    assert app.prune(0, statuses="succeeded").removed == 0, "ended in this very microsecond"
