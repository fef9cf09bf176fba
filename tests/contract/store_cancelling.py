"""The store contract: requests that may cost a process, and attempts that are stopped on request."""

from __future__ import annotations

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import Bury, DeadReason, Event, Failure, Status
from tandemq.store import SqlStore
from tandemq.store.answers import Settlement
from tandemq.testing import FakeClock
from tests.contract.store_contract import Sql, StoreContract, claim, insert, lease, settle, succeed

STOPPED = Bury(DeadReason.INTERRUPTED, Failure("Cancelled", "it stopped on request"), "cancelled", yields=True)


def deed(task_id: int) -> Deed:
    return Deed(action="cancel", who="ada", reason="", task_id=task_id)


class CancellingContract(StoreContract):
    def test_a_kill_is_of_one_lease_and_noted_once(self, store: SqlStore) -> None:
        one, other = claim(store, insert(store, 2)).leases
        store.cancel(one.id, deed=deed(one.id))
        assert store.kills([one.token]) == set()
        for _ in range(2):
            assert store.cancel(one.id, kill=True, deed=deed(one.id)) == "requested"
        assert store.kills([one.token, 1]) == {(one.token, one.id)}
        assert store.cancel_requested([one.id, other.id]) == {one.id}
        assert [r.n for r in store.audit(task_id=one.id).items] == [1, 1]  # the request, and the kill
        assert store.cancel(other.id, kill=True, deed=deed(other.id)) == "requested"
        assert [r.n for r in store.audit(task_id=other.id).items] == [1]
        assert store.kills([]) == set()

        settle(store, (one, STOPPED), (other, STOPPED))
        store.replay([one.id])
        (again,) = claim(store, [one.id]).leases
        assert store.cancel(one.id) == "requested"
        assert store.kills([again.token]) == set()

    def test_what_does_not_run_needs_no_kill(self, store: SqlStore, sql: Sql) -> None:
        waiting, done = insert(store)[0], lease(store)
        settle(store, (done, succeed()))
        assert [store.cancel(i, kill=True) for i in (waiting, done.id)] == ["cancelled", "succeeded"]
        assert sql("SELECT COUNT(*) FROM tandemq_kills")[0][0] == 0

    def test_old_kills_go_with_the_next_one(self, timed: SqlStore, clock: FakeClock, sql: Sql) -> None:
        one, two = claim(timed, insert(timed, 2)).leases
        timed.cancel(one.id, kill=True)
        clock.advance(8 * 86_400)
        timed.cancel(two.id, kill=True)
        assert sql("SELECT task_id FROM tandemq_kills") == [(two.id,)]

    def test_what_is_stopped_on_request_ends_cancelled_on_its_last_attempt_too(self, store: SqlStore) -> None:
        (only,) = claim(store, insert(store, max_retries=0)).leases
        store.cancel(only.id)
        for _ in range(2):  # and again, as after a lost answer
            settled = store.finish([Settlement(only, STOPPED)], closing=[only.token], worker_id="w1")
            (moved,) = settled.moved
            assert (moved.event, moved.status, moved.dead_reason) == (Event.CANCEL_RUNNING, Status.CANCELLED, "")
            assert settled.fenced == ()
        task = store.get(only.id, attempts=True)
        assert task is not None
        assert (task.status, task.dead_reason) == (Status.CANCELLED, None)
        assert [(a.outcome, a.error_type) for a in task.attempts_log] == [("cancelled", "Cancelled")]
        assert store.counts()["ended"]["cancelled"] == 1

    def test_success_wins_over_a_kill_and_nobody_is_cancelled_without_a_request(self, store: SqlStore) -> None:
        one, two = claim(store, insert(store, 2)).leases
        store.cancel(one.id, kill=True)
        settle(store, (one, succeed()), (two, STOPPED))
        assert store.ending(one.id)[0] is Status.SUCCEEDED  # type: ignore[index]
        assert store.ending(two.id)[::3] == (Status.DEAD, "interrupted")  # type: ignore[index]
