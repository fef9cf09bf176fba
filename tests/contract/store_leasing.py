"""Contract of leases: claim, renew, hand back, and the end of a lease that nobody renews."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tandemq.core.lifecycle import Bury, DeadReason, Event, Release, Status
from tandemq.core.task import Lease, Level, epoch_ms
from tandemq.store import SqlStore
from tandemq.store.answers import Settlement
from tandemq.testing import FakeClock
from tests.contract.store_contract import (
    DEFAULT,
    LOST,
    OpenStore,
    Sql,
    StoreContract,
    bury,
    claim,
    fail,
    insert,
    lease,
    lost,
    row,
    settle,
    succeed,
)


def _leave(_: Lease) -> None:
    return None


class LeasingContract(StoreContract):
    # Claim

    def test_a_lease_holds_what_a_run_needs(self, store: SqlStore) -> None:
        (task_id,) = insert(store, payload='{"a":"😀"}', options='{"timeout":3}', priority=20, max_retries=1)
        (one,) = claim(store, [task_id], token=77).leases

        expected = Lease(task_id, "default", 20, "shop.pay", '{"a":"😀"}', '{"timeout":3}', 1, 1, 0, 1, 77)
        assert one._replace(waited_us=0) == expected
        task = store.get(task_id)
        assert task is not None
        assert (task.status, task.state, task.attempts, task.fence) == (Status.RUNNING, "running", 1, 1)
        assert task.worker_id == "w1"
        assert task.started_at is not None
        assert task.lease_expires_at is not None
        assert abs((task.lease_expires_at - task.started_at).total_seconds() - 30) < 0.5

    def test_leases_come_in_the_order_asked_for(self, store: SqlStore) -> None:
        ids = insert(store, 5)
        wanted = [ids[3], ids[0], ids[4], ids[3], ids[1]]

        assert [x.id for x in claim(store, wanted).leases] == [ids[3], ids[0], ids[4], ids[1]]

    def test_nothing_is_claimed_twice(self, store: SqlStore) -> None:
        ids = insert(store, 3)
        first = claim(store, ids[:2])
        second = claim(store, ids)

        assert [x.id for x in first.leases] == ids[:2]
        assert [x.id for x in second.leases] == ids[2:]
        assert second.dropped == tuple(ids[:2])

    def test_junk_missing_and_final_ids_are_dropped(self, store: SqlStore) -> None:
        done = lease(store)
        settle(store, (done, succeed()))
        claimed = claim(store, [done.id, 10**12, -1, 0, 2**70])

        assert claimed.leases == ()
        assert set(claimed.dropped) == {done.id, 10**12, -1, 0, 2**70}

    def test_an_id_that_is_popped_early_says_when_it_is_due(self, timed: SqlStore, clock: FakeClock) -> None:
        (answer,) = timed.insert([row(delay_s=1.5, priority=10)])
        early = claim(timed, [answer.id])
        clock.advance(1.6)

        assert early.leases == ()
        (not_due,) = early.not_due
        assert (not_due.id, not_due.level, not_due.due_ms) == (answer.id, Level("default", 10), answer.due_ms)
        assert [x.id for x in claim(timed, [answer.id]).leases] == [answer.id]

    def test_eight_racing_claimers_share_400_ids_without_a_double(self, store: SqlStore) -> None:
        ids = insert(store, 400)
        start = threading.Barrier(8)

        def race(worker: int) -> list[int]:
            got: list[int] = []
            start.wait()
            for at in range(0, 400, 20):
                # Each starts elsewhere in the list and goes through all of it.
                chunk = [ids[(worker * 50 + at + k) % 400] for k in range(20)]
                leases = claim(store, chunk[:: 1 if worker % 2 else -1], worker_id=f"w{worker}").leases
                got += [x.id for x in leases]
                settle(store, *((x, succeed()) for x in leases))
            return got

        with ThreadPoolExecutor(8) as pool:
            claimed = [task_id for got in pool.map(race, range(8)) for task_id in got]

        left = claim(store, ids)
        assert len(claimed) == len(set(claimed))
        assert sorted(claimed + [x.id for x in left.leases]) == ids

    def test_last_attempts_are_claimed_for_free_slots_only(self, store: SqlStore) -> None:
        (once,) = insert(store, max_retries=0, queue="once")
        many = insert(store, 3)
        claimed = claim(store, [many[0], many[1], once, many[2]], free=2)

        assert [x.id for x in claimed.leases] == many[:2]
        assert claimed.put_back == ((Level("once", 0), once), (DEFAULT, many[2]))
        assert [x.id for x in claim(store, [once, many[2]], free=1).leases] == [once, many[2]]

    def test_an_expired_task_is_dead_and_not_run(self, timed: SqlStore, clock: FakeClock) -> None:
        (task_id,) = insert(timed, expires_s=10)
        clock.advance(10)
        claimed = claim(timed, [task_id])
        task = timed.get(task_id)

        assert [(e.id, e.task_type, e.reason) for e in claimed.ended] == [(task_id, "shop.pay", "expired")]
        assert claimed.leases == ()
        assert task is not None
        assert (task.status, task.dead_reason, task.attempts, task.completed_at) == (
            Status.DEAD,
            "expired",
            0,
            clock.now(),
        )
        assert timed.counts()["ended"]["dead_total"] == 1

    def test_unknown_types_wait_with_backoff_then_end_dead(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = insert(timed, 2, task_type="new.code")
        began, delays = clock.now(), []
        while not (claimed := claim(timed, ids, known={"shop.pay"}, unknown_task_s=100)).ended:
            assert claimed.leases == ()
            assert [n.id for n in claimed.not_due] == ids
            delays.append(round(claimed.not_due[0].due_ms / 1000 - clock.now().timestamp(), 2))
            clock.advance(delays[-1] + 0.01)

        assert delays[:6] == pytest.approx([1, 1, 1.01, 1.52, 2.27, 3.4], abs=0.2)
        assert max(delays) <= 30.01
        assert timedelta(seconds=100) <= clock.now() - began <= timedelta(seconds=132)
        assert [e.reason for e in claimed.ended] == ["unknown_task"] * 2
        task = timed.get(ids[0])
        assert task is not None
        assert (task.status, task.dead_reason, task.attempts) == (Status.DEAD, "unknown_task", 0)

    def test_a_replay_of_an_unknown_type_waits_anew(self, timed: SqlStore, clock: FakeClock) -> None:
        (task_id,) = insert(timed, task_type="new.code")
        for _ in range(2):
            assert claim(timed, [task_id], known=set(), unknown_task_s=20).not_due
            clock.advance(25)
            assert claim(timed, [task_id], known=set(), unknown_task_s=20).ended
            assert timed.replay([task_id])

        assert [x.id for x in claim(timed, [task_id], known={"new.code"}).leases] == [task_id]

    def test_rows_of_other_programs_run(self, store: SqlStore, sql: Sql) -> None:
        sql("INSERT INTO tandemq_tasks (task_type, payload) VALUES ('shop.pay', '{}')")
        sql("INSERT INTO tandemq_tasks (task_type, payload, queue) VALUES ('a b;', 'no json [', 'odd queue!')")
        ((first,), (odd,)) = sql("SELECT id FROM tandemq_tasks ORDER BY id")
        claimed = claim(store, [first, odd])
        settle(store, *((x, succeed()) for x in claimed.leases))

        assert [(x.id, x.payload, x.max_retries) for x in claimed.leases] == [(first, "{}", 3), (odd, "no json [", 3)]
        assert sql("SELECT status FROM tandemq_tasks") == [("succeeded",), ("succeeded",)]
        task = store.get(first)
        assert task is not None
        assert task.expires_at is None

    def test_nothing_to_claim_is_no_round_trip(self, store: SqlStore) -> None:
        store.close()

        assert claim(store, []).leases == ()

    # Renew

    def test_a_renewed_lease_stands_on(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        clock.advance(20)
        assert timed.renew([one.token], worker_id="w1", lease_s=30) == {one.token}
        clock.advance(20)

        assert timed.expired_claims(10) == []
        assert timed.renew([one.token], worker_id="w1", lease_s=30) == {one.token}

    def test_renewing_twice_in_one_instant_is_not_lost(self, timed: SqlStore) -> None:
        one = lease(timed)

        assert [timed.renew([one.token], worker_id="w1", lease_s=30) for _ in range(2)] == [{one.token}] * 2

    def test_a_claim_that_ran_out_is_renewed_until_it_is_ended(self, timed: SqlStore, clock: FakeClock) -> None:
        one, other = (claim(timed, insert(timed)).leases[0] for _ in range(2))
        clock.advance(31)
        assert timed.renew([one.token], worker_id="w1", lease_s=30) == {one.token}

        ended = timed.end_lease(one.token, [one.id], judge=lambda _: Release(), worker_id="r", expired_only=True)
        assert ended is None
        ended = timed.end_lease(other.token, [other.id], judge=lambda _: Release(), worker_id="r", expired_only=True)
        assert ended is not None
        assert timed.renew([other.token], worker_id="w1", lease_s=30) == set()

    def test_only_its_own_worker_renews_a_lease(self, store: SqlStore) -> None:
        one = lease(store)

        assert store.renew([one.token, 12345], worker_id="w2", lease_s=30) == set()
        assert store.renew([], worker_id="w1", lease_s=30) == set()

    def test_a_long_worker_name_is_kept_by_its_end(self, store: SqlStore) -> None:
        name = "😀" * 60 + "-0123456789ab"
        (one,) = claim(store, insert(store), worker_id=name).leases
        task = store.get(one.id)

        assert store.renew([one.token], worker_id=name, lease_s=30) == {one.token}
        assert task is not None
        assert task.worker_id == name[-48:]

    # The end of a lease

    def test_an_expired_lease_is_judged_and_its_tasks_run_again(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = insert(timed, 2)
        claimed = claim(timed, ids)
        clock.advance(31)
        (found,) = timed.expired_claims(10)
        judged: list[Lease] = []

        def judge(one: Lease) -> object:
            judged.append(one)
            return lost(one)

        settled = timed.end_lease(found.token, found.ids, judge=judge, worker_id="r", expired_only=True)  # type: ignore[arg-type]

        assert (found.worker_id, found.ids) == ("w1", tuple(ids))
        assert judged == [one._replace(payload="") for one in claimed.leases]  # it is not read for this
        assert settled is not None
        assert [(m.id, m.event, m.status, m.due_ms) for m in settled.moved] == [
            (i, Event.RETRY, Status.PENDING, epoch_ms(clock.now())) for i in ids
        ]
        assert timed.expired_claims(10) == []
        task = timed.get(ids[0], attempts=True)
        assert task is not None
        assert (task.attempts, task.last_error) == (1, LOST.message)
        assert [(a.outcome, a.worker_id, a.attempt) for a in task.attempts_log] == [("lease_lost", "w1", 1)]
        assert [x.fence for x in claim(timed, ids).leases] == [2, 2]

    def test_a_lease_that_was_renewed_meanwhile_is_left_alone(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        clock.advance(29)
        timed.renew([one.token], worker_id="w1", lease_s=30)
        clock.advance(29)

        for judge in (lost, _leave):
            assert timed.end_lease(one.token, [one.id], judge=judge, worker_id="r", expired_only=True) is None
        task = timed.get(one.id, attempts=True)
        assert task is not None
        assert (task.status, task.attempts_log) == (Status.RUNNING, ())
        assert timed.renew([one.token], worker_id="w1", lease_s=30) == {one.token}

    def test_a_lease_can_be_ended_before_its_end_by_whoever_knows(self, store: SqlStore) -> None:
        one, two = claim(store, insert(store, 2)).leases
        kept = store.end_lease(
            one.token,
            [one.id, two.id],
            judge=lambda x: Release() if x.id == one.id else None,
            worker_id="w1",
            expired_only=False,
        )

        assert kept is not None
        assert [(m.id, m.event, m.due_ms) for m in kept.moved] == [(one.id, Event.RELEASE, None)]
        assert store.renew([one.token], worker_id="w1", lease_s=30) == {one.token}
        rest = store.end_lease(one.token, [two.id], judge=lost, worker_id="w1", expired_only=False)
        assert rest is not None
        assert store.renew([one.token], worker_id="w1", lease_s=30) == set()

    def test_ending_a_lease_spares_rows_that_moved_on(self, timed: SqlStore, clock: FakeClock) -> None:
        one, two = claim(timed, insert(timed, 2)).leases
        settle(timed, (one, Release()), closing=False)
        (again,) = claim(timed, [one.id], worker_id="w2").leases
        clock.advance(31)
        settled = timed.end_lease(one.token, [one.id, two.id], judge=lost, worker_id="r", expired_only=True)

        assert settled is not None
        assert [m.id for m in settled.moved] == [two.id]
        task = timed.get(one.id)
        assert task is not None
        assert (task.status, task.fence, task.worker_id) == (Status.RUNNING, again.fence, "w2")

    def test_a_lease_without_rows_goes_too(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed)
        settle(timed, (one, succeed()), closing=False)
        clock.advance(31)
        settled = timed.end_lease(one.token, [one.id], judge=lost, worker_id="r", expired_only=True)

        assert settled is not None
        assert settled.moved == ()
        assert timed.expired_claims(10) == []

    def test_a_last_attempt_lost_is_dead(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, max_retries=0)
        clock.advance(31)
        settled = timed.end_lease(
            one.token,
            [one.id],
            judge=lambda _: Bury(DeadReason.LEASE_LOST, LOST, "lease_lost"),
            worker_id="r",
            expired_only=True,
        )

        assert settled is not None
        assert [(m.status, m.dead_reason, m.attempt) for m in settled.moved] == [(Status.DEAD, "lease_lost", 1)]

    # Hand-back after a lost answer

    def test_giving_back_returns_the_attempt_and_may_be_repeated(self, store: SqlStore) -> None:
        claimed = claim(store, insert(store, 2))
        token, ids = claimed.leases[0].token, [x.id for x in claimed.leases]
        first, second = store.give_back(token, ids), store.give_back(token, ids)

        assert [(m.id, m.event) for m in first.moved] == [(i, Event.RELEASE) for i in ids]
        assert second.moved == first.moved
        assert store.renew([token], worker_id="w1", lease_s=30) == set()
        assert [x.attempt for x in claim(store, ids).leases] == [1, 1]

    def test_giving_back_a_claim_that_never_happened_moves_nothing(self, store: SqlStore) -> None:
        mine = lease(store)
        ids = insert(store, 1)

        assert store.give_back(999_999_999, [mine.id, *ids]).moved == ()
        task = store.get(mine.id)
        assert task is not None
        assert task.status is Status.RUNNING

    # Orphans

    def test_running_rows_without_a_claims_row_are_found_and_ended(self, store: SqlStore, sql: Sql) -> None:
        ids = insert(store, 30)
        claimed = claim(store, ids[::2]).leases
        orphan = claimed[3]
        sql("DELETE FROM tandemq_claims")
        second = lease(store)
        found: set[tuple[int, int]] = set()
        cursor, steps = 0, 0
        while steps == 0 or cursor:
            some, cursor = store.orphans(cursor, 1)
            found.update(some)
            steps += 1

        assert found == {(x.id, x.token) for x in claimed}
        assert 3 <= steps <= 5
        settled = store.end_orphan(orphan.id, orphan.token, judge=lost)
        assert [m.id for m in settled.moved] == [orphan.id]
        assert store.end_orphan(orphan.id, orphan.token, judge=lost).moved == ()
        assert store.end_orphan(second.id, second.token, judge=lost).moved == ()
        assert store.end_orphan(claimed[0].id, claimed[0].token, judge=_leave).moved == ()

    def test_the_sweep_jumps_over_gaps_in_the_ids(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        sql("INSERT INTO tandemq_tasks (id, task_type, payload) VALUES (5000000000, 'x', '{}')")
        sql("DELETE FROM tandemq_claims")
        found, cursor = store.orphans(0, 100)
        more, end = store.orphans(cursor, 100)

        assert (found, cursor, more, end) == ([(one.id, one.token)], 4_999_999_999, [], 0)

    def test_a_second_store_sees_leases_of_the_first(self, store: SqlStore, open_store: OpenStore) -> None:
        one = lease(store)
        other = open_store()

        settled = other.finish([Settlement(one, fail(0))], closing=[one.token], worker_id="w9")
        assert [m.id for m in settled.moved] == [one.id]
        assert [x.attempt for x in claim(store, [one.id]).leases] == [2]
        assert settle(store, (one, bury())).fenced == (one.id,)
