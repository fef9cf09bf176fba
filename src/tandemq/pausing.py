"""Pausing queues and task types: durable in MySQL, obeyed by every worker within two seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from tandemq.acting import acting
from tandemq.core import values
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, StoreUnavailable
from tandemq.core.pausing import Pause, Paused, PauseKind
from tandemq.core.values import Seconds
from tandemq.links import Links
from tandemq.redeliver import dispatch
from tandemq.store.answers import NotDue
from tandemq.store.protocol import Store

_log = logging.getLogger("tandemq.pausing")
#: How old what a worker knows of pauses may be. With the longest pop this stays below two seconds.
LOOK_S = 1.0
#: By then a pause is obeyed everywhere.
OBEYED_S = 2.0
#: Tasks of a resumed type that are woken in one transaction, and in how many at most; the reconciler wakes the rest.
WAKE_ROWS, WAKE_CHUNKS = 500, 2000
#: Draining looks again after so long, each time half as long again.
DRAIN_LOOK_S, DRAIN_LAST_LOOK_S = 0.2, 2.0
#: Ids that are looked through for a paused type at once, beyond what a worker has room for.
FLOOD_IDS = 500


class PauseWatch:
    """What is paused, as a worker sees it. While the database is away the last answer holds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._paused: Paused | None = None
        self._until = float("-inf")

    def now(self) -> Paused:
        """At most ``LOOK_S`` old. StoreUnavailable before the first answer: nobody knows then what may begin."""
        asked_at, known = self._clock.monotonic(), self._paused
        if known is not None and asked_at < self._until:
            return known
        try:
            found = Paused.of(self._store.pauses())
        except StoreUnavailable as away:
            if known is None:
                raise
            _log.debug("what is paused cannot be read: %s", away)
            return known  # and asked again the next time: as old as it is, it is not taken for a new one
        self._paused, self._until = found, asked_at + LOOK_S
        return found


class Flood:
    """Tasks of a paused type that lie before all others in a list, by the thousands.

    Met one by one, as slots come free, they would keep the others waiting: so what lies behind one is looked through at
    once, far more than there are slots. Those of paused types are held, the others go back to where they were.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._not_before = float("-inf")

    def hold(
        self, pop: Callable[[int], Sequence[int]], types: Collection[str], put_back: Callable[[list[int]], object]
    ) -> list[NotDue]:
        """After a claim that held all of its ids. An error puts all back. It waits where most were not of these."""
        if not types or self._clock.monotonic() < self._not_before:
            return []
        ids = list(dict.fromkeys(pop(FLOOD_IDS)))
        held: list[NotDue] = []
        try:
            held = self._store.hold(ids, types)
        finally:
            mine = {row.id for row in held}
            if rest := [task_id for task_id in ids if task_id not in mine]:
                put_back(rest)
            if len(rest) >= len(mine):
                self._not_before = self._clock.monotonic() + LOOK_S
        return held


class Pauses:
    """``app.pauses``. Paused means: nothing more of it begins; what runs goes on, and enqueues are taken."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def list(self) -> Sequence[Pause]:
        """The pauses that hold."""
        return self._links.store.pauses()

    def pause(
        self,
        queue: str | None = None,
        *,
        task_type: str | None = None,
        for_: Seconds | None = None,
        reason: str = "",
        who: str | None = None,
    ) -> None:
        """Pause a queue, or a task type in all queues; for so long (seconds, timedelta), or until it is resumed.

        Paused again, it has the new end. One transaction with a row of the audit log. InvalidTask.
        """
        kind, name = _one(queue, task_type)
        for_s = None if for_ is None else values.seconds(for_, "for")
        if for_s == 0:
            raise InvalidTask("for must be more than 0 seconds; leave it out to pause until resumed", field="for")
        details = {kind.value: name} | ({} if for_s is None else {"for_s": for_s})
        self._links.store.pause(kind, name, for_s, deed=acting("pause", who, reason, details=details))

    def resume(
        self, queue: str | None = None, *, task_type: str | None = None, reason: str = "", who: str | None = None
    ) -> bool:
        """End a pause; False if there is none. Held tasks of a type are pushed before this returns.

        If this process dies, or Redis is away, the reconciler does it.
        """
        kind, name = _one(queue, task_type)
        ended = self._links.store.resume(kind, name, deed=acting("resume", who, reason, details={kind.value: name}))
        for _ in range(WAKE_CHUNKS if kind is PauseKind.TYPE else 0):
            moved, more = self._links.store.release_held(WAKE_ROWS)
            try:
                more = dispatch(self._links.broker, moved) and more
            except (BrokerUnavailable, ForeignInstall):
                more = False
            if not more:
                break
        return ended

    def drain(
        self,
        queue: str,
        *,
        timeout: Seconds | None = None,
        reason: str = "",
        who: str | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> bool:
        """Pause a queue and wait until nothing of it runs; False when ``timeout`` has passed before.

        It stays paused either way.
        """
        limit_s = None if timeout is None else values.seconds(timeout, "timeout")
        self.pause(queue, reason=reason, who=who)
        clock = self._links.clock
        started, look_s = clock.monotonic(), DRAIN_LOOK_S
        while True:
            running, waited_s = self._links.store.running(queue), clock.monotonic() - started
            # A worker that had not heard of the pause may have claimed something after it.
            if not running and waited_s >= OBEYED_S and not (running := self._counted(queue)):
                return True
            if limit_s is not None and waited_s >= limit_s:
                return False
            if on_progress is not None:
                on_progress(running)
            clock.sleep(look_s if limit_s is None else max(0.0, min(look_s, limit_s - waited_s)))
            look_s = min(DRAIN_LAST_LOOK_S, look_s * 1.5)

    def _counted(self, queue: str) -> int:
        return int(self._links.store.counts()["queues"].get(queue, {}).get("running", 0))


def _one(queue: str | None, task_type: str | None) -> tuple[PauseKind, str]:
    if (queue is None) == (task_type is None):
        raise InvalidTask("give a queue or a task type, one of the two", field="queue")
    if queue is not None:
        return PauseKind.QUEUE, values.queue_name(queue)
    return PauseKind.TYPE, values.task_type(task_type)
