"""Producing: check, insert, push after the commit. The row is the promise; the push only makes it quick."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tandemq import metrics
from tandemq.core.clock import Clock
from tandemq.core.codec import Encoder
from tandemq.core.crash import crash_point
from tandemq.core.errors import (
    EnqueueUnknown,
    IdempotencyConflict,
    InvalidTask,
    InvalidType,
    StoreBusy,
    StoreRefused,
    StoreUnavailable,
    TandemQError,
    Unavailable,
)
from tandemq.core.lifecycle import Status
from tandemq.core.retry import QueuePolicy
from tandemq.core.settings import Settings
from tandemq.core.task import Inserted, Level, NewRow, NewTask, Task, epoch_ms
from tandemq.dispatch import Dispatcher, Entry, Pusher
from tandemq.grouping import GroupCommit
from tandemq.handle import Handle
from tandemq.links import Links, PerProcess
from tandemq.newrow import Checks
from tandemq.registry import RegisteredTask, Registry
from tandemq.store.answers import Filter
from tandemq.store.protocol import Transaction

_log = logging.getLogger("tandemq.producer")
#: Rows of one INSERT and of one transaction (measured: 5,000 rows a statement are slower than 1,000).
BATCH = 1000
#: Keyed rows of one transaction: others wait for all of them while one waits for its key.
KEYED = 100
_POLICIES_S = 10.0
_PUSH_PAGE = 200


class Stored(NamedTuple):
    """One of ``enqueue_each``: the row as it was sent, and what the database made of it."""

    row: NewRow
    done: Inserted


class Waits:
    """How many waits for keys that others hold, of 3 s each, are left to somebody who stores many tasks."""

    def __init__(self, left: int) -> None:
        self.left = left


class Producer:
    """Turns NewTask into rows and pushes their ids. One per app, shared by its threads."""

    def __init__(
        self, links: Links, registry: Registry, settings: Settings, clock: Clock, encoder: Encoder | None = None
    ) -> None:
        self._links, self._registry, self._settings, self._clock = links, registry, settings, clock
        self._encoder = encoder
        self.pusher = Pusher(links, clock)
        self._dispatcher = Dispatcher(links, clock, self.pusher)
        self._group = PerProcess(lambda: GroupCommit(self._insert_and_push, clock))
        self._policies: Mapping[str, QueuePolicy] = {}
        self._policies_until = float("-inf")
        self._policies_lock = PerProcess(threading.Lock)

    def enqueue(self, new: NewTask, *, connection: Transaction | None = None) -> Handle[Any]:
        """Store one task and push its id; the row is committed when this returns.

        If Redis is away the row still stands and is pushed later. With ``connection`` (a SQLAlchemy Connection or
        Session) the row lives and dies with the caller's transaction and is pushed after its commit. Dying right after
        the commit costs the push only. Raises InvalidTask, IdempotencyConflict, StoreUnavailable: nothing stored; or
        EnqueueUnknown.
        """
        return self._store(self.rows([new]), connection)[0]

    def enqueue_many(self, news: Iterable[NewTask], *, connection: Transaction | None = None) -> list[Handle[Any]]:
        """Store tasks, atomic per 1,000, handles in input order. All are checked before the first is stored."""
        return self._store(self.rows(news), connection)

    def enqueue_each(self, news: Sequence[NewTask], waits: Waits, *, times: bool = False) -> list[Stored | Exception]:
        """Store tasks of callers who do not know of each other, at most 1,000; each gets its own answer or error.

        Those without a key share a transaction, those with one a few; one that is refused, or whose key somebody holds
        (StoreBusy), takes nobody along. Where no ``waits`` are left keyed tasks are StoreBusy untried. Another error of
        a server is everybody's who was in the transaction; what has not been tried after it is StoreUnavailable.
        ``times``: as of ``store.insert``. Dying half way costs what was not committed, and the push of what was.
        """
        try:
            checks = self._checks()
        except TandemQError as away:
            return [away] * len(news)
        checked = [self._row_or_error(checks, new) for new in news]
        done = iter(self._store_each([row for row in checked if isinstance(row, NewRow)], times, waits))
        return [_stored(row, next(done)) if isinstance(row, NewRow) else row for row in checked]

    async def aenqueue_many(
        self, news: Iterable[NewTask], *, connection: Transaction | None = None
    ) -> list[Handle[Any]]:
        """``enqueue_many`` for a coroutine; ``connection`` may also be an AsyncSession or AsyncConnection."""
        rows = await self._links.offload(self.rows, news)
        if connection is None:
            return await self._links.offload(self._store, rows, None)
        if _is_async(connection):
            # Opened here, in a thread: inside run_sync a first connect would hold up the event loop.
            await self._links.offload(lambda: self._links.store)
            handles: list[Handle[Any]] = await connection.run_sync(lambda sync: self._store(rows, sync))
            return handles
        # A sync Session belongs to the thread that uses it.
        return self._store(rows, connection)

    def push(self, ids: Iterable[int]) -> int:
        """Push these tasks' ids as their rows say, if pending: for rows that other SQL inserted. How many were pushed.

        Unknown ids are ignored and logged. Raises BrokerUnavailable.
        """
        wanted = list(dict.fromkeys(_task_id(i) for i in ids))
        pushed, unknown = 0, []
        for at in range(0, len(wanted), _PUSH_PAGE):
            chunk = wanted[at : at + _PUSH_PAGE]
            page = self._links.store.find(Filter(ids=tuple(chunk)), limit=len(chunk))
            rows = {task.id: task for task in page.items}
            unknown += [i for i in chunk if i not in rows]
            now = self._links.store.now()
            entries = [
                Entry(i, _level(rows[i]), None if rows[i].run_at <= now else epoch_ms(rows[i].run_at))
                for i in chunk
                if i in rows and rows[i].status is Status.PENDING
            ]
            self.pusher.push_now(entries)
            pushed += len(entries)
        if unknown:
            shown = ", ".join(map(str, unknown[:20]))
            _log.warning("push: %d of %d ids have no row: %s", len(unknown), len(wanted), shown)
        return pushed

    def rows(self, news: Iterable[NewTask]) -> list[NewRow]:
        """Check tasks without storing anything. Raises InvalidTask and its kin."""
        checks = self._checks()
        rows: list[NewRow] = []
        for new in news:
            if not isinstance(new, NewTask):
                raise InvalidType(f"task {len(rows)} must be a NewTask, not {type(new).__name__}", field="task")
            try:
                rows.append(checks.row(new, self._known(new.task_type)))
            except InvalidTask as bad:
                bad.add_note(f"task {len(rows)} of the batch, {new.task_type!r}")
                raise
        return rows

    def flush(self, timeout_s: float) -> bool:
        """Wait until what callers' transactions have committed is pushed; False when the time passed before that."""
        return self._dispatcher.flush(timeout_s)

    def close(self) -> None:
        """Push what a caller committed just now, and end the threads."""
        self._dispatcher.close()
        self._group.get().close()

    def _store(self, rows: Sequence[NewRow], connection: Transaction | None) -> list[Handle[Any]]:
        if connection is not None and _is_async(connection):
            raise TypeError("enqueue with an AsyncSession must be awaited: use aenqueue(...)")
        if connection is None and len(rows) == 1 and rows[0].idempotency_key is None:
            # A keyed row waits for uncommitted rows of the same key, and would make its neighbours wait with it.
            one = self._group.get().store(rows[0])
            return [Handle(one.id, one.created, self._links)]
        done: list[Inserted] = []
        for at in range(0, len(rows), BATCH):
            try:
                some = rows[at : at + BATCH]
                crash_point("enqueue.before_insert")
                inserted = self._links.store.insert(some, connection=connection)
            except Exception as bad:
                if done:
                    bad.add_note(f"{len(done)} of {len(rows)} tasks were stored before this")
                raise
            self._dispatch(some, inserted, connection)
            done += inserted
        return [Handle(row.id, row.created, self._links) for row in done]

    def _store_each(self, rows: Sequence[NewRow], times: bool, waits: Waits) -> Sequence[Inserted | TandemQError]:
        order = sorted(range(len(rows)), key=lambda at: (rows[at].idempotency_key or "", at))
        sorted_rows = [rows[at] for at in order]
        keyless = sum(row.idempotency_key is None for row in rows)
        begins = range(keyless, len(rows), KEYED)
        groups = [sorted_rows[:keyless], *[sorted_rows[at : at + KEYED] for at in begins]]
        done = self._one_by_one([group for group in groups if group], times, waits)
        return [outcome for _, outcome in sorted(zip(order, done, strict=True), key=lambda pair: pair[0])]

    def _one_by_one(
        self, groups: Iterable[Sequence[NewRow]], times: bool, waits: Waits
    ) -> list[Inserted | TandemQError]:
        done: list[Inserted | TandemQError] = []
        for group in groups:
            if done and _is_away(done[-1]):  # each further try would wait as long again
                done += [StoreUnavailable(f"not tried after: {done[-1]}")] * len(group)
            else:
                done += self._store_group(group, times, waits)
        return done

    def _store_group(self, rows: Sequence[NewRow], times: bool, waits: Waits) -> Sequence[Inserted | TandemQError]:
        is_keyed = rows[0].idempotency_key is not None
        if is_keyed and waits.left <= 0:
            return [StoreBusy("not tried: too many idempotency keys are held by other transactions")] * len(rows)
        try:
            return self._insert_and_push(rows, times=times, patient=not is_keyed)
        except StoreBusy as held:
            waits.left -= is_keyed
            if not is_keyed or len(rows) == 1:
                return [held] * len(rows)
            parts = [rows[at : at + 1] for at in range(len(rows))]
        except TandemQError as failed:
            if len(rows) == 1 or not isinstance(failed, InvalidTask | IdempotencyConflict | StoreRefused):
                return [failed] * len(rows)
            # Refused because of one of them, nothing is stored: by halves, so that a bad row among a thousand costs ten
            # transactions.
            parts = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
        return self._one_by_one(parts, times, waits)

    def _insert_and_push(
        self, rows: Sequence[NewRow], *, times: bool = False, patient: bool = True
    ) -> Sequence[Inserted]:
        crash_point("enqueue.before_insert")
        inserted = self._links.store.insert(rows, times=times, patient=patient)
        self._dispatch(rows, inserted, None)
        return inserted

    def _dispatch(self, rows: Sequence[NewRow], inserted: Sequence[Inserted], connection: Transaction | None) -> None:
        # An existing task found by its key was pushed by whoever made it: pushing again could only make a copy.
        entries = [Entry(row.id, Level(row.queue, row.priority), row.due_ms) for row in inserted if row.created]
        if connection is not None:
            if entries:
                kinds = _kinds(rows, inserted)

                def committed() -> None:
                    metrics.enqueued(kinds)
                    self._dispatcher.submit(entries)

                self._links.store.after_commit(connection, committed)
            return
        crash_point("enqueue.after_commit")
        self.pusher.push(entries)
        crash_point("enqueue.after_push")
        metrics.enqueued(_kinds(rows, inserted))

    def _checks(self) -> Checks:
        return Checks(self._clock.now(), self._settings.max_payload_bytes, self._queue_policies(), self._encoder)

    def _row_or_error(self, checks: Checks, new: NewTask) -> NewRow | Exception:
        try:
            return checks.row(new, self._known(new.task_type))
        except Exception as bad:  # of code of the application too: its encoder
            return bad

    def _known(self, task_type: Any) -> RegisteredTask | None:
        return self._registry.get(task_type) if isinstance(task_type, str) else None

    def _queue_policies(self) -> Mapping[str, QueuePolicy]:
        """How operators want the tasks of queues retried, at most ten seconds old."""
        if self._clock.monotonic() >= self._policies_until:
            with self._policies_lock.get():
                if self._clock.monotonic() >= self._policies_until:
                    self._policies = self._links.store.queue_policies()
                    self._policies_until = self._clock.monotonic() + _POLICIES_S
        return self._policies


def _is_away(outcome: Inserted | TandemQError) -> bool:
    return isinstance(outcome, Unavailable | EnqueueUnknown) and not isinstance(outcome, StoreBusy)


def _stored(row: NewRow, done: Inserted | TandemQError) -> Stored | Exception:
    return Stored(row, done) if isinstance(done, Inserted) else done


def _kinds(rows: Sequence[NewRow], inserted: Sequence[Inserted]) -> Counter[tuple[str, str]]:
    pairs = zip(rows, inserted, strict=True)
    return Counter([(done.queue, row.task_type) for row, done in pairs if done.created])


def _level(task: Task) -> Level:
    return Level(task.queue, task.priority)


def _task_id(value: Any) -> int:
    if type(value) is not int:
        raise InvalidType(f"a task id must be an integer, not {value!r}", field="id")
    return value


def _is_async(connection: Any) -> bool:
    """An AsyncSession or AsyncConnection, told by its shape: this layer does not import SQLAlchemy."""
    return hasattr(connection, "run_sync")
