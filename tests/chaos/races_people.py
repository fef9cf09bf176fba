"""Races of operators and producers: replay, purge, prune, cancel, and enqueues with one key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tandemq import NewTask
from tandemq.core.lifecycle import Bury, DeadReason, Failure, Status, Succeed
from tandemq.deadletters import Replayed
from tests.chaos.races_actors import Side
from tests.chaos.races_duel import Answers, Duel, Races
from tests.chaos.races_running import assert_running
from tests.chaos.races_stage import Stage

RACES = Races()
BURIED = Bury(DeadReason.RETRIES_EXHAUSTED, Failure("ValueError", "no luck"))
KEPT_S = 25 * 3600.0


def _replay(side: Side, task_id: int) -> Callable[[], Replayed]:
    return lambda: side.app.dead.replay([task_id])


def _prune(side: Side) -> Callable[[], int]:
    statuses = [Status.DEAD, Status.CANCELLED, Status.SUCCEEDED]
    return lambda: side.app.prune(0, statuses=statuses).removed


@RACES(
    "replay x replay", one="replay.before_commit replay.after_commit", other="replay.before_commit replay.after_commit"
)
def replay_twice(stage: Stage) -> Duel:
    task_id = stage.dead(BURIED)

    def judge(answers: Answers) -> None:
        assert sorted(answer.moved for answer in answers.values()) == [0, 1], answers
        row = stage.row(task_id)
        assert (row.status, row.replays, row.attempts) == (Status.PENDING, 1, 0)
        assert stage.listed() == [task_id]

    return Duel({"one": _replay(stage.one, task_id), "other": _replay(stage.two, task_id)}, judge)


def _replay_and_removal(stage: Stage, *, purge: bool) -> Duel:
    task_id = stage.dead(BURIED)

    def judge(answers: Answers) -> None:
        removed = answers["removal"].purged if purge else answers["removal"]
        assert (answers["replay"].moved, removed) in {(1, 0), (0, 1)}, answers
        rows = stage.rows()
        assert set(rows) == (set() if removed else {task_id})
        assert stage.counted("purged") == removed
        assert bool(stage.history(task_id)) == (not removed), "the history goes with its row"
        if not removed:
            assert rows[task_id].status == Status.PENDING
            assert stage.listed() == [task_id]

    removal: Any = (lambda: stage.two.app.dead.purge([task_id])) if purge else _prune(stage.two)
    return Duel({"replay": _replay(stage.one, task_id), "removal": removal}, judge)


for _name in ("purge", "prune"):
    RACES(f"replay x {_name}", replay="replay.before_commit replay.after_commit", removal="prune.before_commit")(
        partial(_replay_and_removal, purge=_name == "purge")
    )


@RACES("replay x claim", replay="replay.before_commit replay.after_commit", claim="claim.before_commit")
def replay_and_claim(stage: Stage) -> Duel:
    """An old copy of the id is popped while its task is made pending again."""
    task_id = stage.dead(BURIED)

    def judge(answers: Answers) -> None:
        if not answers["replay"].moved:  # the claim has looked at the row for as long as the replay tried
            assert (stage.row(task_id).status, answers["claim"].leases) == (Status.DEAD, ())
            return
        if answers["claim"].leases:
            assert_running(stage, task_id, fence=2, attempts=1)
        else:
            assert stage.row(task_id).status == Status.PENDING
        assert stage.listed() == [task_id]

    return Duel({"replay": _replay(stage.one, task_id), "claim": lambda: stage.two.claim(task_id)}, judge)


@RACES("replay x cancel", replay="replay.before_commit replay.after_commit", cancel="cancel.before_commit")
def replay_and_cancel(stage: Stage) -> Duel:
    task_id = stage.dead(BURIED)

    def judge(answers: Answers) -> None:
        row = stage.row(task_id)
        if not answers["replay"].moved:  # as above
            assert (answers["cancel"], row.status) == ("dead", Status.DEAD)
            return
        if answers["cancel"] == "cancelled":
            assert (row.status, row.replays) == (Status.CANCELLED, 1)
        else:
            assert (answers["cancel"], row.status) == ("dead", Status.PENDING)

    return Duel({"replay": _replay(stage.one, task_id), "cancel": lambda: stage.two.app.cancel(task_id)}, judge)


def _key_and_removal(stage: Stage, *, purge: bool, age_s: float) -> Duel:
    """The key is free once its old row has gone, and not a moment before: never two rows, never an id of no row.

    A row that ended within 24 h keeps its key, whatever is asked.
    """
    old = stage.dead(BURIED, idempotency_key="order 7")
    stage.clock.advance(age_s)

    def judge(answers: Answers) -> None:
        removed = answers["removal"].purged if purge else answers["removal"]
        handle, rows = answers["enqueue"], stage.rows()
        keyed = stage.sql("SELECT id FROM tandemq_tasks WHERE idempotency_key = 'order 7'")
        assert removed == (old not in rows)
        if age_s < KEPT_S:
            assert (removed, handle.created, handle.id, set(rows)) == (0, False, old, {old})
        elif handle.created:
            assert handle.id != old
            assert [row[0] for row in keyed] == [handle.id]
            assert rows[handle.id].status == Status.PENDING
            assert stage.listed() == [handle.id]
        else:
            assert handle.id == old

    def finally_() -> None:
        # Afterwards the key belongs to a row, or is free: one more enqueue makes a task exactly if there is none.
        keyed = stage.sql("SELECT id FROM tandemq_tasks WHERE idempotency_key = 'order 7'")
        again = _enqueue(stage.one)()
        assert again.created == (not keyed)

    removal: Any = (lambda: stage.two.app.dead.purge([old])) if purge else _prune(stage.two)
    return Duel({"enqueue": _enqueue(stage.one), "removal": removal}, judge, finally_=finally_)


def _enqueue(side: Side) -> Callable[[], Any]:
    return lambda: side.app.enqueue_many([NewTask("noop", {}, idempotency_key="order 7")])[0]


for _name in ("purge", "prune"):
    RACES(f"{_name} of a keyed row x enqueue", removal="prune.before_commit", enqueue="enqueue.before_commit")(
        partial(_key_and_removal, purge=_name == "purge", age_s=KEPT_S)
    )


@RACES(
    "enqueue x enqueue with one key",
    one="enqueue.before_insert enqueue.before_commit enqueue.after_commit",
    other="enqueue.before_insert enqueue.before_commit enqueue.after_commit",
)
def enqueue_twice(stage: Stage) -> Duel:
    def judge(answers: Answers) -> None:
        assert sorted(handle.created for handle in answers.values()) == [False, True]
        (task_id,) = stage.rows()
        assert {handle.id for handle in answers.values()} == {task_id}
        assert stage.listed() == [task_id], "pushed once, by whoever made it"

    return Duel({"one": _enqueue(stage.one), "other": _enqueue(stage.two)}, judge)


@RACES("prune x late finish", finish="finish.before_commit", prune="prune.before_commit")
def prune_and_finish(stage: Stage) -> Duel:
    """A row that a zombie writes about is removed just then: refused, and nothing comes back."""
    zombie = stage.held(stage.one)
    stage.lapse()
    stage.two.expire()
    stage.clock.advance(2.0)
    stage.two.settle(stage.two.claim(zombie.lease.id).leases[0], Succeed())
    stage.clock.advance(1.0)

    def judge(answers: Answers) -> None:
        assert answers["finish"] == 1
        assert set(stage.rows()) == (set() if answers["prune"] else {zombie.lease.id})
        if answers["prune"]:
            assert not stage.claims()

    return Duel({"finish": lambda: stage.one.hand.finish(zombie, Succeed()), "prune": _prune(stage.two)}, judge)
