"""From the commit to Redis: pushes ids. A push that does not happen costs time; the reconciler heals it."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tandemq import metrics
from tandemq.background import Background
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import StoreUnavailable, TandemQError
from tandemq.core.task import Level
from tandemq.links import Links, PerProcess

_log = logging.getLogger("tandemq.dispatch")
_WARN_EVERY_S = 10.0
#: How long after a caller's commit its rows are looked for; then they are the reconciler's.
_VISIBLE_WITHIN_S = 5.0
_FIRST_LOOK_S, _SLOWEST_LOOK_S = 0.002, 0.25
_FLUSH_AT_EXIT_S = 1.0
_LOOK_AT = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One id on its way to Redis. ``due_ms``: None for the ready list, else its score in the sorted set."""

    id: int
    level: Level
    due_ms: int | None = None


class Pusher:
    """Pushes after a commit. While Redis is away calls fail at once (the broker's breaker) and the ids wait."""

    def __init__(self, links: Links, clock: Clock) -> None:
        self._links, self._clock = links, clock
        self._warn_at = float("-inf")
        self._left_out = 0

    def push(self, entries: Sequence[Entry]) -> bool:
        """Push ready ids by level in the given order, later ones to the sorted sets. False: left to the reconciler."""
        if not entries:
            return True
        try:
            self.push_now(entries)
        except (
            TandemQError
        ) as away:  # whatever it is, the rows are committed: an error here would be taken for "not stored"
            self._left_out += len(entries)
            now = self._clock.monotonic()
            if now >= self._warn_at:
                _log.warning("stored, not pushed, left to the reconciler: %d tasks (%s)", self._left_out, away)
                self._warn_at, self._left_out = now + _WARN_EVERY_S, 0
            return False
        return True

    def push_now(self, entries: Sequence[Entry]) -> None:
        """As ``push``, but raises BrokerUnavailable instead of leaving it to the reconciler."""
        ready: dict[Level, list[int]] = {}
        later: dict[Level, dict[int, int]] = {}
        for entry in entries:
            if entry.due_ms is None:
                ready.setdefault(entry.level, []).append(entry.id)
            else:
                later.setdefault(entry.level, {})[entry.id] = entry.due_ms
        broker = self._links.broker
        for level, ids in ready.items():
            broker.push(level, ids)
            metrics.pushed(level.queue, len(ids))
        for level, due in later.items():
            broker.delay(level, due)
            metrics.pushed(level.queue, len(due))


@dataclass(slots=True)
class _Batch:
    entries: dict[int, Entry]
    until: float


class _Waiting:
    """The dispatcher's state in one process."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.thread: Background | None = None
        self.open_batches = 0
        self.idle = threading.Event()

    def count(self, change: int) -> None:
        """Keep ``idle`` true exactly while nothing is waiting."""
        self.open_batches += change
        if self.open_batches:
            self.idle.clear()
        else:
            self.idle.set()


class Dispatcher:
    """Pushes rows that were inserted on a caller's connection, once they can be seen.

    SQLAlchemy tells of a Connection's commit before the database has done it, so a daemon thread looks for the rows on
    a connection of its own. If the process dies first, or the commit fails after all, nothing is pushed.
    """

    def __init__(self, links: Links, clock: Clock, pusher: Pusher) -> None:
        self._links, self._clock, self._pusher = links, clock, pusher
        self._waiting = PerProcess(_Waiting)

    def submit(self, entries: Iterable[Entry]) -> None:
        """Called at the caller's commit; returns at once."""
        batch = _Batch({e.id: e for e in entries}, self._clock.monotonic() + _VISIBLE_WITHIN_S)
        if not batch.entries:
            return
        waiting = self._waiting.get()
        with waiting.lock:
            waiting.count(+1)
            waiting.inbox.put(batch)
            if waiting.thread is None:
                waiting.thread = Background(self._run, self._clock)
                # A script that commits and ends at once would otherwise leave its tasks to the reconciler.
                atexit.register(self.flush, _FLUSH_AT_EXIT_S)
            waiting.thread.ensure()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything submitted is pushed or given up; False when ``timeout_s`` passed before that."""
        waiting = self._waiting.get()
        return waiting.thread is None or waiting.idle.wait(timeout_s)

    def close(self) -> None:
        """Flush for a moment and end the thread."""
        waiting = self._waiting.get()
        if waiting.thread is not None:
            self.flush(_FLUSH_AT_EXIT_S)
            waiting.inbox.put(None)
            waiting.thread.join(_VISIBLE_WITHIN_S)
            waiting.thread = None
            atexit.unregister(self.flush)

    def step(self, batches: list[_Batch]) -> list[_Batch]:
        """Push what is visible; returns the batches that are still worth waiting for."""
        wanted = [task_id for batch in batches for task_id in batch.entries]
        visible: set[int] = set()
        try:
            for at in range(0, len(wanted), _LOOK_AT):
                visible |= self._links.store.visible(wanted[at : at + _LOOK_AT])
        except StoreUnavailable as away:
            _log.debug("looking for committed rows: %s", away)
        found = [e for batch in batches for e in batch.entries.values() if e.id in visible]
        if found:
            crash_point("enqueue.after_commit")
            self._pusher.push(found)
            crash_point("enqueue.after_push")
        now = self._clock.monotonic()
        left = [_Batch({i: e for i, e in b.entries.items() if i not in visible}, b.until) for b in batches]
        return [b for b in left if b.entries and now < b.until]

    def _run(self) -> None:
        waiting = self._waiting.get()
        batches: list[_Batch] = []
        look_s = _FIRST_LOOK_S
        while True:
            try:
                batch = waiting.inbox.get(timeout=look_s if batches else None)
            except queue.Empty:
                look_s = min(_SLOWEST_LOOK_S, look_s * 2)
            else:
                if batch is None:
                    return
                batches.append(batch)
                look_s = _FIRST_LOOK_S
            before = len(batches)
            try:
                batches = self.step(batches)
            except Exception:
                _log.exception("dispatch after a caller's commit failed; left to the reconciler")
                batches = []
            with waiting.lock:
                waiting.count(len(batches) - before)
