"""Races over ending what nobody works on any more: leases that ran out, dead children, orphans, expired tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

from tandemq.core import crash
from tandemq.core.lifecycle import Failure, Release, RetryIn, Status, Succeed, Verdict
from tandemq.core.task import Lease
from tests.chaos.races_actors import LOW
from tests.chaos.races_duel import Answers, Duel, Races
from tests.chaos.races_running import AGAIN, assert_running, ids_of
from tests.chaos.races_stage import Stage

RACES = Races()
LOST = RetryIn(0.0, Failure("LeaseLost", "gone"), "lease_lost")
RESCUE = "expire.after_select expire.before_commit expire.after_commit"


@RACES("expire x renew", expire=RESCUE.replace(" expire.after_commit", ""), renew="renew.before renew.after")
def expire_and_renew(stage: Stage) -> Duel:
    """One of the two has it: either the lease goes on, or its worker begins nothing under it any more."""
    held = stage.held(stage.one)
    stage.lapse()

    def judge(answers: Answers) -> None:
        row = stage.row(held.lease.id)
        if row.status == Status.RUNNING:
            assert_running(stage, held.lease.id, fence=1, attempts=1)
            assert not held.batch.lost
            assert answers["expire"].expired == 0
            assert stage.sql("SELECT 1 FROM tandemq_claims WHERE expires_at > :now", now=stage.clock.now())
        else:
            assert (row.status, answers["expire"].expired, answers["expire"].retried) == (Status.PENDING, 1, 1)
            assert held.batch.lost, "its worker believes that it holds the lease"
            assert stage.history(held.lease.id) == ["lease_lost"]
            assert not stage.claims()
        stage.one.hand.run(held)
        assert bool(stage.ran) == (row.status == Status.RUNNING), "begun without a lease"

    return Duel({"expire": stage.two.expire, "renew": stage.one.beat}, judge)


def _expire_and_verdict(stage: Stage, verdict: Verdict) -> Duel:
    """A worker that was frozen for longer than its lease thaws and writes while the rescue is under way.

    The token has a second task, in the hands of nobody: it must come back whoever wins the first.
    """
    first, second = stage.task(), stage.task()
    token = next(stage.tokens)
    held = stage.one.hand.take(token, first, second)
    stage.lapse()

    def judge(answers: Answers) -> None:
        stage.two.expire()  # a pass that met a lock leaves the rest of the token to the next one
        accepted, row = answers["verdict"] == 0, stage.row(first)
        history = stage.history(first)
        if accepted:
            assert row.status == (Status.SUCCEEDED if isinstance(verdict, Succeed) else Status.PENDING)
            assert row.attempts == (0 if isinstance(verdict, Release) else 1)
            assert "lease_lost" not in history
        else:
            assert (row.status, row.attempts) == (Status.PENDING, 1)
            assert history.count("lease_lost") == 1
        assert row.fence == 1
        assert first in stage.listed() + stage.delayed() or row.status == Status.SUCCEEDED
        assert stage.counted("succeeded") == (row.status == Status.SUCCEEDED)
        assert (stage.row(second).status, stage.row(second).attempts) == (Status.PENDING, 1)
        assert not stage.claims()

    return Duel({"expire": stage.two.expire, "verdict": lambda: stage.one.hand.finish(held, verdict)}, judge)


for _name, _verdict in (("finish", Succeed("1")), ("retry", AGAIN), ("hand back", Release())):
    RACES(f"expire x {_name}", expire=RESCUE, verdict="finish.before_commit finish.after_commit")(
        partial(_expire_and_verdict, verdict=_verdict)
    )


@RACES("expire x expire", one=RESCUE, other=RESCUE)
def expire_twice(stage: Stage) -> Duel:
    held = stage.held(stage.one)
    stage.lapse()

    def judge(answers: Answers) -> None:
        assert sum(report.retried for report in answers.values()) == 1, answers
        assert not any(report.alarms for report in answers.values()), answers
        row = stage.row(held.lease.id)
        assert (row.status, row.attempts, stage.counted("retried")) == (Status.PENDING, 1, 1)
        assert stage.history(held.lease.id) == ["lease_lost"]
        assert len(stage.listed() + stage.delayed()) == 1
        assert not stage.claims()

    return Duel({"one": stage.one.expire, "other": stage.two.expire}, judge)


@RACES(
    "end of a dead child x its last finish",
    end="end.begins=promote.before expire.before_commit",
    finish="finish.before_commit",
)
def end_and_finish(stage: Stage) -> Duel:
    """The packet of a killed child may still be on its way while its supervisor hands its tasks back."""
    held = stage.held(stage.one)
    lease = held.lease

    def end() -> Any:
        crash.crash_point("promote.before")
        return stage.one.store.end_lease(
            lease.token, [lease.id], judge=lambda _: Release(), worker_id="one", expired_only=False
        )

    def judge(answers: Answers) -> None:
        row, finished = stage.row(lease.id), len(answers["finish"].moved)
        ended = 0 if answers["end"] is None else len(answers["end"].moved)
        assert (ended, finished) in {(1, 0), (0, 1)}, answers
        assert (row.status, row.attempts) == ((Status.SUCCEEDED, 1) if finished else (Status.PENDING, 0))
        assert stage.counted("succeeded") == finished

    return Duel({"end": end, "finish": lambda: stage.two.settle(lease, Succeed())}, judge)


def _lost(_: Lease) -> Verdict:
    return LOST


SWEEP = "sweep.begins=promote.before sweep.before_commit=expire.before_commit"


def _orphan(stage: Stage) -> Lease:
    """A row that runs without a claims row, which nothing of tandemq makes."""
    lease = stage.held(stage.one).lease
    stage.sql("DELETE FROM tandemq_claims")
    stage.seam(stage.two.store, "end_orphan", "promote.before")
    stage.seam(stage.two.store.settler, "count", "expire.before_commit")
    return lease


@RACES("sweep of an orphan x its finish", sweep=SWEEP, finish="finish.before_commit")
def sweep_and_finish(stage: Stage) -> Duel:
    lease = _orphan(stage)

    def judge(answers: Answers) -> None:
        row, finished = stage.row(lease.id), len(answers["finish"].moved)
        swept = len(answers["sweep"].moved)
        assert (swept, finished) in {(1, 0), (0, 1)}, answers
        assert row.status == (Status.SUCCEEDED if finished else Status.PENDING)

    return Duel(
        {
            "sweep": lambda: stage.two.store.end_orphan(lease.id, lease.token, judge=_lost),
            "finish": lambda: stage.one.settle(lease, Succeed()),
        },
        judge,
    )


@RACES("sweep of a suspect x its next claim", sweep=SWEEP, claim="claim.before_commit")
def sweep_and_claim(stage: Stage) -> Duel:
    """The suspect was given up by somebody else and is claimed anew: that lease is none of the sweep's business."""
    lease = _orphan(stage)

    def claim() -> Any:
        stage.one.store.end_orphan(lease.id, lease.token, judge=_lost)
        return stage.one.claim(lease.id)

    def judge(answers: Answers) -> None:
        if ids_of(answers["claim"]):
            assert_running(stage, lease.id, fence=2, attempts=2)
        else:
            assert stage.row(lease.id).status == Status.PENDING
        assert stage.history(lease.id) == ["lease_lost"]

    sweep = lambda: stage.two.store.end_orphan(lease.id, lease.token, judge=_lost)  # noqa: E731
    return Duel({"sweep": sweep, "claim": claim}, judge)


