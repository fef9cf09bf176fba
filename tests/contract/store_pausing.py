"""The store contract: what operators have paused, and tasks of paused types."""

from __future__ import annotations

from datetime import timedelta

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import Event, Status
from tandemq.core.pausing import Paused, PauseKind
from tandemq.store import SqlStore
from tandemq.store.holding import HOLD_S
from tandemq.testing import FakeClock
from tests.contract.store_contract import DEFAULT, StoreContract, claim, insert


def deed(action: str = "pause") -> Deed:
    return Deed(action=action, who="ada", reason="maintenance")


def pause(store: SqlStore, name: str = "shop.pay", for_s: float | None = None) -> None:
    store.pause(PauseKind.TYPE, name, for_s, deed=deed())


def resume(store: SqlStore, name: str = "shop.pay") -> bool:
    return store.resume(PauseKind.TYPE, name, deed=deed("resume"))


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

    def test_a_task_of_a_paused_type_is_held_and_gets_its_time_back(self, timed: SqlStore, clock: FakeClock) -> None:
        mine, other = insert(timed)[0], insert(timed, task_type="shop.ship")[0]
        before = timed.get(mine)
        assert before is not None
        pause(timed)
        claimed = claim(timed, [mine, other], paused={"shop.pay"})
        assert [lease.id for lease in claimed.leases] == [other]
        assert [(row.id, row.level) for row in claimed.not_due] == [(mine, DEFAULT)]
        held = timed.get(mine)
        assert held is not None
        assert (held.status, held.attempts, held.run_at) == ("pending", 0, timed.now() + timedelta(seconds=HOLD_S))
        assert timed.release_held(10) == ([], False)  # still paused
        resume(timed)
        (moved,), more = timed.release_held(10)
        assert (moved.id, moved.level, moved.event, moved.status) == (mine, DEFAULT, Event.REPLAY, Status.PENDING)
        assert not more
        again = timed.get(mine)
        assert again is not None
        assert again.run_at == before.run_at
        assert timed.release_held(10) == ([], False)
        assert len(claim(timed, [mine]).leases) == 1

    def test_a_hold_ends_with_a_pause_that_runs_out(self, timed: SqlStore, clock: FakeClock) -> None:
        (mine,) = insert(timed)
        pause(timed, for_s=5.0)
        (row,) = claim(timed, [mine], paused={"shop.pay"}).not_due
        assert row.due_ms == round((timed.now() + timedelta(seconds=5)).timestamp() * 1000)
        clock.advance(5.0)
        assert len(claim(timed, [mine]).leases) == 1
        assert timed.release_held(10) == ([], False)

    def test_a_claim_that_has_not_heard_of_the_end_is_a_claim(self, store: SqlStore) -> None:
        (mine,) = insert(store)
        assert [lease.id for lease in claim(store, [mine], paused={"shop.pay"}).leases] == [mine]

    def test_held_twice_it_keeps_its_own_time(self, timed: SqlStore, clock: FakeClock) -> None:
        (mine,) = insert(timed)
        before = timed.get(mine)
        pause(timed)
        for _ in range(2):
            claim(timed, [mine], paused={"shop.pay"})
            clock.advance(HOLD_S)
        claim(timed, [mine], paused={"shop.pay"})
        resume(timed)
        timed.release_held(10)
        after = timed.get(mine)
        assert before is not None
        assert after is not None
        assert after.run_at == before.run_at

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
