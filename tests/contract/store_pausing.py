"""The store contract: what operators have paused, and tasks of paused types."""

from __future__ import annotations

from datetime import timedelta

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import Event, Status
from tandemq.core.pausing import Paused, PauseKind
from tandemq.store import SqlStore
from tandemq.store.holding import HOLD_S
from tandemq.testing import FakeClock
from tests.contract.store_contract import DEFAULT, StoreContract, claim, fail, insert, settle, succeed


def deed(action: str = "pause") -> Deed:
    return Deed(action=action, who="ada", reason="maintenance")


def pause(store: SqlStore, name: str = "shop.pay", for_s: float | None = None) -> None:
    store.pause(PauseKind.TYPE, name, for_s, deed=deed())


def resume(store: SqlStore, name: str = "shop.pay") -> bool:
    return store.resume(PauseKind.TYPE, name, deed=deed("resume"))


def held_rows(store: SqlStore) -> int:
    return int(store.db.read(lambda tx: tx.one(f"SELECT COUNT(*) FROM {store.sql.held_tasks}"))[0])


class PausingContract(StoreContract):
    def test_a_pause_holds_until_it_is_ended_or_runs_out(self, timed: SqlStore, clock: FakeClock) -> None:
        timed.pause(PauseKind.QUEUE, "mail", None, deed=deed())
        timed.pause(PauseKind.QUEUE, "images", 60.0, deed=deed())
        pause(timed)
        assert Paused.of(timed.pauses()) == Paused(frozenset({"mail", "images"}), frozenset({"shop.pay"}))
        images, mail, _ = timed.pauses()
        assert (images.until, mail.until) == (images.since + timedelta(seconds=60), None)
        assert (mail.who, mail.reason) == ("ada", "maintenance")
        clock.advance(61)
        assert [p.name for p in timed.pauses()] == ["mail", "shop.pay"]
        assert not timed.resume(PauseKind.QUEUE, "images", deed=deed("resume"))
        assert timed.resume(PauseKind.QUEUE, "mail", deed=deed("resume"))
        assert resume(timed)
        assert not resume(timed)
        assert timed.pauses() == []
        assert [r.action for r in timed.audit().items] == ["resume", "resume", "pause", "pause", "pause"]

    def test_paused_again_it_has_the_new_end(self, store: SqlStore) -> None:
        pause(store, for_s=10.0)
        (first,) = store.pauses()
        pause(store)
        (second,) = store.pauses()
        assert (first.since, second.until) == (second.since, None)

    def test_a_task_of_a_paused_type_is_held_and_is_due_when_the_pause_ends(
        self, timed: SqlStore, clock: FakeClock
    ) -> None:
        mine, other = insert(timed)[0], insert(timed, task_type="shop.ship")[0]
        pause(timed)
        claimed = claim(timed, [mine, other], paused={"shop.pay"})
        assert [lease.id for lease in claimed.leases] == [other]
        assert [(row.id, row.level) for row in claimed.not_due] == [(mine, DEFAULT)]
        held = timed.get(mine)
        assert held is not None
        assert (held.status, held.attempts, held.run_at) == ("pending", 0, timed.now() + timedelta(seconds=HOLD_S))
        assert timed.release_held(10) == ([], False)  # still paused
        resume(timed)
        clock.advance(10.0)
        (moved,), more = timed.release_held(10)
        assert (moved.id, moved.level, moved.event, moved.status) == (mine, DEFAULT, Event.REPLAY, Status.PENDING)
        assert not more
        again = timed.get(mine)
        assert again is not None
        assert again.run_at == timed.now(), "behind what waits already, in the database as in Redis"
        assert timed.release_held(10) == ([], False)
        assert len(claim(timed, [mine]).leases) == 1

    def test_a_hold_ends_with_a_pause_that_runs_out(self, timed: SqlStore, clock: FakeClock) -> None:
        (mine,) = insert(timed)
        pause(timed, for_s=5.0)
        (row,) = claim(timed, [mine], paused={"shop.pay"}).not_due
        assert row.due_ms == round((timed.now() + timedelta(seconds=5)).timestamp() * 1000)
        clock.advance(5.0)
        assert timed.release_held(10) == ([], False), "it is due, and waits in Redis for the mover"
        assert held_rows(timed) == 0
        assert len(claim(timed, [mine]).leases) == 1
        assert timed.release_held(10) == ([], False)

    def test_what_lies_behind_can_be_held_without_a_claim(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = insert(timed, 3)
        (other,), (later,) = insert(timed, task_type="shop.ship"), insert(timed, delay_s=60)
        (over,) = insert(timed, expires_s=5)
        (running,) = claim(timed, insert(timed)).leases
        clock.advance(6)
        every = [*ids, other, later, over, running.id, 10**9]
        assert timed.hold(every, {"shop.pay"}) == [], "it is not paused in the database"
        pause(timed, for_s=60.0)
        end_ms = round((timed.now() + timedelta(seconds=60)).timestamp() * 1000)
        held = timed.hold(every, {"shop.pay", "shop.gone"})
        assert [(row.id, row.level, row.due_ms) for row in held] == [(i, DEFAULT, end_ms) for i in ids]
        assert timed.hold(every, {"shop.pay"}) == timed.hold([], {"shop.pay"}) == timed.hold(every, set()) == []
        assert [lease.id for lease in claim(timed, [other]).leases] == [other]
        resume(timed)
        assert [move.id for move in timed.release_held(10)[0]] == ids

    def test_a_claim_that_has_not_heard_of_the_end_is_a_claim(self, store: SqlStore) -> None:
        (mine,) = insert(store)
        assert [lease.id for lease in claim(store, [mine], paused={"shop.pay"}).leases] == [mine]

    def test_held_twice_it_keeps_its_place(self, timed: SqlStore, clock: FakeClock) -> None:
        (first,) = insert(timed, delay_s=1)
        (second,) = insert(timed, delay_s=2)
        (third,) = insert(timed)
        clock.advance(2)
        pause(timed)
        for _ in range(2):
            claim(timed, [first, third], paused={"shop.pay"})
            clock.advance(HOLD_S)
        claim(timed, [second, first, third], paused={"shop.pay"})
        resume(timed)
        assert [move.id for move in timed.release_held(10)[0]] == [third, first, second]

    def test_held_anew_after_it_was_moved_by_somebody_it_is_not_forgotten(
        self, timed: SqlStore, clock: FakeClock
    ) -> None:
        (mine,) = insert(timed)
        pause(timed)
        claim(timed, [mine], paused={"shop.pay"})
        timed.cancel(mine)
        timed.replay([mine])
        clock.advance(1)
        claim(timed, [mine], paused={"shop.pay"})
        resume(timed)
        assert [move.id for move in timed.release_held(10)[0]] == [mine]
        assert held_rows(timed) == 0

    def test_what_is_held_keeps_no_burst_going(self, timed: SqlStore, clock: FakeClock) -> None:
        (mine,) = insert(timed)
        settle(timed, (claim(timed, [mine]).leases[0], fail(60)))
        clock.advance(61)
        pause(timed)
        assert timed.busy(["default"]), "nobody has met it"
        claim(timed, [mine], paused={"shop.pay"})
        assert not timed.busy(["default"])
        resume(timed)
        assert timed.busy(["default"]), "it goes on from here"

    def test_how_many_run_in_a_queue(self, store: SqlStore) -> None:
        claim(store, insert(store, 3))
        claim(store, insert(store, 2, queue="mail", priority=5))
        (ended,) = claim(store, insert(store, queue="mail")).leases
        settle(store, (ended, succeed()))
        assert [store.running(queue) for queue in ("default", "mail", "other")] == [3, 2, 0]

    def test_what_was_moved_meanwhile_is_left_alone(self, timed: SqlStore, clock: FakeClock) -> None:
        cancelled, again = insert(timed, 2)
        pause(timed)
        claim(timed, [cancelled, again], paused={"shop.pay"})
        timed.cancel(cancelled)
        timed.cancel(again)
        clock.advance(1.0)
        timed.replay([again])
        task = timed.get(again)
        resume(timed)
        assert timed.release_held(10) == ([], False)
        assert timed.get(again) == task

    def test_many_are_woken_in_chunks_oldest_first(self, store: SqlStore) -> None:
        ids = insert(store, 5)
        pause(store)
        claim(store, ids, paused={"shop.pay"})
        resume(store)
        first, more = store.release_held(3)
        rest, over = store.release_held(3)
        assert [move.id for move in (*first, *rest)] == ids
        assert (more, over) == (True, False)
