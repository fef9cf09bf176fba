"""The contract of replay runs: selected once, each item decided once, all of a chunk in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tandemq.core import crash
from tandemq.core.audit import Deed
from tandemq.core.errors import StoreRefused
from tandemq.core.lifecycle import Status
from tandemq.store import SqlStore
from tandemq.store.reviving import MISSING, TOO_LATE
from tandemq.store.runs import Ends, Hold, ReplayRun, Revival, RunState
from tandemq.testing import FakeClock
from tests.contract.store_contract import OpenStore, Sql, StoreContract, bury, claim, insert, settle, succeed

PLAIN = Revival()


def dead(store: SqlStore, count: int, **changes: Any) -> list[int]:
    leases = claim(store, insert(store, count, **changes)).leases
    settle(store, *((lease, bury()) for lease in leases))
    return [lease.id for lease in leases]


def begin(store: SqlStore, **changes: Any) -> tuple[ReplayRun, Hold]:
    given = {"created_by": "ann", "reason": "mended", "selection": '{"where":{}}', "orders": "{}"}
    run = store.create_run(**(given | changes), holder="me", hold_s=10.0)
    return run, Hold(run.id, "me", 10.0)


def running(store: SqlStore, ids: Sequence[int], *, any_state: bool = False) -> tuple[ReplayRun, Hold]:
    """A run of these tasks that is ready to move them."""
    run, hold = begin(store)
    assert store.select_items(hold, ids, below=run.select_below, following=0, any_state=any_state)
    assert store.turn_run(run.id, (RunState.SELECTING,), RunState.RUNNING, holder="me")
    return again(store, run), hold


def again(store: SqlStore, run: ReplayRun) -> ReplayRun:
    found = store.run(run.id)
    assert found is not None
    return found


def counts(run: ReplayRun) -> tuple[int, int, int, int]:
    return run.selected, run.moved, run.skipped, run.failed


class ReplayingContract(StoreContract):
    def test_a_page_is_selected_once_and_only_what_ended_before(self, timed: SqlStore, clock: FakeClock) -> None:
        old = dead(timed, 2)
        (ready,) = insert(timed)
        run, hold = begin(timed)
        clock.advance(1)
        young = dead(timed, 1)

        chosen = timed.select_items(hold, [*old, ready, *young], below=run.select_below, following=7, any_state=False)
        assert chosen is not None
        assert (chosen.selected, chosen.select_below) == (2, 7)
        assert timed.select_items(hold, old, below=run.select_below, following=3, any_state=False) is None
        assert timed.move_items(hold, old, revival=PLAIN, failed={}) is None  # not before all are selected
        assert timed.waiting_items(run.id, after=0, limit=10) == old
        assert counts(again(timed, run)) == (2, 0, 0, 0)

    def test_what_ended_in_the_moment_of_the_beginning_belongs_to_it(self, timed: SqlStore) -> None:
        ids = dead(timed, 1)
        run, hold = running(timed, ids)

        chunk = timed.move_items(hold, ids, revival=PLAIN, failed={})
        assert chunk is not None
        assert [move.id for move in chunk.moved] == ids
        assert run.selected == 1

    def test_a_chunk_is_all_of_it_or_nothing(self, store: SqlStore, sql: Sql) -> None:
        ids = dead(store, 3)
        run, hold = running(store, ids)
        crash.arm_call("replay.before_commit", lambda: (_ for _ in ()).throw(RuntimeError("dies here")), 1)
        try:
            with suppress(RuntimeError):
                store.move_items(hold, ids[:2], revival=PLAIN, failed={})
        finally:
            crash.arm(None)
        assert counts(again(store, run)) == (3, 0, 0, 0)
        assert store.waiting_items(run.id, after=0, limit=10) == ids
        assert store.audit().items == ()
        assert {store.ending(i)[0] for i in ids} == {Status.DEAD}  # type: ignore[index]

        for some in (ids[:2], ids[2:]):
            chunk = store.move_items(hold, some, revival=PLAIN, failed={})
            assert chunk is not None
            assert [m.id for m in chunk.moved] == some
        assert counts(again(store, run)) == (3, 3, 0, 0)
        assert [(i.outcome, i.replays) for i in store.run_items(run.id, outcome="moved")] == [("moved", 1)] * 3
        (record,) = store.audit().items
        assert (record.action, record.who, record.reason, record.run_id, record.n) == ("replay", "ann", "mended", 1, 3)

    def test_each_outcome_has_its_reason(self, timed: SqlStore, clock: FakeClock) -> None:
        fine, gone, done, late, bad = dead(timed, 5)
        run, hold = running(timed, [fine, gone, done, late, bad, 10**9], any_state=True)
        clock.advance(1)
        assert timed.replay([gone, done, late])
        for lease, verdict in zip(claim(timed, [done, late]).leases, (succeed(), bury()), strict=True):
            settle(timed, (lease, verdict))

        everything = timed.waiting_items(run.id, after=0, limit=10)
        chunk = timed.move_items(hold, everything, revival=PLAIN, failed={bad: "payload is too long", gone: "no"})
        assert chunk is not None
        assert ([m.id for m in chunk.moved], chunk.skipped, chunk.failed) == ([fine], 4, 1)
        assert timed.run_notes(run.id) == {
            ("moved", ""): 1,
            ("failed", "payload is too long"): 1,
            ("skipped", "it is pending"): 1,
            ("skipped", "it is succeeded"): 1,
            ("skipped", TOO_LATE): 1,
            ("skipped", MISSING): 1,
        }
        assert counts(again(timed, run)) == (6, 1, 4, 1)
        assert timed.move_items(hold, everything, revival=PLAIN, failed={}) == ((), (), 0, 0)

    def test_two_at_once_decide_each_item_once(self, store: SqlStore, open_store: OpenStore) -> None:
        ids = dead(store, 60)
        run, _ = running(store, ids)
        moved: list[int] = []

        def carry_out(name: str) -> None:
            own, hold = open_store(), Hold(run.id, name, 10.0)
            while some := own.candidates(run, canary=False, limit=5):
                own.hold_run(hold, take_over=True)
                chunk = own.move_items(hold, [c.id for c in some], revival=PLAIN, failed={})
                if chunk is not None:
                    moved.extend(m.id for m in chunk.moved)

        threads = [threading.Thread(target=carry_out, args=(f"t{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(moved) == ids
        assert counts(again(store, run)) == (60, 60, 0, 0)
        assert {t.replays for t in (store.get(i) for i in ids) if t is not None} == {1}

    def test_a_run_is_held_by_one_until_the_hold_runs_out(self, timed: SqlStore, clock: FakeClock) -> None:
        run, mine = begin(timed)
        other = Hold(run.id, "other", 10.0)

        assert timed.hold_run(mine)
        assert timed.hold_run(other) is None
        clock.advance(11)
        held = timed.hold_run(other)
        assert held is not None
        assert (held.holder, held.is_held) == ("other", True)
        assert timed.select_items(mine, [], below=run.select_below, following=0, any_state=False) is None
        assert timed.hold_run(mine, take_over=True)
        timed.release_run(other)
        assert timed.hold_run(other) is None
        timed.release_run(mine)
        assert timed.hold_run(other)

    def test_nothing_moves_while_it_is_paused_and_it_goes_on_where_it_was(self, timed: SqlStore) -> None:
        ids = dead(timed, 2)
        run, hold = running(timed, ids)

        deed = Deed(action="replay_pause", who="bob", run_id=run.id)
        assert timed.turn_run(run.id, (RunState.RUNNING,), RunState.PAUSED, note="by bob", deed=deed)
        assert not timed.turn_run(run.id, (RunState.RUNNING,), RunState.PAUSED)
        assert timed.move_items(hold, ids, revival=PLAIN, failed={}) is None
        assert timed.hold_run(hold) is None
        assert (again(timed, run).state, again(timed, run).note) == (RunState.PAUSED, "by bob")
        assert [r.action for r in timed.audit().items] == ["replay_pause"]

        assert timed.turn_run(run.id, (RunState.PAUSED,), None)
        assert (again(timed, run).state, again(timed, run).note) == (RunState.RUNNING, "")
        assert timed.move_items(hold, ids, revival=PLAIN, failed={}) is None  # the hold went with the pause
        assert timed.hold_run(hold)
        assert timed.move_items(hold, ids, revival=PLAIN, failed={})

    def test_another_level_and_an_edited_payload(self, store: SqlStore) -> None:
        one, other, changed = dead(store, 3)
        run, hold = running(store, [one, other, changed])
        old = '{"order":1}'
        payloads = {one: (old, '{"city":"Zürich 😀"}'), changed: ('{"order":2}', "{}")}

        revival = Revival(queue="slow", priority=7, payloads=payloads)
        chunk = store.move_items(hold, [one, other, changed], revival=revival, failed={})
        assert chunk is not None
        assert [tuple(m.level) for m in chunk.moved] == [("slow", 7)] * 2
        assert chunk.locked == (changed,)  # somebody has edited it since: read it again
        task = store.get(one)
        assert task is not None
        assert (task.payload, task.queue, task.priority) == ('{"city":"Zürich 😀"}', "slow", 7)
        left, kept = store.get(other), store.get(changed)
        assert left is not None
        assert kept is not None
        assert (left.payload, kept.payload, kept.state, kept.queue) == (old, old, "dead", "default")
        assert again(store, run).left == 1

    def test_the_fuse_sees_what_died_again_in_this_life(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = dead(timed, 6)
        run, hold = running(timed, ids)
        died, fine, _at_work, twice, purged, _waiting = ids
        assert timed.move_items(hold, ids, revival=PLAIN, failed={})
        leases = {lease.id: lease for lease in claim(timed, ids[:5]).leases}
        settle(timed, *((leases[i], bury()) for i in (died, twice, purged)), (leases[fine], succeed()), closing=False)
        timed.replay([twice])
        timed.purge([purged])

        run = again(timed, run)
        # ``twice`` was replayed once more, which only one that had died (or was cancelled) can be.
        assert timed.ends_of(run, canary=False, limit=100) == Ends(6, 4, 2)
        assert timed.ends_of(run, canary=False, limit=2).n == 2  # spread over all of them
        assert timed.ends_of(run, canary=True, limit=100) == Ends(0, 0, 0)
        clock.advance(1)
        assert timed.turn_run(run.id, (RunState.RUNNING,), RunState.PAUSED, watch_anew=True)
        assert timed.ends_of(again(timed, run), canary=False, limit=100) == Ends(0, 0, 0)

    def test_a_canary_is_marked_again_without_harm_and_waited_for(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = dead(timed, 4)
        run, hold = begin(timed)
        assert timed.select_items(hold, ids, below=run.select_below, following=0, any_state=False)
        for _ in range(2):
            assert timed.mark_canary(hold, ids[1:3])
        assert not timed.mark_canary(Hold(run.id, "other", 1.0), ids)
        assert timed.turn_run(run.id, (RunState.SELECTING,), RunState.CANARY, wait_s=5.0)

        run = again(timed, run)
        assert [c.id for c in timed.candidates(run, canary=True, limit=9)] == ids[1:3]
        assert [c.id for c in timed.candidates(run, canary=False, limit=9, but=ids[:2])] == ids[2:]
        assert not run.wait_is_over
        clock.advance(5.1)
        assert again(timed, run).wait_is_over

    def test_runs_are_listed_newest_first(self, store: SqlStore) -> None:
        first, second, third = (begin(store)[0].id for _ in range(3))
        assert store.turn_run(second, (RunState.SELECTING,), RunState.CANCELLED)

        assert [run.id for run in store.runs(limit=2)] == [third, second]
        assert [run.id for run in store.runs(limit=9, below=third)] == [second, first]
        assert [run.id for run in store.runs(limit=9, states=[RunState.SELECTING])] == [third, first]
        assert store.run(10**6) is None
        ended = store.run(second)
        assert ended is not None
        assert ended.ended_at is not None

    def test_a_replay_by_id_is_audited_in_its_transaction(self, store: SqlStore) -> None:
        ids = dead(store, 2)
        deed = Deed(action="replay", who="ann", details={"ids": ids})
        crash.arm_call("replay.before_commit", lambda: (_ for _ in ()).throw(RuntimeError("dies here")), 1)
        try:
            with pytest.raises(RuntimeError):
                store.replay(ids, deed=deed)
        finally:
            crash.arm(None)
        assert store.audit().items == ()

        assert len(store.replay(ids, deed=deed)) == 2
        assert store.replay(ids, deed=deed) == []
        (record,) = store.audit(task_id=ids[0]).items
        assert (record.n, record.who) == (2, "ann")

    def test_kinds_are_counted_of_what_could_be_replayed(self, store: SqlStore) -> None:
        pay, mail = dead(store, 2), dead(store, 1, task_type="shop.mail")
        (ready,) = insert(store)
        wave = store.now() + timedelta(seconds=1)

        found = store.kinds_of([*pay, *mail, ready, 10**9], ended_before=wave)
        assert found == {("shop.pay", "ValueError"): 2, ("shop.mail", "ValueError"): 1}

    def test_a_row_that_the_database_refuses_stops_the_whole_chunk(self, store: SqlStore, sql: Sql) -> None:
        ids = dead(store, 2)
        run, hold = running(store, ids)
        refuse(store, sql, ids[1])

        with pytest.raises(StoreRefused):
            store.move_items(hold, ids, revival=PLAIN, failed={})
        assert counts(again(store, run)) == (2, 0, 0, 0)
        assert store.move_items(hold, ids[:1], revival=PLAIN, failed={})
        assert store.move_items(hold, ids[1:], revival=PLAIN, failed={ids[1]: "refused"})
        assert counts(again(store, run)) == (2, 1, 0, 1)


def refuse(store: SqlStore, sql: Sql, task_id: int) -> None:
    """Plant a trigger that makes the database refuse every change of a task."""
    name = f"{store.settings.table_prefix}refuse"
    if store.db.dialect.name == "sqlite":
        then = f"WHEN OLD.id = {task_id} BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END"
    else:
        raised = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by a trigger'"
        then = f"FOR EACH ROW IF OLD.id = {task_id} THEN {raised}; END IF"
    sql(f"CREATE TRIGGER {name} BEFORE UPDATE ON {store.settings.table_prefix}tasks {then}")
