"""Contract of surveys, lists, counts and operators' acts, and of the small tables."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tandemq.core.errors import TaskNotFound
from tandemq.core.lifecycle import Event, SnoozeIn, Status
from tandemq.core.task import Level, epoch_ms
from tandemq.store import SqlStore
from tandemq.store.answers import Filter, WorkerRecord
from tandemq.testing import FakeClock
from tests.contract.store_contract import (
    DEFAULT,
    OpenStore,
    Sql,
    StoreContract,
    bury,
    claim,
    fail,
    insert,
    lease,
    row,
    settle,
    succeed,
)


def _ids(store: SqlStore, **where: object) -> list[int]:
    return [t.id for t in store.find(Filter(**where), limit=100).items]  # type: ignore[arg-type]


class InspectingContract(StoreContract):
    # Surveys

    def test_open_levels_are_found_whatever_their_names(self, store: SqlStore, sql: Sql) -> None:
        levels = [Level("a", -5), Level("a", 0), Level("a", 1000), Level("b", 0), Level("Z", 7)]
        for level in levels:
            insert(store, 3, queue=level.queue, priority=level.priority)
        done = lease(store, queue="done")
        settle(store, (done, succeed()))
        sql("INSERT INTO tandemq_tasks (task_type, payload, queue) VALUES ('x', '{}', 'odd queue'), ('x', '{}', '')")

        assert sorted(store.open_levels()) == sorted(levels)

    def test_the_window_holds_pending_rows_only_and_the_oldest_first(self, timed: SqlStore, clock: FakeClock) -> None:
        first = insert(timed, 4)
        clock.advance(1)
        second = insert(timed, 2)
        insert(timed, priority=1)
        insert(timed, delay_s=60)
        claim(timed, first[:2])
        clock.advance(1.5)

        assert timed.oldest_due(DEFAULT, limit=3, older_than_s=0) == [*first[2:], second[0]]
        assert timed.oldest_due(DEFAULT, limit=9, older_than_s=2) == first[2:]

    def test_a_rebuild_reads_every_pending_row_once_in_order(self, timed: SqlStore, clock: FakeClock) -> None:
        expected: dict[int, list[int]] = {}
        for priority in (10, -1, 0):
            expected[priority] = insert(timed, 5, priority=priority)
        later = insert(timed, 3, delay_s=30, priority=0)
        claim(timed, expected[0][:1])
        insert(timed, queue="other")
        clock.advance(1)
        rows, cursor = timed.pending_after("default", "", 4)
        while cursor:
            more, cursor = timed.pending_after("default", cursor, 4)
            rows += more

        assert [r.id for r in rows] == expected[-1] + expected[0][1:] + later + expected[10]
        assert [r.id for r in rows if not r.due] == later
        assert {r.level for r in rows} == {Level("default", p) for p in (-1, 0, 10)}
        assert rows[0].due_ms == epoch_ms(clock.now() - timedelta(seconds=1))

    def test_expired_pending_rows_are_buried(self, timed: SqlStore, clock: FakeClock) -> None:
        (lasting,) = insert(timed)
        ids = insert(timed, 3, expires_s=5)
        running = lease(timed, expires_s=5)
        clock.advance(6)

        assert [e.id for e in timed.discard_expired(DEFAULT, limit=3)] == ids[:2]
        assert [(e.id, e.reason) for e in timed.discard_expired(DEFAULT, limit=9)] == [(ids[2], "expired")]
        assert timed.discard_expired(DEFAULT, limit=9) == []
        assert _ids(timed, state="dead") == ids[::-1]
        assert [(timed.ending(i) or ("",))[0] for i in (lasting, running.id)] == [Status.PENDING, Status.RUNNING]

    # Lists and counts

    def test_lists_are_narrowed_and_paged(self, timed: SqlStore, clock: FakeClock) -> None:
        ready = insert(timed, 3, queue="q1")
        later = insert(timed, delay_s=60)
        dead, retrying, running = claim(timed, insert(timed, 3, task_type="mail.send")).leases
        settle(timed, (dead, bury()), (retrying, fail()), closing=False)

        assert _ids(timed) == [running.id, retrying.id, dead.id, *later, *ready[::-1]]
        assert _ids(timed, state="ready") == ready[::-1]
        assert _ids(timed, state="pending", queue="default") == [retrying.id, *later]
        assert _ids(timed, state="scheduled") == later
        assert _ids(timed, state="retrying") == [retrying.id]
        assert _ids(timed, state="running", worker_id="w1") == [running.id]
        assert _ids(timed, task_type="mail.send", error_type="ValueError") == [retrying.id, dead.id]
        assert _ids(timed, reason="retries_exhausted", error_text="such ORDER") == []
        assert _ids(timed, reason="retries_exhausted", error_text="such order") == [dead.id]
        assert _ids(timed, error_text="%") == []
        assert _ids(timed, ids=(dead.id, 999)) == [dead.id]
        assert _ids(timed, ids=()) == []
        page = timed.find(Filter(), limit=4)
        rest = timed.find(Filter(), limit=4, after=page.next)
        assert ([t.id for t in page.items + rest.items], rest.next) == (_ids(timed), None)

    def test_a_page_may_be_bounded_in_bytes(self, store: SqlStore) -> None:
        sizes = (10, 900, 400, 400, 10)
        ids = [insert(store, payload=f'{{"x":"{"y" * n}"}}')[0] for n in sizes]
        found, page = [], store.find(Filter(), limit=3, max_bytes=850)
        while page.items:
            found.append([task.id for task in page.items])
            if page.next is None:
                break
            page = store.find(Filter(), limit=3, after=page.next, max_bytes=850)

        # The one that is too large comes alone; three to a page are the most.
        assert found == [[ids[4], ids[3], ids[2]], [ids[1]], [ids[0]]]
        assert store.find(Filter(queue="none"), limit=3, max_bytes=850).items == ()

    def test_counts_are_per_queue_and_priority(self, timed: SqlStore) -> None:
        insert(timed, 2, queue="mail")
        insert(timed, 3, queue="mail", priority=20)
        insert(timed, 4, delay_s=60)
        done, again, dead, _ = claim(timed, insert(timed, 4)).leases
        settle(timed, (done, succeed()), (again, fail()), (dead, bury()), closing=False)
        counts = timed.counts()

        mail, default = counts["queues"]["mail"], counts["queues"]["default"]
        assert (mail["ready"], mail["priorities"]["20"]["ready"], mail["priorities"]["0"]["ready"]) == (5, 3, 2)
        assert list(mail["priorities"]) == ["20", "0"]
        assert [default[s] for s in ("ready", "scheduled", "retrying", "running")] == [0, 4, 1, 1]
        ended = {"succeeded": 1, "dead": 1, "dead_total": 1, "retried": 1, "cancelled": 0, "purged": 0}
        assert counts["ended"] == ended
        timed.replay([dead.id])
        assert (timed.counts()["ended"]["dead"], timed.counts()["ended"]["dead_total"]) == (0, 1)

    def test_a_burst_is_busy_until_nothing_is_due_running_or_retrying(self, timed: SqlStore, clock: FakeClock) -> None:
        insert(timed, delay_s=900)
        insert(timed, queue="other")
        assert not timed.busy(["default", "empty"])
        (task_id,) = insert(timed)
        assert timed.busy(["default"])
        (one,) = claim(timed, [task_id]).leases
        assert timed.busy(["default"])
        settle(timed, (one, fail(60)))
        assert timed.busy(["default"])
        clock.advance(61)
        (two,) = claim(timed, [task_id]).leases
        settle(timed, (two, succeed()))
        assert not timed.busy(["default"])
        assert not timed.busy([])
        (snoozed,) = claim(timed, insert(timed)).leases
        settle(timed, (snoozed, SnoozeIn(60)))
        assert not timed.busy(["default"])

    def test_a_task_that_is_not_there(self, store: SqlStore) -> None:
        assert store.get(1) is None
        assert store.ending(1) is None
        assert store.visible([1, 2]) == set()
        with pytest.raises(TaskNotFound, match="1"):
            store.cancel(1)

    # Operators

    def test_cancel_says_what_it_met(self, store: SqlStore) -> None:
        (waiting,) = insert(store)
        running = lease(store)
        done = lease(store)
        settle(store, (done, succeed()))

        assert [store.cancel(i) for i in (waiting, running.id, done.id)] == ["cancelled", "requested", "succeeded"]
        assert [store.cancel(i) for i in (waiting, running.id)] == ["cancelled", "requested"]
        assert claim(store, [waiting]).leases == ()
        assert store.counts()["ended"]["cancelled"] == 1

    def test_replay_starts_a_new_life_and_keeps_the_history(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, max_retries=0, expires_s=5)
        timed.cancel(one.id)
        settle(timed, (one, bury()))
        clock.advance(60)
        (moved,) = timed.replay([one.id])
        task = timed.get(one.id, attempts=True)

        assert (moved.id, moved.event, moved.status, moved.level) == (one.id, Event.REPLAY, Status.PENDING, DEFAULT)
        assert task is not None
        assert (task.state, task.attempts, task.replays, task.run_at) == ("ready", 0, 1, clock.now())
        assert (task.dead_reason, task.completed_at, task.cancel_requested_at) == (None, None, None)
        assert (task.expires_at, task.last_error, len(task.attempts_log)) == (None, "no such order 😀", 1)
        (again,) = claim(timed, [one.id]).leases
        assert (again.attempt, again.replays, again.fence) == (1, 1, 2)
        settle(timed, (again, bury()))
        final = timed.get(one.id, attempts=True)
        assert final is not None
        assert [(a.fence, a.replays) for a in final.attempts_log] == [(1, 0), (2, 1)]

    def test_replay_takes_only_what_has_ended_and_only_once(self, timed: SqlStore, clock: FakeClock) -> None:
        dead, running, done = claim(timed, insert(timed, 3)).leases
        settle(timed, (dead, bury()), (done, succeed()), closing=False)
        (cancelled,) = insert(timed)
        timed.cancel(cancelled)
        wave = clock.now() + timedelta(seconds=1)
        clock.advance(2)
        ids = [dead.id, running.id, done.id, cancelled, 999]

        assert [m.id for m in timed.replay(ids, ended_before=wave)] == [dead.id, cancelled]
        (again,) = claim(timed, [dead.id]).leases
        settle(timed, (again, bury()))
        assert timed.replay(ids, ended_before=wave) == []
        assert [m.id for m in timed.replay(ids)] == [dead.id]
        assert timed.replay([]) == []

    def test_two_racing_replays_replay_once(self, store: SqlStore) -> None:
        leases = claim(store, insert(store, 50)).leases
        settle(store, *((x, bury()) for x in leases))
        start = threading.Barrier(4)
        moved: list[int] = []

        def replay() -> None:
            start.wait()
            moved.extend(m.id for m in store.replay([x.id for x in leases]))

        threads = [threading.Thread(target=replay) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(moved) == [x.id for x in leases]

    def test_purge_takes_final_rows_and_their_history(self, store: SqlStore, sql: Sql) -> None:
        dead, running, again = claim(store, insert(store, 3)).leases
        (waiting,) = insert(store)
        settle(store, (dead, bury()), (again, fail()), closing=False)

        assert store.purge([dead.id, running.id, again.id, waiting, 999]) == [dead.id]
        assert _ids(store) == [waiting, again.id, running.id]
        assert sql("SELECT task_id FROM tandemq_task_attempts") == [(again.id,)]
        assert store.purge([]) == []

    # The small tables

    def test_the_epoch_moves_by_compare_and_set(self, store: SqlStore, open_store: OpenStore) -> None:
        assert store.epoch() == 0
        assert store.advance_epoch(0, 1)
        assert not open_store().advance_epoch(0, 1)
        assert open_store().epoch() == 1
        assert len(store.install_id()) == 16
        assert store.install_id() == open_store().install_id()

    def test_one_leads_until_its_time_is_over(self, timed: SqlStore, clock: FakeClock) -> None:
        assert timed.lead("mover", "a", 6)
        assert timed.lead("mover", "a", 6)
        assert not timed.lead("mover", "b", 6)
        assert timed.lead("reconciler", "b", 6)
        clock.advance(6)
        assert timed.lead("mover", "b", 6)
        assert not timed.lead("mover", "a", 6)

    def test_workers_are_known_while_their_heart_beats(self, timed: SqlStore, clock: FakeClock) -> None:
        def record(worker_id: str) -> WorkerRecord:
            now = clock.now()
            return WorkerRecord(worker_id, "mail 😀", "host", 42, "a,b", 8, 2, "running", now, now, True)

        timed.worker_started(record("w1"))
        clock.advance(10)
        timed.worker_started(record("w2"))
        timed.worker_beat("w2", "draining")
        clock.advance(5)

        two, one = timed.workers(alive_s=12)
        assert (one.id, one.alive, one.name, one.state) == ("w1", False, "mail 😀", "running")
        assert (two.id, two.alive, two.state, two.slots, two.processes) == ("w2", True, "draining", 8, 2)
        assert two.heartbeat_at == clock.now() - timedelta(seconds=5)
        timed.worker_beat("w2", "stopped")
        assert [w.alive for w in timed.workers(alive_s=12)] == [False, False]
        assert timed.forget_workers(14) == 1
        assert [w.id for w in timed.workers(alive_s=12)] == ["w2"]

    def test_now_is_the_databases_clock(self, timed: SqlStore, store: SqlStore, clock: FakeClock) -> None:
        assert timed.now() == clock.now()
        first, second = store.now(), store.now()
        assert timedelta(0) <= second - first < timedelta(seconds=5)
        store.ping()
        store.check_schema()

    def test_the_view_shows_people_nulls_and_states(self, store: SqlStore, sql: Sql) -> None:
        (waiting,) = insert(store)
        store.insert([row(delay_s=60)])
        running = lease(store)
        columns = (
            "state, retry_count, worker_id, claimed_at IS NULL, lease_expires_at IS NULL, next_attempt_at IS NULL,"
            " completed_at, error, error_type, dead_reason, expires_at, cancel_requested_at"
        )
        nothing = (None,) * 6

        assert sql(f"SELECT {columns} FROM tandemq_tasks_view ORDER BY id") == [
            ("ready", 0, None, 1, 1, 0, *nothing),
            ("scheduled", 0, None, 1, 1, 0, *nothing),
            ("running", 0, "w1", 0, 0, 1, *nothing),
        ]
        assert waiting < running.id
