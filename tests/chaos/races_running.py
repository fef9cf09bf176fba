"""Races over starting a run and taking it back: claim, begin, cancel, hand back, retry for later."""

from __future__ import annotations

from functools import partial
from typing import Any

from tandemq.core.errors import StoreRefused
from tandemq.core.lifecycle import Failure, Release, RetryIn, Status, Succeed
from tandemq.store.answers import Claimed
from tests.chaos.races_duel import Answers, Duel, Races
from tests.chaos.races_stage import Stage

RACES = Races()
FAILED = Failure("ValueError", "no luck")
AGAIN, LATER = RetryIn(0.0, FAILED), RetryIn(3600.0, FAILED)


def ids_of(claimed: Claimed) -> list[int]:
    return [lease.id for lease in claimed.leases]


def assert_running(stage: Stage, task_id: int, *, fence: int, attempts: int) -> None:
    """It runs, under one claims row."""
    row = stage.row(task_id)
    assert (row.status, row.fence, row.attempts) == (Status.RUNNING, fence, attempts), row
    assert stage.claims() == {row.token: {task_id}}


def _claim_twice(stage: Stage, *, at_once: bool) -> Duel:
    task_id = stage.task()
    stage.copy(task_id)

    def judge(answers: Answers) -> None:
        both = [answers["one"], answers["other"]]
        assert sorted(map(ids_of, both)) == [[], [task_id]], f"leases: {both}"
        assert [c.dropped for c in both if not c.leases] == [(task_id,)]
        assert_running(stage, task_id, fence=1, attempts=1)

    return Duel(
        {
            "one": lambda: stage.one.claim(task_id, at_once=at_once),
            "other": lambda: stage.two.claim(task_id, at_once=at_once),
        },
        judge,
    )


RACES("claim x claim", one="claim.before_commit", other="claim.before_commit")(partial(_claim_twice, at_once=False))
RACES("claim x claim, in one packet", one="claim.before_commit", other="claim.before_commit")(
    partial(_claim_twice, at_once=True)
)


def _cancel_and_claim(stage: Stage, *, at_once: bool) -> Duel:
    task_id, bystander = stage.task(), stage.task()

    def judge(answers: Answers) -> None:
        row, started = stage.row(task_id), ids_of(answers["claim"])
        assert bystander in started
        if answers["cancel"] == "cancelled":
            assert started == [bystander], "cancelled and acknowledged, and started"
            assert (row.status, row.fence) == (Status.CANCELLED, 0)
        else:
            assert answers["cancel"] == "requested"
            assert sorted(started) == [task_id, bystander]
            assert (row.status, row.fence, row.cancel_asked) == (Status.RUNNING, 1, 1)

    return Duel(
        {
            "cancel": lambda: stage.two.app.cancel(task_id),
            "claim": lambda: stage.one.claim(task_id, bystander, at_once=at_once),
        },
        judge,
    )


RACES("cancel x claim", cancel="cancel.before_commit", claim="claim.before_commit")(
    partial(_cancel_and_claim, at_once=False)
)
RACES("cancel x claim, in one packet", cancel="cancel.before_commit", claim="claim.before_commit")(
    partial(_cancel_and_claim, at_once=True)
)


@RACES("cancel x begin", cancel="cancel.before_commit", begin="run.before_begin run.before_handler")
def cancel_and_begin(stage: Stage) -> Duel:
    held = stage.held(stage.one)
    begins: Any = held.batch.begin
    knew: list[bool] = []

    def begin(*args: Any) -> bool:
        knew.append(held.batch.cancel_asked(held.lease.id))
        return bool(begins(*args))

    held.batch.begin = begin  # type: ignore[method-assign]

    def cancel() -> str:
        answer = stage.two.app.cancel(held.lease.id)
        stage.one.beat()
        return answer

    def judge(answers: Answers) -> None:
        row, answer = stage.row(held.lease.id), answers["cancel"]
        assert answer in {"requested", "succeeded"}, "it was claimed: never cancelled at once"
        assert len(stage.ran) == (not knew[0]), "begun though its worker knew, or not begun though it did not"
        assert row.status == (Status.SUCCEEDED if stage.ran else Status.CANCELLED)
        assert not stage.claims()

    return Duel({"cancel": cancel, "begin": lambda: stage.one.hand.run(held)}, judge)


@RACES("cancel x retry", cancel="cancel.before_commit", retry="finish.before_commit retry.after_commit")
def cancel_and_retry(stage: Stage) -> Duel:
    held = stage.held(stage.one)

    def judge(answers: Answers) -> None:
        assert answers["cancel"] in {"requested", "cancelled"}
        row = stage.row(held.lease.id)
        assert (row.status, row.fence) == (Status.CANCELLED, 1), f"{answers}, {row}"
        assert not stage.claims()

    return Duel(
        {
            "cancel": lambda: stage.two.app.cancel(held.lease.id),
            "retry": lambda: stage.one.hand.finish(held, AGAIN),
        },
        judge,
    )


