"""Leases that nobody renews end, and only those."""

from __future__ import annotations

import pytest

from tandemq.core import crash
from tandemq.core.codec import encode
from tandemq.core.errors import StoreUnavailable
from tandemq.core.lifecycle import Event, Status, Succeed
from tandemq.core.retry import Constant, backoff_spec
from tandemq.core.task import Level
from tandemq.store.answers import Moved, Settlement
from tandemq.testing import FakeClock
from tests.healing import LOW, WORKER, World


def run_out(world: World) -> None:
    world.clock.advance(world.settings.lease_s + 1)


def test_a_lost_lease_uses_the_attempt_and_waits_its_backoff_in_the_sorted_set(world: World) -> None:
    (task_id,) = world.enqueue()
    reconciler = world.reconciler()
    world.claim(world.broker.pop([LOW], limit=1, wait_s=0).ids)
    world.arm(reconciler)

    report = world.passes(reconciler)[0]

    assert (report.expired, report.retried, report.armed) == (1, 1, True)
    task = world.store.get(task_id, attempts=True)
    assert (task.status, task.attempts) == (Status.PENDING, 1)
    assert [a.outcome for a in task.attempts_log] == ["lease_lost"]
    assert task.attempts_log[0].worker_id == WORKER
    delay_s = (task.run_at - world.clock.now()).total_seconds() + world.settings.reconcile_s
    assert 4 <= delay_s <= 6, "5 s moved by at most 20 %"
    assert world.listed() == []
    assert world.scheduled() == pytest.approx({task_id: task.run_at.timestamp() * 1000}, abs=1)


def test_the_rows_own_backoff_counts(world: World) -> None:
    (task_id,) = world.insert(options=encode({"backoff": backoff_spec(Constant(100.0))}, "options"))
    reconciler = world.reconciler()
    world.claim([task_id])
    world.arm(reconciler)

    ended_at = world.clock.now()
    assert world.passes(reconciler)[0].expired == 1

    assert 80 <= (world.store.get(task_id).run_at - ended_at).total_seconds() <= 120


def test_the_last_attempt_ends_dead_and_is_told(world: World) -> None:
    """max_retries=0: a run that may have begun is never begun again."""
    told: list[Moved] = []
    (task_id,) = world.enqueue(max_retries=0)
    reconciler = world.reconciler(on_dead=told.extend)
    world.claim([task_id])
    world.arm(reconciler)

    report = world.passes(reconciler)[0]

    assert (report.expired, report.dead, report.retried) == (1, 1, 0)
    assert world.store.get(task_id).dead_reason == "lease_lost"
    assert [(m.id, m.task_type, m.dead_reason) for m in told] == [(task_id, "noop", "lease_lost")]


def test_what_is_told_of_the_dead_may_fail_and_the_pass_goes_on(world: World) -> None:
    ids = world.enqueue(2, max_retries=0)

    def broken(_: object) -> None:
        raise ValueError("bug in on_dead_letter")

    reconciler = world.reconciler(on_dead=broken)
    for task_id in ids:
        world.claim([task_id])
    world.arm(reconciler)

    assert world.passes(reconciler)[0].dead == 2


def test_a_lease_renewed_between_the_read_and_the_end_is_not_ended(world: World) -> None:
    """Red under: expire without asking again whether the claim is past its end (double run under a live lease)."""
    ids = world.enqueue(3)
    reconciler = world.reconciler()
    token = world.claim(ids)
    world.arm(reconciler)
    world.sql("UPDATE {t}claims SET expires_at = :past", past=world.clock.now().replace(tzinfo=None))
    world.clock.advance(1)

    def renew(*_: object, **__: object) -> None:
        future = world.clock.now().replace(tzinfo=None, year=2031)
        world.sql("UPDATE {t}claims SET expires_at = :future WHERE lease_token = :token", future=future, token=token)

    world.store.before["end_lease"] = renew
    report = world.passes(reconciler)[0]

    assert (report.expired, report.renewed) == (0, 1)
    assert {world.status(i) for i in ids} == {Status.RUNNING}


def test_only_rows_that_still_carry_the_token_are_taken(world: World) -> None:
    """Red under: expire by ids without the token (takes another worker's lease)."""
    ids = world.enqueue(2)
    reconciler = world.reconciler()
    token = world.claim(ids)
    world.arm(reconciler)
    # The claims row still names both ids; one was handed back and claimed by another.
    world.sql("UPDATE {t}tasks SET lease_token = 4711 WHERE id = :id", id=ids[0])
    world.sql(
        "INSERT INTO {t}claims (lease_token, worker_id, expires_at, ids) SELECT 4711, 'other', '2031-01-01', ids"
        " FROM {t}claims WHERE lease_token = :token",
        token=token,
    )

    report = world.passes(reconciler)[0]

    assert report.expired == 1
    assert [world.status(i) for i in ids] == [Status.RUNNING, Status.PENDING]


