"""Races over the lists in Redis: promote, repush, rebuild, push. Copies may be made; nothing is lost or run twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandemq import NewTask
from tandemq.core.lifecycle import Status
from tandemq.reconciler.generation import Generation
from tandemq.reconciler.report import Tally
from tandemq.reconciler.window import Window
from tests.chaos.races_actors import LOW, Side
from tests.chaos.races_duel import Answers, Duel, Races
from tests.chaos.races_running import assert_running
from tests.chaos.races_stage import Stage

RACES = Races()


def _due(stage: Stage) -> int:
    """A task whose time has come, its id still in the sorted set."""
    task_id = stage.task(delay_s=5.0)
    assert stage.delayed() == [task_id]
    stage.clock.advance(5.1)
    return task_id


@RACES("promote x promote", one="promote.before promote.after", other="promote.before promote.after")
def promote_twice(stage: Stage) -> Duel:
    task_id = _due(stage)

    def judge(_: Answers) -> None:
        assert (stage.listed(), stage.delayed()) == ([task_id], [])

    return Duel({"one": stage.one.mover().step, "other": stage.two.mover().step}, judge)


@RACES("promote x cancel", promote="promote.before promote.after", cancel="cancel.before_commit")
def promote_and_cancel(stage: Stage) -> Duel:
    task_id = _due(stage)

    def judge(answers: Answers) -> None:
        assert answers["cancel"] == "cancelled"
        assert (stage.row(task_id).status, stage.row(task_id).fence) == (Status.CANCELLED, 0)
        assert stage.listed() == [task_id]  # a hint that is wrong: the drain claims nothing by it

    return Duel({"promote": stage.one.mover().step, "cancel": lambda: stage.two.app.cancel(task_id)}, judge)


@RACES("promote x prune", promote="promote.before promote.after", prune="prune.before_commit")
def promote_and_prune(stage: Stage) -> Duel:
    """The row of a cancelled task is removed while its id is moved: an id without a row harms nobody."""
    task_id, bystander = stage.task(delay_s=5.0), stage.task(delay_s=5.0)
    stage.one.app.cancel(task_id)
    stage.clock.advance(5.1)

    def judge(answers: Answers) -> None:
        assert answers["prune"] == 1
        assert set(stage.rows()) == {bystander}
        assert (sorted(stage.listed()), stage.delayed()) == ([task_id, bystander], [])
        claimed = stage.two.claim(*stage.listed())
        assert ([lease.id for lease in claimed.leases], claimed.dropped) == ([bystander], (task_id,))

    def prune() -> int:
        return stage.two.app.prune(0, statuses=[Status.CANCELLED]).removed

    return Duel({"promote": stage.one.mover().step, "prune": prune}, judge)


@RACES("repush x claim", repush="repush.before repush.after", claim="pop.after claim.before_commit claim.after_commit")
def repush_and_claim(stage: Stage) -> Duel:
    """An id that is in a worker's hands looks lost and is pushed again: the copy is popped by another worker."""
    task_id = stage.task()
    stage.clock.advance(2.1)
    window = Window(stage.two.store, stage.two.app.broker, stage.clock)
    (entry,) = stage.raw.lrange(stage.key("ready"), 0, -1)
    stage.raw.delete(stage.key("ready"))
    assert window.look(LOW).missing == 1
    stage.clock.advance(0.3)
    stage.raw.rpush(stage.key("ready"), entry)

    def repush() -> int:
        # The look sees the list without the id: it is in the fetcher's hands, or has been claimed already.
        stage.raw.delete(stage.key("ready"))
        return window.look(LOW).repushed

    def judge(answers: Answers) -> None:
        copies = list(stage.two.claim(*stage.listed()).leases) if stage.listed() else []
        assert len(answers["claim"]) + len(copies) == 1, f"{answers}, {copies}"
        assert_running(stage, task_id, fence=1, attempts=1)

    def claim() -> list[Any]:
        if not stage.listed():
            stage.raw.rpush(stage.key("ready"), entry)
        return [held.lease for held in stage.one.hand.fetch()]

    return Duel({"repush": repush, "claim": claim}, judge)


def _turn(side: Side, *, passes: int = 1) -> Tally:
    tally = Tally()
    generation = Generation(side.store, side.app.broker)
    for _ in range(passes):
        generation.turn(side.store.install_id(), ["default"], tally)
    return tally


def _flushed(stage: Stage, count: int) -> list[int]:
    """Ready and delayed tasks of a healthy queue whose Redis was just emptied."""
    ids = [stage.task() for _ in range(count)] + [stage.task(delay_s=5.0)]
    _turn(stage.one, passes=2)
    stage.raw.flushdb()
    return ids


REBUILD = (
    "rebuild.before_begin=promote.before rebuild.after_begin rebuild.before_chunk=promote.after rebuild.after_chunk"
)


def _rebuild(side: Side) -> Callable[[], Tally]:
    """A reconciler's turn that finds the hole; it may be held between its look at the key and the script as well."""
    side.stage.seam(side.app.broker, "begin_rebuild", "promote.before")
    side.stage.seam(side.app.broker, "rebuild_chunk", "promote.after")
    return lambda: _turn(side)


@RACES("rebuild x push", rebuild=REBUILD, push="enqueue.before_commit enqueue.after_commit enqueue.after_push")
def rebuild_and_push(stage: Stage) -> Duel:
    ids = _flushed(stage, 3)

    def judge(answers: Answers) -> None:
        new = [handle.id for handle in answers["push"]]
        assert list(dict.fromkeys(i for i in stage.listed() if i not in new)) == ids[:3], "the oldest, in their order"
        assert [stage.listed().count(i) for i in ids[:3]] == [1] * 3
        assert set(new) <= set(stage.listed())
        assert stage.listed()[0] == ids[0]
        assert stage.delayed() == ids[3:]

    return Duel(
        {
            "rebuild": _rebuild(stage.one),
            "push": lambda: stage.two.app.enqueue_many([NewTask("noop", {})] * 2),
        },
        judge,
    )


@RACES("rebuild x rebuild", one=REBUILD, other=REBUILD)
def rebuild_twice(stage: Stage) -> Duel:
    """Two reconcilers find the same hole: what the first has put back is neither deleted nor put back twice."""
    ids = _flushed(stage, 3)

    def judge(answers: Answers) -> None:
        assert (stage.listed(), stage.delayed()) == (ids[:3], ids[3:])
        assert sum(tally.report().refilled for tally in answers.values()) == len(ids)

    return Duel({"one": _rebuild(stage.one), "other": _rebuild(stage.two)}, judge)


@RACES("rebuild x claim", rebuild=REBUILD, claim="claim.before_commit claim.after_commit")
def rebuild_and_claim(stage: Stage) -> Duel:
    """An id in a worker's hands is put back by a rebuild: a copy, which is claimed by nobody."""
    ids = _flushed(stage, 3)
    stage.copy(ids[0])

    def judge(answers: Answers) -> None:
        claimed = [lease.id for lease in answers["claim"]]
        again = [lease.id for lease in stage.two.claim(*dict.fromkeys(stage.listed())).leases]
        assert sorted(claimed + again) == ids[:3], f"{claimed}, {again}"
        assert [stage.row(i).fence for i in ids[:3]] == [1] * 3

    return Duel(
        {
            "rebuild": _rebuild(stage.one),
            "claim": lambda: [held.lease for held in stage.two.hand.fetch()],
        },
        judge,
    )
