"""Pages of tasks, newest first, from tables of any size: each call reads a bounded number of rows.

Where the answer cannot be had within the bound, a page has fewer tasks than asked for, or none, and its ``next`` says
from where to go on. No index could help: one on status or worker would be written by every claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tandemq.core.errors import InvalidTask
from tandemq.core.lifecycle import ENDED, Status
from tandemq.core.task import FailedAttempt, Level, Task
from tandemq.store import payloads
from tandemq.store.answers import Filter, Page
from tandemq.store.base import holder
from tandemq.store.chunks import by_size
from tandemq.store.dialects import Dialect, id_list, instant, instant_or_none, stamp
from tandemq.store.looking import TASK_COLUMNS
from tandemq.store.queries import Queries
from tandemq.store.surveying import SurveyingStore
from tandemq.store.transaction import Tx

#: Rows looked at before anything else is tried: most lists fill a page here.
SHORT_STRETCH = 2_000
#: Rows of the primary key that a call reads at most; 20 to 150 ms, as the server's memory allows.
LONG_STRETCH = 30_000
#: Entries of the open index that may be sorted for a page: 20 to 60 ms.
SORTED_ENTRIES = 120_000
#: An empty one is a shell variable that was not set, not a wish for everything.
_TEXTS = ("error_text", "error_type", "worker_id")
#: Ranges of the index that a statement may name.
MAX_RANGES = 50
#: Rows that are looked up one by one for a page: 5 ms, or 200 where each has to come from the disk.
CANDIDATES = 1_000
#: MariaDB turns lists of a thousand ids and more into a join.
LOOKUP = 500
#: Rows fetched at least where Python has to look at their payloads.
PARSED = 100
#: Above every id: BIGINT in MySQL, INTEGER in SQLite.
TOP = 2**63 - 1
PENDING = f"t.status = '{Status.PENDING}'"
ALL_ENDS = tuple(sorted(set(ENDED.values())))


@dataclass(frozen=True)
class _Wanted:
    """A filter as SQL. ``tests`` say all of it about a row; ``ends`` and ``due`` are what the open index knows of it.

    ``covered``: the index alone decides.
    """

    tests: tuple[str, ...]
    values: tuple[Any, ...]
    status: Status | None = None
    due: bool | None = None
    covered: bool = False

    @property
    def ends(self) -> tuple[int, ...]:
        """How the rows may have ended."""
        return ALL_ENDS if self.status is None else (ENDED[self.status],)


class FindingStore(SurveyingStore):
    """``find`` and ``find_ids`` of ``store.questions.Inspecting``."""

    def find(self, where: Filter, *, limit: int, after: int | None = None, max_bytes: int | None = None) -> Page:
        """Newest first by id, keyset pages; see the protocol for pages that are not full."""
        if max_bytes is not None:
            return self._find_within(max_bytes, where, limit, after)
        rows, following = self._search(where, limit, after, ids_only=False)
        return Page(tuple(task_of(row) for row in rows), following)

    def _find_within(self, max_bytes: int, where: Filter, limit: int, after: int | None) -> Page:
        ids, following = self.find_ids(where, limit=limit, after=after)
        if not ids:
            return Page((), following)
        sizes = dict(self.db.read(lambda tx: tx.rows(self.queries.sizes(ids))))
        first = by_size(ids, lambda i: int(sizes.get(i, 0)), max_bytes)[0]
        # Tested again: what has begun or ended since the ids were read is not on a list of something else.
        wanted = _wanted(where, self.db.dialect)
        text, values = self.queries.page([*wanted.tests, _in(first)]), [*wanted.values, len(first)]
        rows = self.db.read(lambda tx: tx.rows(text, values))
        return Page(tuple(task_of(row) for row in rows), first[-1] if len(first) < len(ids) else following)

    def find_ids(self, where: Filter, *, limit: int, after: int | None = None) -> tuple[list[int], int | None]:
        """The ids of such a page, and its ``next``."""
        rows, following = self._search(where, limit, after, ids_only=True)
        return [row[0] for row in rows], following

    def _search(self, where: Filter, limit: int, after: int | None, *, ids_only: bool) -> tuple[list[Any], int | None]:
        def work(tx: Tx) -> tuple[list[Any], int | None]:
            search = _Search(tx, self.queries, where, limit, after, ids_only)
            search.run(lambda: self._levels(tx))
            return search.answer()

        return self.db.read(work)


class _Search:
    """One page. Everything from ``below`` up to where it began has been looked at; ``over``: and all below, too."""

    def __init__(self, tx: Tx, queries: Queries, where: Filter, limit: int, after: int | None, ids_only: bool) -> None:
        self._tx, self._q, self._where, self._limit, self._ids_only = tx, queries, where, limit, ids_only
        self._wanted = _wanted(where, tx.dialect)
        self._p = tx.dialect.p
        self.below = TOP if after is None else after
        self.over = False
        self.rows: list[Any] = []

    @property
    def _missing(self) -> int:
        return self._limit + 1 - len(self.rows)

    def run(self, levels: Callable[[], Sequence[Level]]) -> None:
        """Look in the places where this filter finds most for least."""
        where = self._where
        if where.key is not None:
            of_ids = [] if where.ids is None else [_in(where.ids)]
            self._take(self._q.keyed, [*of_ids, f"+t.id < {self._p}"], [self.below])
            self.over = True
        elif where.ids is not None:
            self._look_up(sorted({i for i in where.ids if i < self.below}, reverse=True), all_of_them=True)
        elif not self._wanted.tests and where.payload is None:
            self._take(self._q.page, [f"t.id < {self._p}"], [self.below])
            self.over = True
        else:
            self._walk(SHORT_STRETCH)
            if not self._done and not self._by_index(levels):
                self._walk(LONG_STRETCH // 5)
                if not self._done:
                    self._walk(LONG_STRETCH - LONG_STRETCH // 5)

    def answer(self) -> tuple[list[Any], int | None]:
        """The rows, and where the next page begins."""
        if len(self.rows) > self._limit:
            rows = self.rows[: self._limit]
            return rows, rows[-1][0]
        return self.rows, None if self.over else self.below

    @property
    def _done(self) -> bool:
        return self.over or self._missing <= 0

    def _take(self, page: Callable[..., str], more: Sequence[str], values: Sequence[Any] = ()) -> None:
        payload = self._where.payload
        if payload is None:
            text = page([*self._wanted.tests, *more], ids_only=self._ids_only)
            self.rows += self._tx.rows(text, [*self._wanted.values, *values, self._missing])
            return
        # What the database lets through and Python does not is made up for, from below the last one.
        below = f"{'t.id' if page == self._q.page else '+t.id'} < {self._p}"
        text, last = page([*self._wanted.tests, *more, below], ids_only=False), TOP
        while self._missing > 0:
            asked = max(self._missing, PARSED)
            rows = self._tx.rows(text, [*self._wanted.values, *values, last, asked])
            fit = [row for row in rows if payloads.fits(row[_PAYLOAD], payload)]
            self.rows += [row[:1] for row in fit] if self._ids_only else fit
            if len(rows) < asked:
                return
            last = rows[-1][0]

    def _walk(self, length: int) -> None:
        """The next rows down the primary key."""
        end = self._tx.one(self._q.end_of_stretch(), [self.below, max(0, length - 1)])
        last = 0 if end is None else end[0]
        self._take(self._q.page, [f"t.id < {self._p}", f"t.id >= {self._p}"], [self.below, last])
        self.below, self.over = last, end is None

    def _by_index(self, levels: Callable[[], Sequence[Level]]) -> bool:
        """Whether the open index says which rows come into question, and few enough of them to be sorted."""
        w = self._wanted
        if self._where.state is None and self._where.queue is None:
            return False
        ranges, values = self._ranges(levels)
        if w.status is Status.RUNNING and self._many(ranges, values, CANDIDATES):
            # The rows in work are few, however long the queue. Running rows without a claims row, which nothing
            # should make, are not among them: the reconciler's sweep finds those.
            batches = [text.split(",") for (text,) in self._tx.rows(self._q.claimed_ids()) if text]
            ids = {int(i) for batch in batches for i in batch}
            found = sorted((i for i in ids if i < self.below), reverse=True)
            self._look_up(found[:CANDIDATES], all_of_them=len(found) <= CANDIDATES)
            return True
        if len(ranges) > MAX_RANGES or self._many(ranges, values, SORTED_ENTRIES):
            return False
        limit = min(CANDIDATES, self._missing) if w.covered else CANDIDATES
        found = [row[0] for row in self._candidates(ranges, values, limit + 1)]
        self._look_up(found[:limit], all_of_them=len(found) <= limit)
        return True

    def _ranges(self, levels: Callable[[], Sequence[Level]]) -> tuple[list[str], list[Any]]:
        """Ranges of the open index, and their parameters. What is (not) due is a range within each level only."""
        queue, w = self._where.queue, self._wanted
        if w.due is not None:
            mine = [level for level in levels() if queue in {None, level.queue}]
            return [self._q.entries(by_level=True, due=w.due)] * len(mine), [v for level in mine for v in (0, *level)]
        of_queue = () if queue is None else (queue,)
        text = self._q.entries(any_queue=queue is None)
        return [text] * len(w.ends), [v for end in w.ends for v in (end, *of_queue)]

    def _many(self, ranges: Sequence[str], values: Sequence[Any], count: int) -> bool:
        return bool(ranges) and self._tx.one(self._q.more_than(ranges), [*values, count]) is not None

    def _candidates(self, ranges: Sequence[str], values: Sequence[Any], limit: int) -> Sequence[Any]:
        return self._tx.rows(self._q.candidates(ranges), [*values, self.below, limit]) if ranges else []

    def _look_up(self, ids: Sequence[int], *, all_of_them: bool) -> None:
        """Test rows by id, newest first, until the page is full. ``all_of_them``: no others come into question."""
        at, size = 0, self._missing
        while at < len(ids) and self._missing > 0:
            some = ids[at : at + min(size, LOOKUP)]
            self._take(self._q.page, [_in(some)])
            at, size = at + len(some), size * 2
            self.below = some[-1]
        self.over = all_of_them and at >= len(ids)


def _wanted(where: Filter, d: Dialect) -> _Wanted:
    tests, values = conditions(where, d)
    status = None if where.state is None else _status(where.state)
    due = {"ready": True, "retrying": False, "scheduled": False}.get(where.state or "")
    known = (where.queue is not None) + (status is not None and ENDED[status] > 0)
    covered = len(tests) == known and where.payload is None
    return _Wanted(tuple(tests), tuple(values), status, due, covered=covered)


def conditions(where: Filter, d: Dialect) -> tuple[list[str], list[Any]]:
    """SQL about rows ``t``, all of which a row meets that fits (but for ``ids``), and the parameters.

    Only ``payload`` lets through more than fits: see ``payloads``.
    """
    tests: list[str] = []
    values: list[Any] = []
    if where.state is not None:
        tests.append(_state_test(where.state, d.now))
    equal = {
        "queue": where.queue,
        "task_type": where.task_type,
        "worker_id": None if where.worker_id is None else holder(where.worker_id),
        "error_type": where.error_type,
        "dead_reason": where.reason,
        "idempotency_key": None if where.key is None else where.key.encode(),
    }
    for column, value in equal.items():
        if value is not None:
            tests.append(f"t.{column} = {d.p}")
            values.append(value)
    for name in _TEXTS:
        if getattr(where, name) == "":
            raise InvalidTask(f"{name} is empty: every task would fit", field=name)
    if where.error_text is not None:
        tests.append(f"INSTR(t.last_error, {d.p}) > 0")
        values.append(where.error_text)
    for end, test in ((where.ended_before, "<"), (where.ended_after, ">=")):
        if end is not None:
            tests.append(f"t.completed_at {test} {d.p} AND +t.ended > 0")
            values.append(stamp(end))
    if where.payload is not None:
        payloads.check(where.payload)
        more, bound = payloads.tests(where.payload, d)
        tests += more
        values += bound
    return tests, values


def _in(ids: Iterable[int]) -> str:
    return f"t.id IN ({id_list(ids)})"


def _status(state: str) -> Status:
    return Status.PENDING if state in {"ready", "retrying", "scheduled"} else Status(state)


def _state_test(state: str, now: str) -> str:
    derived = {
        "ready": f"(+t.ended = 0 AND {PENDING} AND t.run_at <= {now})",
        "retrying": f"(+t.ended = 0 AND {PENDING} AND t.run_at > {now} AND t.attempts > 0)",
        "scheduled": f"(+t.ended = 0 AND {PENDING} AND t.run_at > {now} AND t.attempts = 0)",
    }
    status = _status(state)
    return derived.get(state) or f"(+t.ended = {ENDED[status]} AND t.status = '{status}')"


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def task_of(row: Any, log: tuple[FailedAttempt, ...] = ()) -> Task:
    """A row of ``Looks.page`` as people see it."""
    values = dict(zip(_COLUMNS, row, strict=True))
    status = Status(values["status"])
    due, lease_end = values.pop("due"), values.pop("lease_expires_at")
    state = status.value
    if status is Status.PENDING:
        state = "ready" if due else "retrying" if values["attempts"] else "scheduled"
    for name in ("run_at", "created_at", "updated_at"):
        values[name] = instant(values[name])
    for name in ("expires_at", "cancel_requested_at", "started_at", "completed_at"):
        values[name] = instant_or_none(values[name])
    for name in ("worker_id", "error_type", "dead_reason"):
        values[name] = values[name] or None
    for name in ("payload", "options", "idempotency_key"):
        values[name] = _text(values[name])
    values["status"] = status
    return Task(**values, state=state, lease_expires_at=instant_or_none(lease_end), attempts_log=log)


#: Names of ``looking.TASK_COLUMNS`` and of the two that follow them.
_COLUMNS = (*(name.strip().removeprefix("t.") for name in TASK_COLUMNS.split(",")), "lease_expires_at", "due")
_PAYLOAD = _COLUMNS.index("payload")
