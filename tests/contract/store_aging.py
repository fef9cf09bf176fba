"""The store contract: max_age."""

from __future__ import annotations

import json

import pytest

from tandemq.core.lifecycle import RetryIn, Status
from tandemq.store import SqlStore
from tandemq.testing import FakeClock
from tests.contract.store_contract import FAILURE, StoreContract, claim, insert, lease, settle

LIMITED = json.dumps({"max_age": 60.0})


def retry(delay_s: float, max_age_s: float | None = 60.0) -> RetryIn:
    return RetryIn(delay_s, FAILURE, max_age_s=max_age_s)


class AgingContract(StoreContract):
    @pytest.mark.parametrize(("waited", "delay", "ends"), [(50, 5, "pending"), (50, 20, "dead"), (70, 0, "dead")])
    def test_a_retry_that_would_begin_too_late_is_a_death(
        self, timed: SqlStore, clock: FakeClock, waited: float, delay: float, ends: str
    ) -> None:
        one = lease(timed)
        clock.advance(waited)
        (move,) = settle(timed, (one, retry(delay))).moved
        task = timed.get(one.id, attempts=True)
        assert task is not None
        assert (task.status, move.status) == (ends, ends)
        if ends == "dead":
            assert (task.dead_reason, move.dead_reason) == ("retries_exhausted", "retries_exhausted")
            assert "max_age is 60 s" in (task.last_error or "")
            assert [a.error for a in task.attempts_log] == [task.last_error]
            assert timed.counts()["ended"]["dead"] == 1

    def test_without_it_age_does_not_matter(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        clock.advance(10**6)
        assert settle(timed, (one, retry(5, None))).moved[0].status is Status.PENDING

    def test_a_verdict_sent_again_is_accepted_again(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        clock.advance(100)
        first = settle(timed, (one, retry(5)))
        again = settle(timed, (one, retry(5)))
        assert (first.moved[0].status, again.moved[0].status) == ("dead", "dead")
        assert again.fenced == ()

    def test_neighbours_of_one_flush_are_judged_each_by_its_own_age(self, timed: SqlStore, clock: FakeClock) -> None:
        (old,) = insert(timed)
        clock.advance(100)
        (young,) = insert(timed)
        first, second = claim(timed, [old, young]).leases
        moved = {m.id: m.status for m in settle(timed, (first, retry(5)), (second, retry(5))).moved}
        assert moved == {old: Status.DEAD, young: Status.PENDING}

    def test_a_replay_begins_a_new_life(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, options=LIMITED)
        clock.advance(100)
        settle(timed, (one, retry(5)))
        clock.advance(1000)
        assert len(timed.replay([one.id])) == 1
        task = timed.get(one.id)
        assert task is not None
        assert json.loads(task.options)["max_age"] == 60
        clock.advance(50)
        (again,) = claim(timed, [one.id]).leases
        assert settle(timed, (again, retry(5))).moved[0].status is Status.PENDING
        clock.advance(20)
        (again,) = claim(timed, [one.id]).leases
        assert settle(timed, (again, retry(5))).moved[0].status is Status.DEAD

    @pytest.mark.parametrize(
        "options", ['{"max_age":60,"since":5}', '{"max_age":60,"since":"yesterday"}', '["max_age"]']
    )
    def test_odd_options_count_from_the_creation(self, timed: SqlStore, clock: FakeClock, options: str) -> None:
        one = lease(timed, options=options)
        clock.advance(100)
        assert settle(timed, (one, retry(5))).moved[0].status is Status.DEAD
        timed.replay([one.id])
