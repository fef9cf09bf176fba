"""Races of verdicts: zombies, a verdict that is sent twice, a handler's own transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sqlalchemy as sa

from tandemq import NewTask
from tandemq.core import crash
from tandemq.core.errors import LeaseLost
from tandemq.core.lifecycle import Status, Succeed
from tandemq.worker.inbox import Held
from tests.chaos.races_actors import Side
from tests.chaos.races_duel import Answers, Duel, Races
from tests.chaos.races_running import AGAIN, assert_running
from tests.chaos.races_stage import Stage

RACES = Races()


def _zombie(stage: Stage) -> tuple[Held, int]:
    """A run whose lease was ended, and its task, which is ready again."""
    zombie = stage.held(stage.one)
    stage.lapse()
    assert stage.two.expire().retried == 1
    stage.clock.advance(2.0)  # its backoff
    stage.raw.delete(stage.key("delayed"))
    stage.copy(zombie.lease.id)
    return zombie, zombie.lease.id


@RACES("retry x finish of a zombie", retry="finish.before_commit retry.after_commit", zombie="finish.before_commit")
def retry_and_zombie(stage: Stage) -> Duel:
    zombie, task_id = _zombie(stage)
    (live,) = stage.two.hand.fetch()

    def judge(answers: Answers) -> None:
        assert (answers["zombie"], answers["retry"]) == (1, 0), f"refused: {answers}"
        row = stage.row(task_id)
        assert (row.status, row.fence, row.attempts, row.result) == (Status.PENDING, 2, 2, None)
        assert stage.counted("succeeded") == 0
        assert not stage.claims()

    return Duel(
        {
            "retry": lambda: stage.two.hand.finish(live, AGAIN),
            "zombie": lambda: stage.one.hand.finish(zombie, Succeed('"zombie"')),
        },
        judge,
    )


@RACES("two finishes with different tokens", live="finish.before_commit", zombie="finish.before_commit")
def finish_and_zombie(stage: Stage) -> Duel:
    zombie, task_id = _zombie(stage)
    (live,) = stage.two.hand.fetch()

    def judge(answers: Answers) -> None:
        assert answers == {"zombie": 1, "live": 0}
        row = stage.row(task_id)
        assert (row.status, row.result) == (Status.SUCCEEDED, '"live"')
        assert stage.counted("succeeded") == 1

    return Duel(
        {
            "live": lambda: stage.two.hand.finish(live, Succeed('"live"')),
            "zombie": lambda: stage.one.hand.finish(zombie, Succeed('"zombie"')),
        },
        judge,
    )


@RACES("claim x finish of a zombie", claim="claim.before_commit claim.after_commit", zombie="finish.before_commit")
def claim_and_zombie(stage: Stage) -> Duel:
    zombie, task_id = _zombie(stage)

    def judge(answers: Answers) -> None:
        assert answers["zombie"] == 1
        # The zombie's look may have held the row just then: the claim drops it and the reconciler finds it.
        if answers["claim"]:
            assert_running(stage, task_id, fence=2, attempts=2)
        else:
            assert stage.row(task_id).status == Status.PENDING

    return Duel(
        {
            "claim": lambda: [held.lease for held in stage.two.hand.fetch()],
            "zombie": lambda: stage.one.hand.finish(zombie, Succeed('"zombie"')),
        },
        judge,
    )


def _same_token(stage: Stage, first: Any, second: Any) -> Duel:
    """The answer of a finish was lost, and it is sent again while the first is still under way in the server."""
    lease = stage.held(stage.one).lease

    def judge(answers: Answers) -> None:
        accepted = {name: len(settled.moved) for name, settled in answers.items()}
        refused = {name: len(settled.fenced) for name, settled in answers.items()}
        row = stage.row(lease.id)
        if first == second:
            assert (accepted, refused) == ({"one": 1, "again": 1}, {"one": 0, "again": 0}), "the same word twice"
        else:
            assert sorted(accepted.values()) == sorted(refused.values()) == [0, 1], f"{accepted}, {refused}"
            won = "one" if accepted["one"] else "again"
            assert row.status == (Status.SUCCEEDED if won == "one" else Status.PENDING)
        assert stage.counted("succeeded") == (row.status == Status.SUCCEEDED)
        assert stage.counted("retried") == (row.status == Status.PENDING)
        assert not stage.claims()

    return Duel(
        {"one": lambda: stage.one.settle(lease, first), "again": lambda: stage.two.settle(lease, second)}, judge
    )


for _name, _second in (("", Succeed("1")), (", other verdicts", AGAIN)):
    RACES(f"two finishes with the same token{_name}", one="finish.before_commit", again="finish.before_commit")(
        partial(_same_token, first=Succeed("1"), second=_second)
    )
RACES("two retries with the same token", one="finish.before_commit", again="finish.before_commit")(
    partial(_same_token, first=AGAIN, second=AGAIN)
)


def _in_transaction(side: Side, held: Held, run: str) -> Callable[[], str]:
    """A handler with a transaction of its own: an effect, the next task and the success of this one, all or nothing."""

    def work() -> str:
        tx = side.store.transaction(10.0)
        try:
            insert = sa.text("INSERT INTO effects (task_id, run) VALUES (:i, :run)")
            tx.connection.execute(insert, {"i": held.lease.id, "run": run})
            side.app.enqueue_many([NewTask("noop", {"n": held.lease.id})], connection=tx.connection)
            tx.succeed(held.lease, f'"{run}"')
        except LeaseLost:
            return "lost"
        finally:
            tx.close()
        side.hand.finish(held, Succeed(recorded=True))
        return "succeeded"

    return work


def _effects(stage: Stage, task_id: int) -> list[str]:
    """Whose effects stand; each came with one next task and nothing without it."""
    effects = [run for (run,) in stage.sql("SELECT run FROM effects WHERE task_id = :i", i=task_id)]
    following = stage.sql("SELECT id FROM tandemq_tasks WHERE payload = :p", p=f'{{"n":{task_id}}}')
    assert len(following) == len(effects) <= 1, f"effects {effects}, next tasks {following}"
    return effects


POINTS = "finish.before_tx_commit finish.after_tx_commit"


@RACES("transaction x rescue", handler=POINTS, rescue="expire.after_select expire.before_commit expire.after_commit")
def transaction_and_rescue(stage: Stage) -> Duel:
    held = stage.held(stage.one)
    stage.lapse()

    def judge(answers: Answers) -> None:
        stage.two.expire()  # what the first pass left because it was locked
        row = stage.row(held.lease.id)
        assert _effects(stage, row.id) == (["one"] if answers["handler"] == "succeeded" else [])
        assert row.status == (Status.SUCCEEDED if answers["handler"] == "succeeded" else Status.PENDING)
        assert ("lease_lost" in stage.history(row.id)) == (answers["handler"] == "lost")
        assert not stage.claims()

    return Duel({"handler": _in_transaction(stage.one, held, "one"), "rescue": stage.two.expire}, judge)


@RACES("transaction x cancel", handler=POINTS, cancel="cancel.before_commit")
def transaction_and_cancel(stage: Stage) -> Duel:
    held = stage.held(stage.one)

    def judge(answers: Answers) -> None:
        assert answers["handler"] == "succeeded"
        assert answers["cancel"] in {"requested", "succeeded"}
        assert stage.row(held.lease.id).status == Status.SUCCEEDED
        assert _effects(stage, held.lease.id) == ["one"]

    handler = _in_transaction(stage.one, held, "one")
    return Duel({"handler": handler, "cancel": lambda: stage.two.app.cancel(held.lease.id)}, judge)


@RACES("transaction x transaction of a zombie", live=POINTS, zombie="claim.after_hand_over")
def transaction_and_zombie(stage: Stage) -> Duel:
    zombie, task_id = _zombie(stage)
    (live,) = stage.two.hand.fetch()
    late = _in_transaction(stage.one, zombie, "zombie")

    def thaw() -> str:
        # It has no crash point before it fails: it is held at the very start.
        crash.crash_point("claim.after_hand_over")
        return late()

    def judge(answers: Answers) -> None:
        assert answers == {"live": "succeeded", "zombie": "lost"}
        assert _effects(stage, task_id) == ["live"]
        assert stage.row(task_id).result == '"live"'

    return Duel({"live": _in_transaction(stage.two, live, "live"), "zombie": thaw}, judge)
