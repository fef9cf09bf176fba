"""Claims of workers in other languages, without HTTP: order, what is no work, answers that are lost, Redis away."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq.broker.client import Role
from tandemq.core.errors import BrokerUnavailable, StoreRefused, StoreUnavailable, StoreUnknown
from tandemq.core.lifecycle import Status
from tandemq.core.task import Level
from tandemq.remote import Claims, Proof, Token, Wanted
from tandemq.remote import claims as claims_module
from tandemq.store.answers import Settled
from tandemq.testing import FakeClock
from tests.unit.remote_bed import LOW, ME, Bed
from tests.waiting import eventually


@pytest.fixture
def bed(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> Bed:
    return Bed(tandemq_app, tandemq_clock)


def test_priority_comes_first_over_all_queues_then_the_oldest_each_under_its_own_token(bed: Bed) -> None:
    low, high = bed.enqueue(), bed.enqueue(queue="other", priority="high")
    low2, odd = bed.enqueue(), bed.enqueue(priority=7)
    foreign = bed.enqueue(queue="foreign", priority="critical")
    leases = bed.take(10, queues=("default", "other"))

    assert [lease.id for lease in leases] == [high, odd, low, low2]
    assert len({lease.token for lease in leases}) == 4
    assert all(bed.store.holding(lease.id).is_alone for lease in leases)
    assert bed.state(foreign) == ("ready", 0)
    assert bed.take() == []


def test_no_more_is_popped_than_was_asked_for(bed: Bed) -> None:
    ids = [bed.enqueue() for _ in range(5)]
    assert [lease.id for lease in bed.take(2)] == ids[:2]
    assert bed.listed() == ids[2:]


def test_large_payloads_end_a_claim_and_the_others_go_back_in_order(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "MAX_PAYLOADS", 1000)
    ids = [bed.enqueue(payload={"x": "x" * 600}) for _ in range(5)]
    assert [lease.id for lease in bed.take(5)] == ids[:2]
    assert bed.listed() == ids[2:]


def test_copies_junk_and_rows_of_other_queues_are_no_work(bed: Bed) -> None:
    done, later, lost = bed.enqueue(), bed.enqueue(delay=60), bed.enqueue(queue="other")
    bed.take()
    mine = bed.enqueue()
    bed.listed(Level("other", 0))
    bed.app.broker.pop([Level("other", 0)], limit=1, wait_s=0.0)
    bed.app.broker.push_next(LOW, [done, 4711, later, lost])
    with bed.broker._inner._connections.use(Role.SERVE) as raw:
        raw.rpush("tandemq:{default}:ready:0", "junk")

    assert [lease.id for lease in bed.take(2)] == [mine]
    assert bed.listed() == []
    assert bed.listed(Level("other", 0)) == [lost], "it goes to its own list"
    assert bed.broker.delayed(LOW) == 1


def test_unknown_types_wait_by_run_at_and_end_when_nobody_knows_them(bed: Bed) -> None:
    stranger, mine = bed.enqueue("b"), bed.enqueue("a")
    assert [lease.id for lease in bed.take(2, types=frozenset({"a"}))] == [mine]
    assert bed.state(stranger) == ("scheduled", 0)

    bed.clock.advance(bed.app.settings.unknown_task_s + 1)
    bed.app.broker.push(LOW, [stranger])
    assert bed.take(types=frozenset({"a"})) == []
    assert (bed.task(stranger).status, bed.task(stranger).dead_reason) == (Status.DEAD, "unknown_task")


def test_what_is_past_its_expiry_ends_unclaimed(bed: Bed) -> None:
    late = bed.enqueue(expires=5)
    bed.clock.advance(6)
    assert bed.take() == []
    assert bed.task(late).dead_reason == "expired"


def test_a_last_attempt_is_claimed(bed: Bed) -> None:
    task_id = bed.enqueue(max_retries=0)
    assert [lease.id for lease in bed.take(3)] == [task_id]


def test_the_worker_is_shown_the_task_its_token_and_the_end_of_its_lease(bed: Bed) -> None:
    task_id = bed.enqueue(payload={"n": 1})
    wanted = Wanted(worker_id=ME, queues=("default",), types=None, most=1, lease_s=1.5)
    leases = bed.claims.take(wanted)
    (job,) = bed.claims.show(leases, wanted)

    task = bed.task(task_id).to_json()
    assert {name: job[name] for name in task} == task
    assert job["lease_token"] == str(Token(leases[0].token, 1.5))
    assert job["lease_expires_at"] == (bed.clock.now() + timedelta(seconds=1.5)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    bed.clock.advance(2)
    assert bed.expire(task_id)
    assert bed.claims.show(leases, wanted) == [], "nobody's"
    bed.clock.advance(60)
    bed.app.broker.push(LOW, [task_id])
    assert len(bed.take(worker_id="another")) == 1
    assert bed.claims.show(leases, wanted) == [], "somebody else's"


def test_a_claim_that_is_handed_back_used_no_attempt_and_is_next(bed: Bed) -> None:
    first, second, third = bed.enqueue(), bed.enqueue(), bed.enqueue()
    bed.claims.hand_back(bed.take(2), ME)
    assert [bed.state(i) for i in (first, second)] == [("ready", 0)] * 2
    assert bed.listed() == [first, second, third]
    assert not bed.claims.owes


# lost answers


def test_a_claim_whose_answer_was_lost_is_given_back_and_never_shown(bed: Bed) -> None:
    task_id = bed.enqueue()
    bed.fails(bed.store, "claim", StoreUnknown("cut"), when="after")
    with pytest.raises(StoreUnknown):
        bed.take()
    assert bed.state(task_id) == ("running", 1), "it was committed"

    bed.fails(bed.store, "give_back", StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        bed.claims.settle()
    assert bed.claims.owes
    bed.claims.settle()

    assert (bed.claims.owes, bed.state(task_id)) == (False, ("ready", 0))
    bed.clock.advance(claims_module.DATABASE_AWAY_S + 1)
    assert [lease.id for lease in bed.take()] == [task_id]


def test_an_outage_does_not_drain_the_lists(bed: Bed) -> None:
    ids = [bed.enqueue() for _ in range(3)]
    bed.fails(bed.store, "claim", StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        bed.take(3)
    assert bed.listed() == ids
    assert not bed.claims.owes, "nothing was written"

    pops = bed.broker.calls.count("pop")
    with pytest.raises(StoreUnavailable, match="a moment ago"):
        bed.take(3)
    assert bed.broker.calls.count("pop") == pops

    bed.clock.advance(claims_module.DATABASE_AWAY_S + 0.1)
    assert [lease.id for lease in bed.take(3)] == ids


def test_what_was_claimed_before_the_outage_is_not_forgotten(bed: Bed) -> None:
    ids = [bed.enqueue() for _ in range(3)]
    calls = iter([None, StoreUnavailable("away")])

    def hook(*_: Any, **__: Any) -> None:
        if (error := next(calls)) is not None:
            raise error

    bed.store.before["claim"] = hook
    assert [lease.id for lease in bed.take(3)] == ids[:1]
    assert bed.listed() == ids[1:]


def test_what_cannot_be_shown_or_handed_back_is_owed(bed: Bed) -> None:
    wanted = Wanted(worker_id=ME, queues=("default",), types=None, most=1, lease_s=30.0)
    for method, call in [
        ("get", lambda leases: bed.claims.show(leases, wanted)),
        ("finish", lambda leases: bed.claims.hand_back(leases, ME)),
    ]:
        task_id = bed.enqueue()
        leases = bed.take()
        bed.fails(bed.store, method, StoreUnavailable("away"))
        try:
            call(leases)
        except StoreUnavailable:
            assert method == "get"
        assert bed.claims.owes
        bed.claims.settle()
        assert bed.state(task_id) == ("ready", 0)
        bed.work.complete(task_id, Proof(str(Token(bed.take()[0].token, 30.0))))


def test_one_that_can_never_be_given_back_keeps_no_other(bed: Bed) -> None:
    bed.claims._owe(4711, 99)
    task_id = bed.enqueue()
    (lease,) = bed.take()
    bed.claims._owe(lease.token, lease.id)
    for error in (StoreRefused("a broken row"), ZeroDivisionError()):
        bed.claims._owe(4711, 99)
        bed.fails(bed.store, "give_back", error)
        bed.claims.settle()
        assert (bed.claims.owes, bed.state(task_id)) == (False, ("ready", 0))


def test_what_is_locked_when_it_is_handed_back_is_owed(bed: Bed) -> None:
    task_id = bed.enqueue()
    leases = bed.take()
    bed.store.finish = lambda *_, **__: Settled(locked=(task_id,))
    bed.claims.hand_back(leases, ME)
    assert bed.claims.owes
    bed.claims.settle()
    assert bed.state(task_id) == ("ready", 0)


@pytest.mark.parametrize("most", [1, 2])
def test_a_row_that_cannot_be_read_is_left_to_its_lease(bed: Bed, most: int) -> None:
    wanted = Wanted(worker_id=ME, queues=("default",), types=None, most=most, lease_s=30.0)
    broken, good = bed.enqueue(), bed.enqueue()

    def refuse(asked: Any, **_: Any) -> None:
        if broken in (asked if isinstance(asked, list) else [asked]):
            raise StoreRefused("a text that is no text")

    bed.store.before |= {"get": refuse, "full": refuse}
    shown = [job["id"] for _ in range(2) for job in bed.claims.show(bed.claims.take(wanted), wanted)]
    bed.store.before.clear()
    assert (shown, bed.claims.owes) == ([good], False)
    assert bed.state(broken) == ("running", 1)


def test_what_is_owed_is_bounded(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "MAX_OWED", 3)
    few = Claims(bed.app)
    for number in range(10):
        few._owe(number + 1, number + 1)
    few.settle()
    assert bed.store.calls.count("give_back") == 3


# without Redis


def test_with_redis_away_for_long_due_tasks_come_from_the_database(bed: Bed) -> None:
    high, low = bed.enqueue(priority="high"), bed.enqueue()
    bed.enqueue("stranger"), bed.enqueue(queue="other")
    with bed.redis_away():
        assert bed.take(5, types=frozenset({"a"})) == []
        bed.clock.advance(bed.app.settings.redis_away_s + 0.1)
        assert [lease.id for lease in bed.take(5, types=frozenset({"a"}))] == [high, low]
        assert bed.take(5, types=frozenset({"a"})) == []
    bed.clock.advance(10)
    again = bed.enqueue()
    assert [lease.id for lease in bed.take(1, types=frozenset({"a"}))] == [again]
    assert bed.claims.lists.next_look_s is None


def test_one_caller_pays_for_a_frozen_redis(bed: Bed) -> None:
    bed.enqueue()
    with bed.redis_away():
        bed.take()
    asked, release = threading.Event(), threading.Event()

    def freeze(*_: Any, **__: Any) -> None:
        asked.set()
        release.wait(20)
        raise BrokerUnavailable("timed out")

    bed.broker.before["check_writable"] = freeze
    pays = threading.Thread(target=bed.take)
    pays.start()
    assert asked.wait(20)
    assert bed.take() == [], "at once, while the other one waits"
    release.set()
    pays.join(20)
    assert not pays.is_alive()


def test_one_looks_at_a_time(bed: Bed) -> None:
    inside, most, release = [0], [0], threading.Event()

    def enter(*_: Any, **__: Any) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        release.wait(20)
        inside[0] -= 1

    with bed.redis_away():
        bed.take()
        bed.clock.advance(bed.app.settings.redis_away_s + 0.1)
        bed.store.before["open_levels"] = enter
        looks = [threading.Thread(target=bed.take) for _ in range(2)]
        for look in looks:
            look.start()
        eventually(lambda: inside[0])
        looks[1].join(0.3)  # time to enter, if nothing kept it
        release.set()
        for look in looks:
            look.join(20)
    assert most == [1]