def _defer(stage: Stage, *, at_once: bool) -> Duel:
    """A worker of the old release puts off a type that it does not know; one of the new release claims it."""
    task_id = stage.task()

    def judge(answers: Answers) -> None:
        row = stage.row(task_id)
        assert not answers["old"].leases
        if answers["new"].leases:
            assert_running(stage, task_id, fence=1, attempts=1)
            assert (row.later, answers["old"].not_due) == (0, ())
        else:
            assert (row.status, row.later) == (Status.PENDING, 1)
            told = [late.id for late in (*answers["old"].not_due, *answers["new"].not_due)]
            assert task_id in told, "nobody puts it into the sorted set"

    return Duel(
        {
            "old": lambda: stage.one.claim(task_id, known=frozenset({"another"}), queues=frozenset({"default"})),
            "new": lambda: stage.two.claim(task_id, at_once=at_once),
        },
        judge,
    )


RACES("reschedule of an unknown type x claim", old="claim.before_commit", new="claim.before_commit")(
    partial(_defer, at_once=False)
)
RACES("reschedule of an unknown type x claim, in one packet", old="claim.before_commit", new="claim.before_commit")(
    partial(_defer, at_once=True)
)


@RACES(
    "discard of an expired task x claim",
    discard="discard.before_lock=promote.before discard.before_commit=expire.before_commit",
    claim="claim.before_commit",
)
def discard_and_claim(stage: Stage) -> Duel:
    """It may start until its ``expires``, which passes while the claim is under way."""
    task_id = stage.task(expires_s=1.0)
    stage.seam(stage.two.store.queries, "lock_expired", "promote.before")
    stage.seam(stage.two.store.settler, "count", "expire.before_commit")

    def discard() -> list[int]:
        stage.clock.advance(2.0)
        return [ended.id for ended in stage.two.store.discard_expired(LOW, limit=10)]

    def judge(answers: Answers) -> None:
        row = stage.row(task_id)
        if ids_of(answers["claim"]):
            assert answers["discard"] == []
            assert_running(stage, task_id, fence=1, attempts=1)
        else:
            assert [*answers["discard"], *(ended.id for ended in answers["claim"].ended)] == [task_id]
            assert (row.status, row.fence, stage.counted("dead")) == (Status.DEAD, 0, 1)

    return Duel({"claim": lambda: stage.one.claim(task_id), "discard": discard}, judge)
