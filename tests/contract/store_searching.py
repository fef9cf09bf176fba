"""Contract of lists, counts and retention on tables that are too big to be read: the bounds are made small instead."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any

import pytest

from tandemq.core.lifecycle import Bury, DeadReason, Failure, SnoozeIn, Status
from tandemq.core.task import Task
from tandemq.store import SqlStore, counting, finding
from tandemq.store.answers import Filter, PruneCursor, PruneRule
from tandemq.testing import FakeClock
from tests.contract.store_contract import Sql, StoreContract, bury, claim, fail, insert, lease, settle, succeed

BOUNDS = {
    "tiny": {"SHORT_STRETCH": 1, "LONG_STRETCH": 2, "SORTED_ENTRIES": 5, "CANDIDATES": 2, "LOOKUP": 1},
    "walks": {"SHORT_STRETCH": 2, "LONG_STRETCH": 7, "SORTED_ENTRIES": 0, "CANDIDATES": 3, "LOOKUP": 2},
    "sorts": {"SHORT_STRETCH": 3, "LONG_STRETCH": 4, "SORTED_ENTRIES": 10_000, "CANDIDATES": 6, "LOOKUP": 4},
    "no ranges": {"SHORT_STRETCH": 1, "MAX_RANGES": 0},
    "real": {},
}
FILTERS: list[dict[str, Any]] = [
    {},
    *({"state": s} for s in ("pending", "ready", "scheduled", "retrying", "running", "succeeded", "dead", "cancelled")),
    *({"state": s, "queue": "q1"} for s in ("pending", "ready", "retrying", "running", "succeeded", "dead")),
    {"state": "ready", "queue": "none"},
    {"queue": "q1"},
    {"queue": "q1", "task_type": "b"},
    {"queue": "none"},
    {"task_type": "a"},
    {"task_type": "none"},
    {"worker_id": "w2"},
    {"worker_id": "w1", "state": "running"},
    {"worker_id": "w2", "task_type": "b", "queue": "default"},
    {"state": "dead", "error_text": "3"},
    {"state": "dead", "error_type": "KeyError", "reason": "timeout"},
    {"error_type": "KeyError"},
    {"key": "key 4"},
    {"key": "key 4", "queue": "none"},
    {"key": "nobody's"},
    {"ids": tuple(range(5, 40, 3))},
    {"ids": tuple(range(5, 40, 3)), "state": "succeeded"},
    {"ids": (), "key": "key 4"},
    {"ids": ()},
]


def _fits(task: Task, where: dict[str, Any]) -> bool:
    state, ids, text = where.get("state"), where.get("ids"), where.get("error_text")
    fields = {
        "queue": task.queue,
        "task_type": task.task_type,
        "worker_id": task.worker_id,
        "error_type": task.error_type,
        "reason": task.dead_reason,
        "key": task.idempotency_key,
    }
    return (
        state in {None, task.state, task.status.value}
        and (ids is None or task.id in ids)
        and (text is None or text in (task.last_error or ""))
        and all(where[name] == value for name, value in fields.items() if where.get(name) is not None)
    )


def _mixture(store: SqlStore, rng: random.Random) -> None:
    """Some rows in every state, of several queues, priorities, types and workers."""
    for n in range(48):
        where = {"queue": rng.choice(["default", "q1"]), "task_type": rng.choice("ab"), "priority": rng.choice([0, 10])}
        key = {"idempotency_key": f"key {n}"} if n % 4 == 0 else {}
        (task_id,) = insert(store, **where, **key, delay_s=3600 if n % 8 == 1 else 0)
        if n % 8 < 2:
            continue
        leases = claim(store, [task_id], worker_id=rng.choice(["w1", "w2"])).leases
        reason = rng.choice([DeadReason.TIMEOUT, DeadReason.RETRIES_EXHAUSTED])
        failure = Failure(rng.choice(["KeyError", "ValueError"]), f"number {n}")
        verdict = {2: None, 3: fail(60), 4: Bury(reason, failure), 5: Bury(reason, failure)}.get(n % 8, succeed())
        if verdict is not None:
            settle(store, (leases[0], verdict))
    for task_id in insert(store, 3, queue="q1"):
        store.cancel(task_id)


def _narrow(monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(finding, name, value)


class SearchingContract(StoreContract):
    # Lists

    @pytest.mark.parametrize("bounds", BOUNDS)
    def test_pages_hold_every_row_of_a_filter_once_however_little_is_looked_at(
        self, timed: SqlStore, monkeypatch: pytest.MonkeyPatch, bounds: str
    ) -> None:
        seed = random.SystemRandom().randrange(10**6)
        _mixture(timed, random.Random(seed))
        everything = timed.find(Filter(), limit=1000).items
        assert len(everything) == 51
        _narrow(monkeypatch, BOUNDS[bounds])

        for where, limit in itertools.product(FILTERS, (1, 4, 1000)):
            found: list[int] = []
            ids: list[int] = []
            after = None
            for _ in range(200):
                page = timed.find(Filter(**where), limit=limit, after=after)
                same = timed.find_ids(Filter(**where), limit=limit, after=after)
                assert same == ([t.id for t in page.items], page.next)
                assert len(page.items) <= limit
                found += [t.id for t in page.items]
                assert page.next is None or after is None or page.next < after
                after = page.next
                if after is None:
                    break
            ids = [t.id for t in everything if _fits(t, where)]
            assert (found, after) == (ids, None), (where, limit, f"seed {seed}")

    def test_a_full_page_is_the_last_one_when_nothing_follows(self, store: SqlStore) -> None:
        ids = insert(store, 4)

        page = store.find(Filter(state="ready"), limit=4)

        assert ([t.id for t in page.items], page.next) == (ids[::-1], None)
        assert store.find(Filter(state="ready"), limit=3).next == ids[1]

    def test_what_runs_is_found_behind_any_backlog(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        running = claim(store, insert(store, 3)).leases
        insert(store, 30)
        _narrow(monkeypatch, BOUNDS["tiny"])

        page = store.find(Filter(state="running"), limit=5)

        assert [t.id for t in page.items] == [x.id for x in running[:0:-1]], "as many as may be looked up"
        assert [t.id for t in store.find(Filter(state="running"), limit=5, after=page.next).items] == [running[0].id]

    def test_a_dead_letter_in_the_middle_of_the_others_is_found_by_one_call(
        self, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leases = claim(store, insert(store, 30)).leases
        reason = DeadReason.NON_RETRYABLE
        settle(store, *((x, Bury(reason, Failure("E", f"number {n}."))) for n, x in enumerate(leases)))
        monkeypatch.setattr(finding, "SHORT_STRETCH", 2)
        monkeypatch.setattr(finding, "LONG_STRETCH", 2)

        page = store.find(Filter(state="dead", error_text="number 11."), limit=1)

        assert [t.id for t in page.items] == [leases[11].id]

    # Counts

    def test_counts_are_the_same_whether_rows_are_read_or_not(
        self, timed: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _mixture(timed, random.Random(7))
        exact = timed.counts()

        for bounds in ({"EXACT_ROWS": 0}, {"EXACT_ROWS": 5}, {"EXACT_ROWS": 15, "LOOKUP": 1}):
            for name, value in bounds.items():
                monkeypatch.setattr(counting, name, value)
            assert timed.counts() == exact, bounds
        assert "capped" not in exact

    def test_counts_that_are_no_counts_say_so(self, timed: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        leases = claim(timed, insert(timed, 10, queue="b")).leases
        settle(timed, *((x, fail(9)) for x in leases[:4]), *((x, bury()) for x in leases[4:]))
        insert(timed, 4, queue="b", delay_s=10)
        insert(timed, 2, queue="a")
        monkeypatch.setattr(counting, "EXACT_ROWS", 3)
        monkeypatch.setattr(counting, "SAMPLE_ROWS", 6)
        sampled = timed.counts()
        monkeypatch.setattr(counting, "COUNT_CAP", 5)
        capped = timed.counts()

        assert (sampled["queues"]["a"]["ready"], "estimated" in sampled["queues"]["a"]) == (2, False)
        states = [sampled["queues"]["b"][s] for s in ("ready", "scheduled", "retrying", "running")]
        assert (states, sampled["queues"]["b"]["estimated"]) == ([0, 3, 5, 0], True)
        assert "capped" not in sampled["queues"]["b"]
        assert capped["queues"]["b"]["capped"]
        assert (capped["ended"]["dead"], capped["capped"]) == (5, ["dead"])

    def test_a_level_gets_its_share_of_the_entries_that_may_be_counted(
        self, timed: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        insert(timed, 30, queue="a")
        insert(timed, 3, queue="b")
        monkeypatch.setattr(counting, "EXACT_ROWS", 0)
        monkeypatch.setattr(counting, "COUNT_ENTRIES", 20)
        queues = timed.counts()["queues"]

        assert (queues["a"]["ready"], queues["a"]["capped"]) == (4, True)
        assert (queues["b"]["ready"], "capped" in queues["b"]) == (3, False)

    def test_old_counters_are_merged_by_day_and_add_up_to_the_same(
        self, timed: SqlStore, clock: FakeClock, sql: Sql, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for pid in (3, 4, 21):
            monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
            for queue in ("a", "b"):
                done, again, dead = claim(timed, insert(timed, 3, queue=queue)).leases
                settle(timed, (done, succeed()), (again, fail()), (dead, bury()))
            clock.advance(3600)
        clock.advance(86_400)
        settle(timed, (lease(timed, queue="a"), succeed()))
        before, rows = timed.counts()["ended"], "SELECT COUNT(*) FROM tandemq_task_counts"
        assert sql(rows) == [(19,)]
        assert timed.merge_counts(None) == (0, ("a", "shop.pay")), "younger than eight days"

        clock.advance(8 * 86_400)
        first, second = timed.merge_counts(None), timed.merge_counts(("a", "shop.pay"))

        assert (first, second) == ((6, ("a", "shop.pay")), (6, ("b", "shop.pay")))
        assert timed.merge_counts(("b", "shop.pay")) == (0, None)
        assert timed.merge_counts(None) == (0, ("a", "shop.pay"))
        assert sql(rows) == [(7,)]
        assert timed.counts()["ended"] == before
        days = sql("SELECT DISTINCT hour, shard FROM tandemq_task_counts WHERE queue = 'b'")
        assert [(str(hour)[:19], shard) for hour, shard in days] == [("2030-01-01 00:00:00", 0)]

    # Is a queue idle?

    def test_many_rows_for_later_are_looked_through_in_several_calls(
        self, timed: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counting, "BEGUN_STRETCH", 2)
        insert(timed, 3, delay_s=900)
        insert(timed, 4, delay_s=900, priority=10)

        # What is found to take more than one call begins anew, having noted how many retries there were.
        assert [timed.busy(["default"]) for _ in range(6)] == [True, True, True, True, False, True]
        assert [timed.busy(["other"]), timed.busy(["default"])] == [False, True], "another question, another walk"

    def test_a_retry_behind_the_walk_is_not_missed(
        self, timed: SqlStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(counting, "BEGUN_STRETCH", 2)
        soon = insert(timed, 2, delay_s=5)
        insert(timed, 4, delay_s=900)
        assert [timed.busy(["default"]) for _ in range(3)] == [True] * 3
        clock.advance(6)
        one, two = claim(timed, soon).leases
        settle(timed, (one, fail(1)), (two, SnoozeIn(1)))  # due before what has been looked at

        answers = [timed.busy(["default"]) for _ in range(9)]

        assert all(answers), answers
        clock.advance(2)
        settle(timed, *((x, succeed()) for x in claim(timed, soon).leases))
        answers = [timed.busy(["default"]) for _ in range(9)]
        assert not all(answers)

    # Retention

    def _rule(self, clock: FakeClock, age_s: float, *statuses: str, **narrowing: Any) -> PruneRule:
        wanted = tuple(Status(s) for s in statuses or ("cancelled", "succeeded"))
        return PruneRule(clock.now() - timedelta(seconds=age_s), wanted, **narrowing)

    def _prunable(self, store: SqlStore, rule: PruneRule, limit: int = 3) -> list[int]:
        found: list[int] = []
        cursor: PruneCursor | None = None
        while True:
            ids, cursor = store.prunable(rule, cursor, limit=limit)
            found += ids
            if cursor is None:
                return sorted(found)

    def test_what_ended_before_an_instant_is_found_in_every_level(self, timed: SqlStore, clock: FakeClock) -> None:
        levels = [("a", 0), ("a", 10), ("b", -5), ("b", 0)]
        old, kinds = {}, itertools.cycle(["x", "y"])
        late = claim(timed, insert(timed, 2, queue="a")).leases  # ends late: due long ago, and yet not old
        for queue, priority in levels:  # within a level the order of ids is not that of run_at
            old[queue, priority] = [
                i
                for delay_s in (3, 1, 0, 2)
                for i in insert(timed, queue=queue, priority=priority, task_type=next(kinds), delay_s=delay_s)
            ]
        clock.advance(5)
        for ids in old.values():
            settle(timed, *((x, succeed()) for x in claim(timed, ids).leases))
        dead = lease(timed, queue="a")
        settle(timed, (dead, bury()))
        open_row, cancelled, later = *insert(timed, 2), *insert(timed, delay_s=10**6)
        timed.cancel(cancelled)
        timed.cancel(later)
        clock.advance(60)
        settle(timed, *((x, succeed()) for x in late))
        every = sorted(i for ids in old.values() for i in ids)

        for limit in (1, 3, 1000):
            assert self._prunable(timed, self._rule(clock, 60), limit) == []
            assert self._prunable(timed, self._rule(clock, 59), limit) == sorted([*every, cancelled, later])
        assert self._prunable(timed, self._rule(clock, 59, "succeeded")) == every
        assert self._prunable(timed, self._rule(clock, 59, "succeeded", queue="a"), 2) == every[:8]
        assert self._prunable(timed, self._rule(clock, 59, "succeeded", queue="b"), 2) == every[8:]
        assert self._prunable(timed, self._rule(clock, 59, "succeeded", task_type="x")) == every[::2]
        assert self._prunable(timed, self._rule(clock, 59, "dead", "succeeded", queue="none")) == []
        assert self._prunable(timed, self._rule(clock, 59, "dead")) == [dead.id]
        assert open_row not in self._prunable(timed, self._rule(clock, -60, "cancelled", "dead", "succeeded"))

    def test_pruning_takes_what_it_meant_with_its_history_and_counts_it(
        self, timed: SqlStore, clock: FakeClock, sql: Sql
    ) -> None:
        done, dead, again = claim(timed, insert(timed, 3)).leases
        (cancelled,) = insert(timed)
        timed.cancel(cancelled)
        settle(timed, (done, succeed()), (dead, bury()), (again, fail(0)))
        settle(timed, (claim(timed, [again.id]).leases[0], succeed()))
        clock.advance(60)
        rule = self._rule(clock, 30)

        assert timed.prune([done.id, dead.id, again.id, cancelled, 999], rule) == 3
        assert timed.prune([done.id, dead.id, again.id, cancelled, 999], rule) == 0
        assert timed.prune([], rule) == 0
        assert [t.id for t in timed.find(Filter(), limit=9).items] == [dead.id]
        assert sql("SELECT task_id FROM tandemq_task_attempts") == [(dead.id,)]
        assert timed.counts()["ended"]["purged"] == 3
        assert timed.prune([dead.id], self._rule(clock, 30, "dead")) == 1
        assert timed.counts()["ended"]["purged"] == 4

    def test_what_is_no_longer_meant_when_it_is_deleted_stays(self, timed: SqlStore, clock: FakeClock) -> None:
        """Read as cancelled, replayed, and dead by now: dead tasks go only when they are named."""
        ids = insert(timed, 3)
        for task_id in ids:
            timed.cancel(task_id)
        clock.advance(60)
        rule = self._rule(clock, 30)
        meant = self._prunable(timed, rule)
        timed.replay(ids[:2])
        settle(timed, (claim(timed, ids[:1]).leases[0], bury()))
        settle(timed, (claim(timed, ids[1:2]).leases[0], succeed()))

        assert meant == ids
        assert timed.prune(meant, rule) == 1
        assert [t.id for t in timed.find(Filter(), limit=9).items] == ids[1::-1]

    def test_a_key_belongs_to_its_task_for_a_day_after_the_end(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, idempotency_key="k")
        settle(timed, (one, succeed()))
        clock.advance(3600)
        assert timed.prune([one.id], self._rule(clock, 60)) == 0
        clock.advance(23 * 3600)
        assert timed.prune([one.id], self._rule(clock, 60)) == 1
        assert insert(timed, idempotency_key="k") != [one.id]

    def test_purged_dead_letters_are_counted_too(self, timed: SqlStore) -> None:
        one = lease(timed)
        settle(timed, (one, bury()))

        assert timed.purge([one.id]) == [one.id]
        ended = timed.counts()["ended"]
        assert (ended["dead"], ended["dead_total"], ended["purged"]) == (0, 1, 1)
