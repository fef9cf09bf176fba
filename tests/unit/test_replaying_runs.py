"""The fuse of a replay run, and that a run goes on after any death, whoever carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tandemq import Filter, InvalidTask, TandemQ
from tandemq.core import crash
from tandemq.core.errors import StoreUnavailable
from tandemq.reconciler import Reconciler
from tandemq.replaying import Replays
from tandemq.store.runs import ReplayRun
from tandemq.testing import FakeClock, run_until_idle
from tests.unit.replaying_bed import EVERY, Killed, bury, lives, register, states, summary, working


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[TandemQ]:
    """An app with small pages and chunks."""
    monkeypatch.setattr("tandemq.replaying.runner.PAGE", 7)
    monkeypatch.setattr("tandemq.replaying.pace.CHUNK", 5)
    yield register(tandemq_app)
    crash.arm(None)


def test_the_fuse_stops_after_the_canary_until_the_cause_is_mended(app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(app, 60)
    fuse: dict[str, Any] = {"canary": "10%", "stop_if_failing": "20%"}

    answer = app.dead.replay(where=EVERY, on_progress=working(app), **fuse)

    assert summary(answer) == (6, 0, 0, 54, "paused")
    assert answer.note == "6 of 6 replayed tasks died again (100%), more than 20%: the cause is not mended"
    first = [i for i, n in zip(ids, lives(app, ids), strict=True) if n]
    assert len(first) == 6
    assert first != ids[:6] and first != ids[-6:]  # noqa: PT018 - a sample of all of them
    assert answer.run_id is not None
    tandemq_clock.advance(1)
    app.dead.replays.resume(answer.run_id)
    answer = app.dead.replays.follow(answer.run_id, on_progress=working(app))
    assert summary(answer) == (12, 0, 0, 48, "paused")  # another sample, and the same end
    app.mended.append(1)  # type: ignore[attr-defined]
    tandemq_clock.advance(1)
    app.dead.replays.resume(answer.run_id)
    answer = app.dead.replays.follow(answer.run_id, on_progress=working(app))
    assert summary(answer) == (60, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 60
    run_until_idle(app)
    assert states(app, ids) == {"succeeded": 48, "dead": 12}


def test_a_mended_cause_lets_all_through(app: TandemQ) -> None:
    ids = bury(app, 30)
    app.mended.append(1)  # type: ignore[attr-defined]

    answer = app.dead.replay(where=EVERY, canary=3, stop_if_failing=0.0, on_progress=working(app))

    assert summary(answer) == (30, 0, 0, 0, "done")
    run_until_idle(app)
    assert states(app, ids) == {"succeeded": 30}


def test_a_sample_that_somebody_else_has_taken_says_nothing(app: TandemQ, tandemq_clock: FakeClock) -> None:
    """Another one is drawn, as long as there is something to draw from."""
    ids = bury(app, 20)
    taken: list[int] = []

    def take(run: ReplayRun) -> None:
        chosen = [item.task_id for item in app.dead.replays.items(run.id, "waiting") if item.is_canary]
        if chosen and not taken:
            taken.extend(chosen)
            app.store.replay(chosen)
        run_until_idle(app)

    answer = app.dead.replay(where=EVERY, limit=20, canary=1, on_progress=take)
    assert taken
    assert answer.state == "paused"
    assert answer.moved == 1  # the second sample, which died again
    assert sum(lives(app, ids)) == 2


def test_one_that_somebody_else_replayed_since_had_died(app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(app, 20)
    again: list[int] = []

    def replay_once_more(run: ReplayRun) -> None:
        run_until_idle(app)
        moved = [i for i, n in zip(ids, lives(app, ids), strict=True) if n == 1]
        if moved and not again:
            again.extend(moved)
            app.store.replay(moved)

    answer = app.dead.replay(where=EVERY, canary=2, on_progress=replay_once_more)
    assert again
    assert answer.state == "paused"
    assert answer.moved == 2


def test_only_a_process_that_knows_the_handlers_edits(app: TandemQ, tandemq_clock: FakeClock) -> None:
    bury(app, 3)
    with pytest.raises(InvalidTask, match="edit and detach"):
        app.dead.replay(where=EVERY, edit={"city": "Bern"}, detach=True)

    def die(_: ReplayRun) -> None:
        raise Killed

    with pytest.raises(Killed):
        app.dead.replay(where=EVERY, edit={"city": "Bern"}, rate="1/s", on_progress=die)
    reconciler = Reconciler(app.store, app.broker, tandemq_clock, Random(1), app.settings, "leader")
    for _ in range(20):
        tandemq_clock.advance(max(1.0, reconciler.step()))
    (run,) = app.dead.replays.list(limit=10)
    assert (run.state, "application loaded" in run.note or "application is loaded" in run.note) == ("paused", True)


def test_some_failures_are_borne(app: TandemQ) -> None:
    bury(app, 3)
    bury(app, 1, "mail")
    app.mended.append(1)  # type: ignore[attr-defined]

    answer = app.dead.replay(where=EVERY, canary="100%", stop_if_failing="25%", on_progress=working(app))

    assert summary(answer) == (4, 0, 0, 0, "done")


def test_a_canary_that_does_not_end_pauses_the_run_and_is_waited_for_again(
    app: TandemQ, tandemq_clock: FakeClock
) -> None:
    ids = bury(app, 10)
    begun = tandemq_clock.monotonic()

    answer = app.dead.replay(where=EVERY, canary=4, canary_wait=90)

    assert summary(answer) == (4, 0, 0, 6, "paused")
    assert answer.note.startswith("the ends of the canary did not come within 90 s: 0 of 4 have ended")
    assert 90 <= tandemq_clock.monotonic() - begun < 95
    app.mended.append(1)  # type: ignore[attr-defined]
    assert answer.run_id is not None
    app.dead.replays.resume(answer.run_id)
    answer = app.dead.replays.follow(answer.run_id, on_progress=working(app))
    assert summary(answer) == (10, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 10


def test_the_fuse_goes_on_watching_while_the_run_is_running(app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(app, 60)

    answer = app.dead.replay(where=EVERY, rate="10/s", stop_if_failing="50%", on_progress=working(app))

    assert answer.state == "paused"
    assert 10 <= answer.moved <= 25
    app.mended.append(1)  # type: ignore[attr-defined]
    tandemq_clock.advance(1)
    assert answer.run_id is not None
    app.dead.replays.resume(answer.run_id)
    answer = app.dead.replays.follow(answer.run_id, on_progress=working(app))
    assert summary(answer) == (60, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 60


@pytest.mark.parametrize("point", ["replay.before_commit", "replay.after_commit", "replay.after_push"])
@pytest.mark.parametrize("at", [1, 2, 6])
def test_a_run_goes_on_after_a_death_at_any_point(app: TandemQ, tandemq_clock: FakeClock, point: str, at: int) -> None:
    ids = bury(app, 30)

    def die() -> None:
        raise Killed

    crash.arm_call(point, die, at)
    dying = Replays(app._links, app.registry)
    dying_store = app.store.release_run
    app.store.release_run = lambda hold: None  # type: ignore[method-assign]  # the dead release nothing
    with pytest.raises(Killed):
        dying.replay(where=EVERY)
    app.store.release_run = dying_store  # type: ignore[method-assign]
    crash.arm(None)
    (run,) = app.dead.replays.list()
    assert run.moved == 5 * (at - (point == "replay.before_commit"))
    begun = tandemq_clock.monotonic()

    answer = app.dead.replays.follow(run.id, take_over=at > 1)

    assert summary(answer) == (30, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 30
    waited = tandemq_clock.monotonic() - begun
    assert waited >= 9 if at == 1 else waited < 1  # without taking over, the hold has to run out


CALLS = ("create_run", "hold_run", "select_items", "mark_canary", "turn_run", "candidates", "move_items", "ends_of")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "at"), [*((name, 1) for name in CALLS), ("select_items", 2), ("move_items", 3)])
def test_a_run_goes_on_after_a_death_at_any_call_of_the_store(app: TandemQ, name: str, at: int, when: str) -> None:
    ids = bury(app, 12)
    app.mended.append(1)  # type: ignore[attr-defined]
    _die_at(app, name, at, when)

    if not app.dead.replays.list():  # it died before there was a run
        app.dead.replay(where=EVERY)
    (run,) = app.dead.replays.list()
    answer = app.dead.replays.follow(run.id, on_progress=healing(app), take_over=True)

    assert lives(app, ids) == [1] * 12
    assert (answer.moved, answer.state) == (12, "done")


def healing(app: TandemQ) -> Callable[[ReplayRun], None]:
    """A worker and a reconciler beside the run."""
    reconciler = Reconciler(app.store, app.broker, app.clock, Random(1), app.settings, "healer", lead=False)

    def both(_: ReplayRun) -> None:
        reconciler.run_once()
        run_until_idle(app)

    return both


def _die_at(app: TandemQ, name: str, at: int, when: str) -> None:
    inner, left = getattr(app.store, name), [at]

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and when == "before":
            raise Killed
        answer = inner(*args, **kwargs)
        if left[0] == 0:
            raise Killed
        return answer

    setattr(app.store, name, call)
    with pytest.raises(Killed):
        app.dead.replay(where=EVERY, canary=3, on_progress=working(app))
    delattr(app.store, name)


def test_the_leading_reconciler_carries_out_what_nobody_does(app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(app, 40)
    other = bury(app, 5, "mail")
    detached = app.dead.replay(where=Filter(task_type="pay"), rate="10/s", detach=True)
    assert (detached.state, detached.moved) == ("selecting", 0)
    app.dead.replay(other, detach=True, limit=100)
    reconciler = Reconciler(app.store, app.broker, tandemq_clock, Random(1), app.settings, "leader")

    passes, survey = [0], app.store.open_levels

    def open_levels() -> Any:
        passes[0] += 1
        return survey()

    app.store.open_levels = open_levels  # type: ignore[method-assign]
    begun = tandemq_clock.monotonic()
    while app.dead.replays.list(is_open=True):
        tandemq_clock.advance(max(0.001, reconciler.step()))
        assert tandemq_clock.monotonic() - begun < 60

    assert (lives(app, ids), lives(app, other)) == ([1] * 40, [1] * 5)
    assert 3.5 < tandemq_clock.monotonic() - begun < 7  # the pace holds between the passes, too
    assert passes[0] < 6  # of one every two seconds
    assert reconciler.last_report.alarms == ()


@pytest.mark.parametrize("orders", ["[1", '{"rate":"x"}', '{"limit":"x"}'])
def test_a_run_that_cannot_be_carried_out_is_paused_and_stops_nothing_else(
    app: TandemQ, tandemq_clock: FakeClock, orders: str
) -> None:
    ids = bury(app, 10)
    where = '{"where":{"state":"dead"}}'
    bad = app.store.create_run(created_by="x", reason="", selection=where, orders=orders, holder="", hold_s=0)
    app.dead.replay(where=EVERY, detach=True)
    reconciler = Reconciler(app.store, app.broker, tandemq_clock, Random(1), app.settings, "leader")

    alarms: set[str] = set()
    for _ in range(30):
        reconciler.step()
        alarms.update(reconciler.last_report.alarms)
        tandemq_clock.advance(0.5)
    assert lives(app, ids) == [1] * 10
    found = app.dead.replays.show(bad.id)
    assert (found.state, found.note.startswith("stopped by an error: ")) == ("paused", True)
    assert [alarm for alarm in alarms if f"replay run {bad.id} is paused" in alarm]


def test_the_reconciler_leaves_runs_that_somebody_carries_out_until_he_dies(
    app: TandemQ, tandemq_clock: FakeClock
) -> None:
    ids = bury(app, 10)
    where = '{"where":{"state":"dead"}}'
    app.store.create_run(created_by="x", reason="", selection=where, orders="{}", holder="him", hold_s=10)
    reconciler = Reconciler(app.store, app.broker, tandemq_clock, Random(1), app.settings, "leader")

    for _ in range(4):
        reconciler.step()
        assert sum(lives(app, ids)) == 0
        tandemq_clock.advance(2)
    tandemq_clock.advance(3)
    for _ in range(10):
        reconciler.step()
        tandemq_clock.advance(0.5)
    assert lives(app, ids) == [1] * 10


def test_a_database_that_is_away_stops_the_follower_and_not_the_run(app: TandemQ) -> None:
    ids = bury(app, 12)
    inner = app.store.move_items

    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    app.store.move_items = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        app.dead.replay(where=EVERY)
    app.store.move_items = inner  # type: ignore[method-assign]
    (run,) = app.dead.replays.list()
    assert (run.state, run.is_held) == ("running", False)
    assert summary(app.dead.replays.follow(run.id)) == (12, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 12