@RACES("cancel x finish", cancel="cancel.before_commit", finish="finish.before_commit finish.after_commit")
def cancel_and_finish(stage: Stage) -> Duel:
    held = stage.held(stage.one)

    def judge(answers: Answers) -> None:
        assert answers["cancel"] in {"requested", "succeeded"}
        assert answers["finish"] == 0, "a success was refused"
        row = stage.row(held.lease.id)
        assert (row.status, row.result) == (Status.SUCCEEDED, "1")
        assert (stage.counted("succeeded"), stage.counted("cancelled")) == (1, 0)
        assert not stage.claims()

    return Duel(
        {
            "cancel": lambda: stage.two.app.cancel(held.lease.id),
            "finish": lambda: stage.one.hand.finish(held, Succeed("1")),
        },
        judge,
    )


@RACES(
    "cancel x rescue",
    cancel="cancel.before_commit",
    rescue="expire.after_select expire.before_commit expire.after_commit",
)
def cancel_and_rescue(stage: Stage) -> Duel:
    """The race that River lost ten times in ten: cancelled during a rescue, and run again."""
    held = stage.held(stage.one)
    stage.lapse()

    def judge(answers: Answers) -> None:
        assert answers["cancel"] in {"requested", "cancelled"}
        row = stage.row(held.lease.id)
        if row.status == Status.RUNNING:  # the rescue met the lock and left the row to the next pass
            assert row.cancel_asked
            stage.two.expire()
            row = stage.row(held.lease.id)
        assert (row.status, row.fence) == (Status.CANCELLED, 1), f"{answers}, {row}"

    return Duel({"cancel": lambda: stage.two.app.cancel(held.lease.id), "rescue": stage.one.expire}, judge)


@RACES("hand back x claim", back="finish.before_commit finish.after_commit", claim="pop.after claim.before_commit")
def hand_back_and_claim(stage: Stage) -> Duel:
    held = stage.held(stage.one)
    stage.copy(held.lease.id)

    def judge(answers: Answers) -> None:
        assert answers["back"] == 0
        if answers["claim"]:
            assert_running(stage, held.lease.id, fence=2, attempts=1)
        else:
            row = stage.row(held.lease.id)
            assert (row.status, row.attempts) == (Status.PENDING, 0)
            assert held.lease.id in stage.listed(), "handed back, and not to be found"
            assert not stage.claims()

    return Duel(
        {
            "back": lambda: stage.one.hand.finish(held, Release()),
            "claim": lambda: [one.lease for one in stage.two.hand.fetch()],
        },
        judge,
    )


def _late_claim(stage: Stage, *, at_once: bool) -> Duel:
    """The answer of a claim was lost, so it is given back; the claim itself may arrive later still."""
    task_id, token = stage.task(), next(stage.tokens)
    stage.seam(stage.two.store.settler, "counting", "expire.before_commit")

    def judge(answers: Answers) -> None:
        row = stage.row(task_id)
        assert (row.status, row.attempts) == (Status.PENDING, 0), f"{answers}, {row}"
        assert not stage.claims()
        arrived = isinstance(answers["claim"], Claimed) and bool(answers["claim"].leases)
        assert [move.id for move in answers["give back"].moved] == ([task_id] if arrived else [])

    return Duel(
        {
            "claim": lambda: stage.one.claim(task_id, at_once=at_once, token=token),
            "give back": lambda: stage.two.store.give_back(token, [task_id]),
        },
        judge,
        may_raise={"claim": (StoreRefused,)},
    )


# The hand-back has no crash point of its own: it is held where it counts, just before it commits.
_HELD = {"claim": "claim.before_commit", "give back": "give_back.before_commit=expire.before_commit"}
RACES("give back x late claim", **_HELD)(partial(_late_claim, at_once=False))
RACES("give back x late claim, in one packet", **_HELD)(partial(_late_claim, at_once=True))


@RACES("give back, sent again, x next claim", **_HELD)
def give_back_and_next_claim(stage: Stage) -> Duel:
    """What was given back is claimed by the next worker while the hand-back is sent once more."""
    task_id, token = stage.task(), next(stage.tokens)
    stage.one.claim(task_id, token=token)
    stage.starts.clear()
    stage.two.store.give_back(token, [task_id])
    stage.seam(stage.two.store.settler, "counting", "expire.before_commit")

    def judge(answers: Answers) -> None:
        if ids_of(answers["claim"]):
            assert_running(stage, task_id, fence=2, attempts=1)
        else:  # the hand-back held the row just then
            assert stage.row(task_id).status == Status.PENDING
            assert [move.id for move in answers["give back"].moved] == [task_id]
            assert not stage.claims()

    return Duel(
        {
            "claim": lambda: stage.one.claim(task_id),
            "give back": lambda: stage.two.store.give_back(token, [task_id]),
        },
        judge,
    )


@RACES(
    "retry for later x claim", retry="finish.before_commit retry.after_commit", claim="pop.after claim.before_commit"
)
def retry_for_later_and_claim(stage: Stage) -> Duel:
    """A copy of the id is popped while its task is put off: it must not start before its time."""
    held = stage.held(stage.one)
    stage.copy(held.lease.id)

    def judge(answers: Answers) -> None:
        assert answers == {"retry": 0, "claim": []}
        row = stage.row(held.lease.id)
        assert (row.status, row.fence, row.later) == (Status.PENDING, 1, 1)
        assert stage.delayed() == [held.lease.id]
        stage.sql("UPDATE tandemq_tasks SET run_at = created_at")  # the drain shall not wait for an hour

    return Duel(
        {
            "retry": lambda: stage.one.hand.finish(held, LATER),
            "claim": lambda: [one.lease for one in stage.two.hand.fetch()],
        },
        judge,
    )
