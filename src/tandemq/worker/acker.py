"""Writes verdicts: groups whatever has come since the last commit, then pushes what became pending again."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import cast

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import StoreUnavailable
from tandemq.core.failure import failure
from tandemq.core.lifecycle import Bury, DeadReason, Event, Release, RetryIn, Status, Succeed, Verdict
from tandemq.core.listening import Listeners
from tandemq.redeliver import dispatch
from tandemq.service import Throttle
from tandemq.store.answers import Settled, Settlement
from tandemq.store.protocol import Store
from tandemq.worker.arena import Batch
from tandemq.worker.inbox import Held

_log = logging.getLogger("tandemq.worker")
MAX_FLUSH = 500
#: How long a row that somebody holds is left alone before its verdict is tried again.
LOCKED_AGAIN_S = 0.2
#: So often a verdict may be refused even in its barest form.
MAX_REFUSALS = 3
#: Of a flush so many short attempts are timed, evenly spread, each for its share: all of them would cost 1 % of the
#: speed.
MAX_TIMED = 8
#: An attempt that took this long is timed in any case: there cannot be many of them in a flush.
SLOW_S = 0.01
#: When the attempt began and ended (monotonic). One that never began has ended before that.
NEVER_BEGAN = -1.0
Item = tuple[Held, Verdict, float, float]


class Acker:
    """Slots add, one thread flushes. A verdict is kept until the database has answered for it.

    While a commit is under way verdicts pile up, and go into the next one together: no timer, no added delay.
    """

    def __init__(
        self,
        store: Store,
        broker: Broker,
        *,
        worker_id: str,
        clock: Clock,
        on_dead: Callable[[Held, Bury], None],
        on_answer: Callable[[float], None],
        on_retry: Callable[[Held], None] | None = None,
    ) -> None:
        self._store, self._broker, self._worker_id, self._on_dead = store, broker, worker_id, on_dead
        self._on_retry = on_retry
        self._clock, self._on_answer = clock, on_answer
        self._say = Throttle(_log, clock)
        self._items: SimpleQueue[Item | threading.Event | None] = SimpleQueue()
        self._kept: list[Item] = []
        self._locked: list[Item] = []
        self._locked_at = 0.0
        self._marks: list[threading.Event] = []
        self._refused: Counter[int] = Counter()
        self._away = self._closed = False
        self._backoff_s = 0.0
        self._pause = threading.Event()
        self.fenced = 0

    def add(self, held: Held, verdict: Verdict, began: float = 0.0, ended: float = NEVER_BEGAN) -> None:
        """Queue a verdict for the next commit."""
        self._items.put((held, verdict, began, ended))

    def run(self) -> None:
        """The thread: flush until closed and empty."""
        while self.step():
            pass

    def step(self) -> bool:
        """Wait for verdicts, write whatever has come meanwhile; False when closed and nothing is left."""
        self._away = False
        if items := self._collect():
            self._keep(self._flush(items))
        if self._locked and not self._away and self._clock.monotonic() >= self._locked_at:
            # On their own: a row that an operator has locked must not hold up the verdicts of others.
            items, self._locked = self._locked, []
            self._keep(self._flush(items, again=True))
        if self._away:
            self._backoff_s = min(2.0, max(0.05, self._backoff_s * 2))
            self._pause.wait(self._backoff_s)
            return True
        self._backoff_s = 0.0
        if not self._locked:
            for mark in self._marks:
                mark.set()
            self._marks.clear()
        return bool(self._locked) or not self._closed

    def _keep(self, again: list[Item]) -> None:
        if self._away:
            self._kept = again
        elif again:
            self._locked += again
            self._locked_at = self._clock.monotonic() + LOCKED_AGAIN_S

    def _collect(self) -> list[Item]:
        """What was kept and what has come, in order, at most ``MAX_FLUSH``; waits if there is nothing to do."""
        items, self._kept = self._kept, []
        must_wait = not items
        while len(items) < MAX_FLUSH:
            try:
                one = self._items.get(must_wait, LOCKED_AGAIN_S if self._locked else None)
            except Empty:
                break
            must_wait = False
            if type(one) is tuple:
                items.append(one)
            elif one is None:
                self._closed = True
                break
            else:
                self._marks.append(cast(threading.Event, one))
                break  # everything before it is in hand
        return items

    def wait_empty(self, timeout_s: float | None) -> bool:
        """Wait until every verdict added so far has been answered."""
        mark = threading.Event()
        self._items.put(mark)
        return mark.wait(timeout_s)

    def close(self) -> None:
        """Let ``run`` end once everything is written."""
        self._items.put(None)

    def _flush(self, items: list[Item], *, again: bool = False) -> list[Item]:
        """Write one group; returns what has to be sent again."""
        started = self._clock.monotonic()
        groups: dict[Batch, list[int]] = {}
        settlements = []
        last, ids = None, list[int]()
        for (lease, batch), verdict, _, _ in items:
            if batch is not last:
                last, ids = batch, groups.setdefault(batch, [])
            ids.append(lease.id)
            settlements.append(Settlement(lease, verdict))
        closing = [batch.token for batch, ids in groups.items() if batch.unsettled.issubset(ids)]
        try:
            settled = self._store.finish(settlements, closing=closing, worker_id=self._worker_id, again=again)
        except StoreUnavailable as away:
            self._say(logging.WARNING, "store", f"the database is away, {len(items)} results are kept: {away}")
            self._away = True
            return items
        except Exception as broken:
            return self._isolate(items, broken)
        now = self._clock.monotonic()
        self._on_answer(now)
        metrics.finished(_outcomes(items, settled), now - started)
        if not again:
            metrics.ran(_timed(items))
        crash_point("finish.after_commit")
        locked = set(settled.locked)
        for batch, ids in groups.items():
            batch.settle([i for i in ids if i not in locked] if locked else ids)
            if not batch.unsettled:
                batch.close()
        if settled.succeeded:
            return []
        self._follow(items, settled)
        return [item for item in items if item[0].lease.id in locked]

    def _follow(self, items: list[Item], settled: Settled) -> None:
        """What comes after the commit: log, push, hooks."""
        if settled.fenced:
            self.fenced += len(settled.fenced)
            metrics.fenced(len(settled.fenced))
            for task_id in settled.fenced:
                text = f"task {task_id}: its lease was lost, the late result is refused"
                self._say(logging.WARNING, "fenced", text, about={"task_id": task_id})
        retries = any(move.event is Event.RETRY for move in settled.moved)
        if retries:
            crash_point("retry.after_commit")
        dispatch(self._broker, settled.moved)
        if retries:
            crash_point("retry.after_push")
        if retries and self._on_retry is not None and Listeners.anybody:
            again = {(m.id, m.attempt) for m in settled.moved if m.event is Event.RETRY}
            for held, verdict, *_ in items:
                if isinstance(verdict, RetryIn) and (held.lease.id, held.lease.attempt) in again:
                    self._on_retry(held)
        buried = {m.id: m.dead_reason for m in settled.moved if m.event is Event.BURY and m.dead_reason}
        for held, verdict, *_ in items if buried else ():
            reason = buried.get(held.lease.id)
            if reason and isinstance(verdict, Bury | RetryIn):  # a retry that came too late for the task's max_age
                self._on_dead(held, Bury(DeadReason(reason), verdict.failure))

    def _isolate(self, items: list[Item], broken: Exception) -> list[Item]:
        """An error that retrying does not cure: halve until the culprit is alone, then store it with minimal text."""
        if len(items) > 1:
            middle = len(items) // 2
            return self._flush(items[:middle]) + self._flush(items[middle:])
        held, verdict, began, ended = items[0]
        minimal = _minimal(verdict)
        self._say(logging.ERROR, "unstorable", f"task {held.lease.id}: its verdict could not be stored: {broken!r}")
        if minimal == verdict:
            self._refused[held.lease.id] += 1
            if self._refused[held.lease.id] >= MAX_REFUSALS:
                raise broken  # ends the process; its supervisor judges what it held
            return items
        return self._flush([(held, minimal, began, ended)])


def _outcomes(items: list[Item], settled: Settled) -> Mapping[tuple[str, str, str], int]:
    """What became of them by (queue, type, outcome), for the metrics; retries are counted by attempt here as well."""
    if settled.succeeded:
        return settled.counts
    retried = {held.lease.id for held, verdict, *_ in items if isinstance(verdict, RetryIn)}
    counts: Counter[tuple[str, str, str]] = Counter()
    again: Counter[tuple[str, int]] = Counter()
    for move in settled.moved:
        outcome = move.status.value
        if move.status is Status.PENDING:
            is_retry = move.event is Event.RETRY and move.id in retried
            outcome = "retried" if is_retry else "released"
            if is_retry:
                again[move.task_type, move.attempt] += 1
        counts[move.level.queue, move.task_type, outcome] += 1
    if again:
        metrics.retried(again)
    if buried := Counter([(m.task_type, m.dead_reason) for m in settled.moved if m.dead_reason]):
        metrics.dead(buried)
    return counts


def _timed(items: list[Item]) -> list[tuple[str, str, float, float, int]]:
    """Some of those that ran, for ``metrics.ran``."""
    ran_s = [ended - began for _, _, began, ended in items]
    some: list[Item] = items
    slow: list[Item] = []
    if min(ran_s) < 0 or max(ran_s) >= SLOW_S:  # looked at this way because it is seldom so, and cheap to find out
        slow = [item for item, s in zip(items, ran_s, strict=True) if s >= SLOW_S]
        some = [item for item, s in zip(items, ran_s, strict=True) if 0 <= s < SLOW_S]
    step = -(-len(some) // MAX_TIMED) or 1
    timed = [_times(some[at], min(step, len(some) - at)) for at in range(0, len(some), step)]
    return [_times(item, 1) for item in slow] + timed


def _times(item: Item, n: int) -> tuple[str, str, float, float, int]:
    (lease, batch), _, began, ended = item
    return lease.queue, lease.task_type, lease.waited_us / 1e6 + began - batch.sent_at, ended - began, n


def _minimal(verdict: Verdict) -> Verdict:
    text = failure("Unstorable", "the error (or result) could not be stored")
    match verdict:
        case Succeed():
            return Succeed(None, "result not storable")
        case RetryIn() | Bury():
            return replace(verdict, failure=text)
        case Release():
            return Release(None)
        case _:
            return verdict
