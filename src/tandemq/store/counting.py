"""How many tasks there are, and whether a queue is idle; never counts a big table.

Open rows are counted from the open index; rows are read only to tell running from ready and retrying from scheduled,
and only so many of them. Ended ones come from the counters, whose old hours are merged into days.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tandemq.core.lifecycle import ENDED, Status
from tandemq.core.task import Level
from tandemq.store.dialects import instant, stamp
from tandemq.store.queries import Queries
from tandemq.store.surveying import FIRST_ENTRY, SurveyingStore
from tandemq.store.transaction import Tx

STATES = ("ready", "scheduled", "retrying", "running")
OUTCOMES = ("succeeded", "cancelled", "retried", "purged")
#: Open rows that are read for exact counts, in all queues together; the counts of further queues are put together.
EXACT_ROWS = 10_000
#: Entries counted per level, and in all, before the count says ``capped``.
COUNT_CAP = 100_000
COUNT_ENTRIES = 400_000
#: Rows for later of a level that are read, to know how many of them have run before.
SAMPLE_ROWS = 1_000
LOOKUP = 500
MAX_IN_WORK = 20_000
#: Rows that one call of ``busy`` reads to find one that has run before.
BEGUN_STRETCH = 10_000
#: Hours older than this are merged into their day.
HOURS_KEPT = timedelta(days=8)
#: Days and outcomes of one (queue, task_type) that a call merges.
MERGED_DAYS = 10


@dataclass
class _Walk:
    """A look at all rows for later of some queues. ``retries``: how many there had been, if it takes several calls."""

    queues: tuple[str, ...]
    levels: list[Level]
    retries: int | None = None
    run_at: Any = FIRST_ENTRY[0]
    task_id: int = FIRST_ENTRY[1]


class CountingStore(SurveyingStore):
    """``counts``, ``busy`` and ``merge_counts`` of ``store.questions.Inspecting``."""

    _walk: _Walk | None = None

    def counts(self) -> dict[str, Any]:
        """Open rows per queue by state, in all and per priority; ended ones from the counters; see the protocol."""

        def work(tx: Tx) -> dict[str, Any]:
            queues, dead, capped = self._count_open(tx, self._levels(tx))
            ended = dict.fromkeys(OUTCOMES, 0)
            ended |= {outcome: int(n) for outcome, n in tx.rows(self.queries.ended_counts())}
            ended["dead_total"], ended["dead"] = ended.get("dead", 0), dead
            return {"queues": queues, "ended": ended} | ({"capped": ["dead"]} if capped else {})

        return self.db.read(work)

    def _count_open(self, tx: Tx, levels: Sequence[Level]) -> tuple[dict[str, dict[str, Any]], int, bool]:
        """Open rows by queue, how many are dead, and whether these are only so many at least."""
        tally = _Tally(tx, self.queries, counts=2 * len(levels) + 1)
        queues = {queue: tally.queue(queue, levels) for queue in sorted({level.queue for level in levels})}
        return queues, *tally.entries(self.queries.entries(), [ENDED[Status.DEAD]])

    def busy(self, queues: Sequence[str]) -> bool:
        """Whether anything is due, running or retrying in these queues; True as long as that is not known.

        Where very many rows are for later they are walked through in several calls, a stretch in each. A task that is
        run and put back behind the walk meanwhile raises the number of retries: then it begins anew.
        """
        wanted = tuple(sorted(set(queues)))

        def work(tx: Tx) -> tuple[bool, _Walk | None]:
            levels = [level for level in self._levels(tx) if level.queue in wanted]
            if any(tx.one(self.queries.any_due(), level) is not None for level in levels):
                return True, None
            going = self._walk if self._walk is not None and self._walk.queues == wanted else None
            walk = replace(going) if going else _Walk(wanted, levels)
            found = self._go_on(tx, walk)
            if found is not None:
                return found, None
            if walk.levels and going:
                return True, walk
            retries = sum(int(tx.one(self.queries.retries_so_far(), [queue])[0]) for queue in wanted)
            if walk.levels or retries != walk.retries:
                return True, _Walk(wanted, levels, retries)
            return False, None

        answer, self._walk = self.db.read(work)
        return answer

    def running(self, queue: str) -> int:
        """How many tasks of a queue run, by the batches in work."""
        return self.db.read(lambda tx: _Tally(tx, self.queries, counts=1).running(queue))

    def _go_on(self, tx: Tx, walk: _Walk) -> bool | None:
        """True: a row that has run before was met. False: there is none, by this one call. None: not known."""
        is_whole, left = walk.retries is None, BEGUN_STRETCH
        while walk.levels and left > 0:
            behind = [*walk.levels[0], walk.run_at, walk.run_at, walk.task_id]
            rows = int(tx.one(self.queries.open_stretch(), [*behind, left])[0])
            end = tx.one(self.queries.end_of_open_stretch(), [*behind, left - 1]) if rows == left else None
            last = (_END, _END, 0) if end is None else (end[0], end[0], end[1])
            if rows and tx.one(self.queries.any_begun(), [*behind, *last]) is not None:
                return True
            left -= rows
            if end is None:
                walk.levels, (walk.run_at, walk.task_id) = walk.levels[1:], FIRST_ENTRY
            else:
                walk.run_at, walk.task_id = end
        return False if is_whole and not walk.levels else None

    def merge_counts(self, after: tuple[str, str] | None) -> tuple[int, tuple[str, str] | None]:
        """Merge the old counters of the next (queue, task_type) by day, so that their number stays small.

        How many rows went, and where to go on; None at the end. Counters of past hours are written by nobody else.
        """
        queue, kind = after or ("", "")

        def find(tx: Tx) -> Any:
            q = self.queries
            same = tx.one(q.counted_type(same_queue=True), [queue, kind])
            return same or tx.one(q.counted_type(same_queue=False), [queue])

        found = self.db.read(find)
        if found is None:
            return 0, None
        pair = (found[0], found[1])
        now = instant(self.db.read(lambda tx: tx.one(f"SELECT {tx.dialect.now}"))[0])
        until = stamp(now - HOURS_KEPT)[:10]
        days = self.db.read(lambda tx: tx.rows(self.queries.counts_to_merge(), [*pair, until, MERGED_DAYS]))
        merged = sum(self._merge(pair, day, outcome) for day, outcome in days)
        return merged, pair

    def _merge(self, pair: tuple[str, str], day: Any, outcome: str) -> int:
        begin = instant(f"{day} 00:00:00.000000")
        span = [stamp(begin), stamp(begin + timedelta(days=1))]

        def work(tx: Tx) -> int:
            rows = tx.rows(self.queries.lock_counts(), [*pair, *span, outcome])
            if len(rows) > 1:
                tx.write(self.queries.delete_counts(), [*pair, *span, outcome])
                tx.write(self.queries.insert_count(), [*pair, span[0], outcome, 0, sum(int(row[0]) for row in rows)])
            return max(0, len(rows) - 1)

        return self.db.write(work)


#: Behind every entry.
_END = "9999-12-31 23:59:59.999999"


class _Tally:
    """Counts within the bounds of one call. ``counts``: by how many the entries that may be counted are shared."""

    def __init__(self, tx: Tx, queries: Queries, *, counts: int) -> None:
        self._tx, self._q, self._counts = tx, queries, counts
        self._rows_left, self._entries_left = EXACT_ROWS, COUNT_ENTRIES
        self._running: dict[Level, int] | None = None

    def queue(self, queue: str, levels: Sequence[Level]) -> dict[str, Any]:
        """One queue: exact, or put together when it has more rows than may still be read."""
        of_queue = [level for level in levels if level.queue == queue]
        many = self._q.more_than([self._q.entries(any_queue=False)])
        if self._tx.one(many, [0, queue, self._rows_left]) is not None:
            return self._put_together(of_queue)
        self._counts -= 2 * len(of_queue)
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for priority, status, due, again, n in self._tx.rows(self._q.open_counts(), [queue, self._rows_left]):
            state = "running" if status == Status.RUNNING else "ready" if due else "retrying" if again else "scheduled"
            found[priority][state] += n
        self._rows_left -= sum(map(Counter.total, found.values()))
        return _shape(found)

    def entries(self, entries: str, values: Sequence[Any]) -> tuple[int, bool]:
        """How many index entries, and whether there may be more."""
        cap = min(COUNT_CAP, self._entries_left // max(1, self._counts))
        n = int(self._tx.one(self._q.count_entries(entries), [*values, cap])[0])
        self._entries_left, self._counts = self._entries_left - n, self._counts - 1
        return n, n >= cap

    def _put_together(self, levels: Sequence[Level]) -> dict[str, Any]:
        found: dict[int, Counter[str]] = {}
        capped = estimated = False
        for level in levels:
            due, more_due = self.entries(self._q.entries(by_level=True, due=True), [0, *level])
            later, more_later = self.entries(self._q.entries(by_level=True, due=False), [0, *level])
            running = self._all_running().get(level, 0)
            seen, again = map(int, self._tx.one(self._q.retrying_share(), [*level, SAMPLE_ROWS]))
            retrying = round(later * again / seen) if seen else 0
            found[level.priority] = Counter(
                ready=max(0, due - running), running=running, retrying=retrying, scheduled=later - retrying
            )
            capped |= more_due or more_later
            estimated |= later > seen
        return _shape(found) | ({"capped": True} if capped else {}) | ({"estimated": True} if estimated else {})

    def running(self, queue: str) -> int:
        """How many run in a queue."""
        return sum(n for level, n in self._all_running().items() if level.queue == queue)

    def _all_running(self) -> Mapping[Level, int]:
        """From the batches in work: they are few, however long the queue."""
        if self._running is None:
            self._running = {}
            batches = [text.split(",") for (text,) in self._tx.rows(self._q.claimed_ids()) if text]
            ids = sorted({int(i) for batch in batches for i in batch})[:MAX_IN_WORK]
            for at in range(0, len(ids), LOOKUP):
                for queue, priority, n in self._tx.rows(self._q.running_by_level(ids[at : at + LOOKUP])):
                    key = Level(queue, priority)
                    self._running[key] = self._running.get(key, 0) + n
        return self._running


def _shape(found: Mapping[int, Counter[str]]) -> dict[str, Any]:
    by_priority = {str(p): {state: found[p][state] for state in STATES} for p in sorted(found, reverse=True)}
    totals: dict[str, Any] = {state: sum(level[state] for level in by_priority.values()) for state in STATES}
    return totals | {"priorities": by_priority}
