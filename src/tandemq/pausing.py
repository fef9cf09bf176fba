"""Pausing queues and task types: durable in MySQL, obeyed by every worker within two seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tandemq.acting import acting
from tandemq.core import values
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, StoreUnavailable
from tandemq.core.pausing import NOTHING, Pause, Paused, PauseKind
from tandemq.core.values import Seconds
from tandemq.links import Links
from tandemq.redeliver import dispatch
from tandemq.store.protocol import Store

_log = logging.getLogger("tandemq.pausing")
#: How old what a worker knows of pauses may be. With the longest pop this stays below two seconds.
LOOK_S = 1.0
#: By then a pause is obeyed everywhere.
OBEYED_S = 2.0
#: Tasks of a resumed type that are woken in one transaction, and how often draining looks.
WAKE_ROWS, DRAIN_LOOK_S = 500, 0.2


class PauseWatch:
    """What is paused, as a worker sees it. While the database is away the last answer holds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._paused, self._until = NOTHING, float("-inf")

    def now(self) -> Paused:
        """At most ``LOOK_S`` old. Never raises StoreUnavailable."""
        if self._clock.monotonic() >= self._until:
            try:
                self._paused = Paused.of(self._store.pauses())
            except StoreUnavailable as away:
                _log.debug("what is paused cannot be read: %s", away)
            self._until = self._clock.monotonic() + LOOK_S
        return self._paused


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
        more = kind is PauseKind.TYPE
        while more:
            moved, more = self._links.store.release_held(WAKE_ROWS)
            try:
                more = dispatch(self._links.broker, moved) and more
            except (BrokerUnavailable, ForeignInstall):
                more = False
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
        started = clock.monotonic()
        while True:
            running, waited_s = self._running(queue), clock.monotonic() - started
            # A worker that had not heard of the pause may have claimed something after it.
            if not running and waited_s >= OBEYED_S:
                return True
            if limit_s is not None and waited_s >= limit_s:
                return False
            if on_progress is not None:
                on_progress(running)
            clock.sleep(DRAIN_LOOK_S)

    def _running(self, queue: str) -> int:
        return int(self._links.store.counts()["queues"].get(queue, {}).get("running", 0))


def _one(queue: str | None, task_type: str | None) -> tuple[PauseKind, str]:
    if (queue is None) == (task_type is None):
        raise InvalidTask("give a queue or a task type, one of the two", field="queue")
    if queue is not None:
        return PauseKind.QUEUE, values.queue_name(queue)
    return PauseKind.TYPE, values.task_type(task_type)
