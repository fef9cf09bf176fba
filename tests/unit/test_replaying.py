"""Replays as an app calls them: what goes, at which pace, what stays, and what operators do with runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tandemq import Filter, InvalidTask, TandemQ, TaskNotFound
from tandemq.core import crash
from tandemq.store.runs import ReplayRun, RunState
from tandemq.testing import FakeClock, run_until_idle
from tests.contract.store_replaying import refuse
from tests.unit.replaying_bed import EVERY, bury, lives, register, states, summary


@pytest.fixture
def app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[TandemQ]:
    """An app with small pages and chunks."""
    monkeypatch.setattr("tandemq.replaying.runner.PAGE", 7)
    monkeypatch.setattr("tandemq.replaying.pace.CHUNK", 5)
    yield register(tandemq_app)
    crash.arm(None)


def test_all_of_it_goes_once_in_chunks_oldest_first(app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(app, 23)
    seen: list[ReplayRun] = []

    answer = app.dead.replay(where=EVERY, on_progress=seen.append, reason="mended", who="ann")

    assert summary(answer) == (23, 0, 0, 0, "done")
    assert lives(app, ids) == [1] * 23
    assert [run.moved for run in seen if run.state is RunState.RUNNING][-1] == 23
    (record,) = app.admin.audit().items
    assert (record.action, record.who, record.reason, record.n) == ("replay", "ann", "mended", 23)
    assert record.run_id == answer.run_id
    assert record.details["selection"] == {"where": {"state": "dead"}}
    (level,) = app.store.open_levels()
    popped = app.broker.pop([level], limit=30, wait_s=0)
    assert list(popped.ids) == ids


def test_the_rate_holds(app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(app, 120)
    moved_at: list[float] = []
    monkeypatch.setattr(
        "tandemq.replaying.replays.dispatch",
        lambda _, moved: moved_at.extend([tandemq_clock.monotonic()] * len(moved)),
    )

    begun = tandemq_clock.monotonic()
    app.dead.replay(where=EVERY, rate="10/s")

    assert len(moved_at) == 120
    for second in range(7):
        window = [at for at in moved_at if second <= at - begun < second + 5]
        assert 45 <= len(window) <= 55


def test_a_limit_takes_the_newest(app: TandemQ) -> None:
    ids = bury(app, 20)

    assert summary(app.dead.replay(where=EVERY, limit=9)) == (9, 0, 0, 0, "done")
    assert lives(app, ids) == [0] * 11 + [1] * 9
    assert summary(app.dead.replay(ids[:10], limit=3)) == (3, 0, 0, 0, "done")
    assert lives(app, ids) == [0] * 7 + [1] * 3 + [0] + [1] * 9


def test_a_dry_run_counts_and_changes_nothing(app: TandemQ) -> None:
    ids = bury(app, 8) + bury(app, 3, "mail")

    answer = app.dead.replay(where=EVERY, dry_run=True)
    assert [tuple(kind) for kind in answer.kinds] == [("pay", "NonRetryable", 8), ("mail", "OSError", 3)]
    assert answer.left == 11
    assert app.dead.replay(where=EVERY, dry_run=True, limit=4).left == 4
    assert app.dead.replay([ids[0], 10**9], dry_run=True).left == 1
    assert (lives(app, ids), list(app.dead.replays.list())) == ([0] * 11, [])
    assert app.admin.audit().items == ()


def test_payloads_are_edited_and_what_does_not_fit_stays_dead(app: TandemQ) -> None:
    fine = bury(app, 2)
    (mail,) = bury(app, 1, "mail")
    (foreign,) = bury(app, 1, "mail")
    app.mended.append(1)  # type: ignore[attr-defined]

    edit = {"city": "Bern", "n": None}
    answer = app.dead.replay([*fine, mail], edit=edit)

    assert summary(answer) == (0, 0, 3, 0, "done")
    assert all(outcome == "failed" and "n" in why for outcome, why in answer.reasons)
    assert states(app, [*fine, mail]) == {"dead": 3}
    answer = app.dead.replay(where=EVERY, edit='{"city": "Bern"}')
    assert summary(answer) == (2, 0, 2, 0, "done")
    assert [json.loads(app.get(i).payload) for i in fine] == [{"n": n, "city": "Bern"} for n in (0, 1)]  # type: ignore[union-attr]
    run_until_idle(app)
    assert [app.get(i).result for i in fine] == ['"Bern"'] * 2  # type: ignore[union-attr]
    assert states(app, [mail, foreign]) == {"dead": 2}
    assert answer.run_id is not None
    assert [item.task_id for item in app.dead.replays.items(answer.run_id, "failed")] == [mail, foreign]


def test_a_type_unknown_here_is_left_to_its_worker(app: TandemQ) -> None:
    (task_id,) = bury(app, 1, "mail")
    app.registry._tasks.pop("mail")

    assert summary(app.dead.replay([task_id], edit={"anything": 1})) == (1, 0, 0, 0, "done")


def test_an_edit_may_not_make_it_too_big(app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bury(app, 2)
    object.__setattr__(app.settings, "max_payload_bytes", 60)

    answer = app.dead.replay(ids, edit={"city": "B" * 60})

    assert summary(answer) == (0, 0, 2, 0, "done")
    assert "the limit is 60 (TANDEMQ_MAX_PAYLOAD_BYTES)" in next(iter(answer.reasons))[1]


def test_another_level(app: TandemQ) -> None:
    ids = bury(app, 3)

    app.dead.replay(where=EVERY, queue="slow", priority="high")

    assert {(t.queue, t.priority) for t in map(app.get, ids) if t is not None} == {("slow", 20)}
    (level,) = app.store.open_levels()
    assert app.broker.depth(level) == 3


@pytest.mark.parametrize("few", [True, False], ids=["by id", "as a run"])
def test_one_bad_row_does_not_stop_the_rest(app: TandemQ, few: bool, caplog: pytest.LogCaptureFixture) -> None:
    ids = bury(app, 12)

    def sql(statement: str) -> list[tuple[Any, ...]]:
        app.store.db.write(lambda tx: tx.write(statement))  # type: ignore[attr-defined]
        return []

    refuse(app.store, sql, ids[4])  # type: ignore[arg-type]
    answer = app.dead.replay(ids) if few else app.dead.replay(where=EVERY)

    assert summary(answer) == (11, 0, 1, 0, "done")
    ((outcome, why),) = answer.reasons
    # What is kept is read over HTTP too, where the words of a driver have no business.
    assert (outcome, why) == ("failed", "the database refused it (see the log)")
    assert "refused by a trigger" in caplog.text
    assert lives(app, ids) == [1] * 4 + [0] + [1] * 7


def test_operators_pause_continue_and_cancel(app: TandemQ) -> None:
    ids = bury(app, 30)
    replays = app.dead.replays

    def pausing(run: ReplayRun) -> None:
        if run.moved >= 10 and run.state is RunState.RUNNING:
            replays.pause(run.id, reason="lunch", who="bob")

    answer = app.dead.replay(where=EVERY, on_progress=pausing)
    assert summary(answer) == (10, 0, 0, 20, "paused")
    assert answer.note == "paused by bob: lunch"
    assert answer.run_id is not None
    assert replays.pause(answer.run_id).note == "paused by bob: lunch"
    assert replays.resume(answer.run_id, who="bob").state == "running"
    assert replays.resume(answer.run_id).state == "running"
    assert replays.cancel(answer.run_id, who="bob").state == "cancelled"
    assert replays.cancel(answer.run_id).state == "cancelled"
    for change in (replays.pause, replays.resume):
        with pytest.raises(InvalidTask, match="is cancelled"):
            change(answer.run_id)
    assert summary(replays.follow(answer.run_id)) == (10, 0, 0, 20, "cancelled")
    assert sum(lives(app, ids)) == 10
    actions = [(record.action, record.who) for record in app.admin.audit().items]
    assert actions[:3] == [("replay_cancel", "bob"), ("replay_continue", "bob"), ("replay_pause", "bob")]
    with pytest.raises(TaskNotFound, match="no replay run has the id 99"):
        replays.show(99)


def test_the_same_command_finds_its_run(app: TandemQ) -> None:
    bury(app, 3)
    run = app.dead.replay(where=Filter(task_type="pay"), rate="5/s", detach=True, reason="one")
    replays = app.dead.replays

    found = replays.same(where=Filter(task_type="pay"), rate=5, reason="another")
    assert found is not None
    assert found.id == run.run_id
    assert replays.same(where=Filter(task_type="pay"), rate=6) is None
    assert replays.same(where=EVERY, rate=5) is None
    assert run.run_id is not None
    replays.cancel(run.run_id)
    assert replays.same(where=Filter(task_type="pay"), rate=5) is None