def test_a_cancel_request_on_a_lost_row_ends_it_cancelled(world: World) -> None:
    """Red under: pending written without looking at the request (a cancelled task starts)."""
    (task_id,) = world.enqueue()
    reconciler = world.reconciler()
    world.claim(world.broker.pop([LOW], limit=1, wait_s=0).ids)
    assert world.store.cancel(task_id) == "requested"
    world.arm(reconciler)

    report = world.passes(reconciler)[0]

    assert (report.cancelled, report.retried) == (1, 0)
    assert world.status(task_id) is Status.CANCELLED
    assert world.scheduled() == {}


def test_after_an_outage_longer_than_the_lease_nothing_is_ended_before_a_lease_of_contact(world: World) -> None:
    """Red under: expiry that is not armed (every lease has run out, for nobody could renew)."""
    ids = world.enqueue(20)
    reconciler = world.reconciler()
    world.arm(reconciler)
    leases = [
        world.store.claim(
            [i], token=i, worker_id=WORKER, lease_s=world.settings.lease_s, free=1, known=None, unknown_task_s=60.0
        ).leases[0]
        for i in ids
    ]

    with world.outage(world.store, StoreUnavailable("away")):
        for _ in range(30):
            world.clock.advance(world.settings.reconcile_s)
            with pytest.raises(StoreUnavailable):
                reconciler.step()
    report = world.passes(reconciler)[0]

    assert (report.overdue, report.expired, report.armed) == (len(ids), 0, False)
    done = world.store.finish([Settlement(leases[0], Succeed())], closing=[leases[0].token], worker_id=WORKER)
    assert [m.status for m in done.moved] == [Status.SUCCEEDED], "the worker is quicker"
    reports = world.passes(reconciler, 15)
    assert [report.expired for report in reports] == [0] * 14 + [len(ids) - 1], "the others are really lost"


def test_a_new_leader_has_seen_nothing_yet(world: World) -> None:
    world.claim(world.enqueue())
    run_out(world)

    report = world.reconciler().run_once()

    assert (report.overdue, report.expired) == (1, 0)


def test_a_standby_is_armed_when_it_takes_over(world: World) -> None:
    """Contact counts, not leadership: a dead leader's successor need not wait a lease more."""
    leader, standby = world.reconciler(lead=True), world.reconciler(lead=True)
    world.claim(world.enqueue(), lease_s=world.settings.lease_s + 10)
    for _ in range(20):
        leader.step()
        standby.step()
        world.clock.advance(world.settings.reconcile_s)
    assert not standby.last_report.armed

    for _ in range(6):
        standby.step()
        world.clock.advance(world.settings.reconcile_s)

    assert standby.last_report.armed
    assert world.store.expired_claims(10) == []


def test_a_database_clock_that_jumps_disarms(world: World) -> None:
    """Red under: trusting the database's clock alone (set forward by an hour it ends every lease)."""
    world.claim(world.enqueue())
    local = FakeClock()
    reconciler = world.reconciler(clock=local)
    for _ in range(20):
        reconciler.run_once(looks=1)
        world.clock.advance(1)
        local.advance(1)

    world.clock.advance(3600)
    report = reconciler.run_once(looks=1)

    assert (report.armed, report.expired, report.overdue) == (False, 0, 1)


@pytest.mark.parametrize("point", ["expire.before_commit", "expire.after_commit"])
def test_killed_at_the_commit_of_an_expiry_nothing_is_lost(world: World, point: str) -> None:
    """Before: all of it is undone. After: the ids are in no list, the window finds them when they are due."""
    ids = world.enqueue(3)
    reconciler = world.reconciler()
    world.claim(world.broker.pop([LOW], limit=3, wait_s=0).ids)
    world.arm(reconciler)
    crash.arm(f"{point}:1:raise")
    try:
        with pytest.raises(RuntimeError, match="crash point"):
            reconciler.run_once()
    finally:
        crash.arm(None)
    states = {world.status(i) for i in ids}
    assert states == ({Status.RUNNING} if point == "expire.before_commit" else {Status.PENDING})

    for _ in range(10):
        world.passes(reconciler)

    assert sorted(world.listed()) == ids
    assert {world.store.get(i).attempts for i in ids} == {1}


def test_rows_whose_expires_passed_end_dead_and_are_told(world: World) -> None:
    told: list[Moved] = []
    old = world.enqueue(2, expires_s=10)
    young = world.enqueue(1, expires_s=1000)
    reconciler = world.reconciler(on_dead=told.extend)
    world.clock.advance(11)

    report = world.passes(reconciler)[0]

    assert report.discarded == 2
    assert [world.store.get(i).dead_reason for i in old] == ["expired"] * 2
    assert world.status(young[0]) is Status.PENDING
    assert [(m.id, m.event, m.level) for m in told] == [(i, Event.DISCARD, Level("default", 0)) for i in old]
