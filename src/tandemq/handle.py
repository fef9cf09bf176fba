"""What an enqueue gives back: a way to look at the task, wait for its result, or cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

from tandemq.acting import acting
from tandemq.core import values
from tandemq.core.codec import decode
from tandemq.core.errors import TaskCancelled, TaskDead, TaskNotFound
from tandemq.core.lifecycle import Status
from tandemq.links import Links

R = TypeVar("R")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.005, 0.25


class _Ended(NamedTuple):
    result: Any


class Handle(Generic[R]):
    """A stored task. ``created`` is False when its idempotency key already owned an equal task, which this one is.

    Inside a caller's transaction the row exists only after the commit; until then ``state`` raises TaskNotFound.
    """

    __slots__ = ("_links", "created", "id")

    def __init__(self, task_id: int, created: bool, links: Links) -> None:
        self.id, self.created, self._links = task_id, created, links

    def __repr__(self) -> str:
        return f"Handle(id={self.id}, created={self.created})"

    def state(self) -> str:
        """ready, scheduled, retrying, running, succeeded, dead or cancelled. Raises TaskNotFound."""
        task = self._links.store.get(self.id)
        if task is None:
            raise self._missing()
        return task.state

    @property
    def status(self) -> Status:
        """The stored status, one read by primary key. Raises TaskNotFound."""
        return self._read()[0]

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, at most ``timeout`` seconds, and return what the handler returned.

        Raises TaskDead, TaskCancelled, TaskNotFound, or TimeoutError while the task has not ended (0: look once).
        """
        waits = self._waits(timeout)
        while (ended := self._ended()) is None:
            self._links.clock.sleep(next(waits))
        return cast("R", ended.result)

    def cancel(self, *, kill: bool = False, reason: str = "", who: str | None = None) -> str:
        """``cancelled`` if it was pending, ``requested`` if it is running, else the final status it has.

        See ``TandemQ.cancel``.
        """
        details = {"kill": True} if kill else None
        deed = acting("cancel", who, reason, task_id=self.id, details=details)
        return self._links.store.cancel(self.id, kill=kill, deed=deed)

    async def astate(self) -> str:
        """``state`` without blocking the event loop."""
        return await self._links.offload(self.state)

    async def aresult(self, timeout: float | None = None) -> R:
        """``result`` without blocking the event loop; waiting takes no thread, only looking does."""
        waits = self._waits(timeout)
        while (ended := await self._links.offload(self._ended)) is None:
            await asyncio.sleep(next(waits))
        return cast("R", ended.result)

    async def acancel(self, *, kill: bool = False, reason: str = "", who: str | None = None) -> str:
        """``cancel`` without blocking the event loop."""
        return await self._links.offload(self.cancel, kill=kill, reason=reason, who=who)

    def _waits(self, timeout: float | None) -> Iterator[float]:
        """Growing pauses between two looks, the last one ending at the timeout; then TimeoutError."""
        clock, wait_s = self._links.clock, _FIRST_WAIT_S
        limit_s = None if timeout is None else values.seconds(timeout, "timeout")
        begun = clock.monotonic()
        while True:
            left_s = wait_s if limit_s is None else begun + limit_s - clock.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"task {self.id} had not ended after {limit_s:g} s")
            yield min(wait_s, left_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)

    def _read(self) -> tuple[Status, str | None, str | None, str | None]:
        read = self._links.store.ending(self.id)
        if read is None:
            raise self._missing()
        return read

    def _ended(self) -> _Ended | None:
        status, result, error, reason = self._read()
        if status is Status.SUCCEEDED:
            return _Ended(None if result is None else decode(result))
        if status is Status.DEAD:
            text = f"task {self.id} is dead ({reason}): {error or 'no error text'}"
            raise TaskDead(text, task_id=self.id, reason=reason or "", error=error or "")
        if status is Status.CANCELLED:
            raise TaskCancelled(f"task {self.id} was cancelled")
        return None

    def _missing(self) -> TaskNotFound:
        return TaskNotFound(f"no task has the id {self.id} (purged, or its transaction has not committed)")
