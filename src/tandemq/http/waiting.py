"""The waiting room of claims: requests that wait for a task to come share one thread and one BRPOP.

A request tries by itself first. If nothing is there it waits in here, without a thread or a connection of its own; one
thread pops for all who wait and gives what comes to the first of them that can take it. Nobody is given anything after
having left: what was popped for nobody goes back to the front, what was claimed for somebody who has gone is handed
back by the request (see ``working``). What could not be handed back at once is given back by a second thread: that may
wait long for rows which somebody else has locked, and is no business of those who wait here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Any, Final

from tandemq.broker.protocol import Popped
from tandemq.core.errors import StoreUnavailable
from tandemq.core.ids import new_random
from tandemq.core.task import Lease, Level
from tandemq.remote import Claims, Wanted
from tandemq.service import Loop

_log = logging.getLogger("tandemq.http")
#: Longest BRPOP, so also how late a newcomer's queues are looked at, and a stop is noticed.
BLOCK_S = 0.25
#: Between two turns while nobody waits; a newcomer wakes the thread.
IDLE_S = 1.0
#: How often claims that are owed are looked for.
DEBTS_S = 0.5
#: Ids that are popped ahead of their claims.
IN_HAND: Final = 10


class _Waiter:
    """A request that waits. All but ``answer`` is guarded by the room's lock."""

    __slots__ = ("_loop", "answer", "has_left", "is_served", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.is_served = self.has_left = False
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[list[Lease] | Exception] = self._loop.create_future()

    def tell(self, answer: list[Lease] | Exception) -> None:
        """From any thread; RuntimeError if the request's event loop is closed. The first answer counts."""
        self._loop.call_soon_threadsafe(self._set, answer)

    def _set(self, answer: list[Lease] | Exception) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class _Debts:
    """The thread that gives back claims which nobody was told of."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def step(self) -> float:
        """One turn."""
        self._claims.settle()
        return DEBTS_S


class WaitingRoom:
    """Who waits for a task, first come first served."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._lock = threading.Lock()
        self._waiting: dict[_Waiter, None] = {}
        self._requests: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._thread = Loop(self, claims.app.clock, new_random(), "claims", _log)
        self._debts = Loop(_Debts(claims), claims.app.clock, new_random(), "claims-owed", _log)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to serve those who will wait."""
        self._thread.start()
        self._debts.start()

    def close(self) -> None:
        """Send everybody home with nothing, and let nobody wait from now on: this process is to stop."""
        with self._lock:
            self._is_closed = True
        self._dismiss([])

    async def stop(self) -> None:
        """``close``, and wait until what was claimed is answered or handed back."""
        self.close()
        if self._requests:
            await asyncio.wait(self._requests)
        await self._claims.app.offload(self._end)

    def _end(self) -> None:
        self._thread.stop()
        self._debts.stop()
        try:
            self._claims.settle()
        except StoreUnavailable as away:
            _log.warning("claims that nobody was told of are left to their leases: %s", away)

    def keep(self, request: asyncio.Task[Any]) -> None:
        """``stop`` waits for this: it may hold what was claimed."""
        self._requests.add(request)
        request.add_done_callback(self._over)

    def _over(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            request.exception()  # looked at: whoever should have been told may have gone

    async def claim(self, wanted: Wanted, wait_s: float, gone: asyncio.Future[None]) -> list[Lease]:
        """What there is for this worker within ``wait_s``; [] if nothing came, or once ``gone`` is done.

        StoreUnavailable. What it answers is in the caller's hands, also when ``gone`` is done meanwhile.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        leases = await self._claims.app.offload(self._claims.take, wanted)
        left_s = until - loop.time()
        if leases or left_s <= 0 or gone.done() or (waiter := self._join(wanted)) is None:
            return leases
        either: set[asyncio.Future[Any]] = {waiter.answer, gone}
        await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if self._leave(waiter):
            return []
        answer = await waiter.answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _join(self, wanted: Wanted) -> _Waiter | None:
        waiter = _Waiter(wanted)
        with self._lock:
            if self._is_closed:
                return None
            self._waiting[waiter] = None
        self._thread.wake()
        return waiter

    def _leave(self, waiter: _Waiter) -> bool:
        """False: something is being claimed for it, or has been; it must wait for the answer."""
        with self._lock:
            waiter.has_left = True
            if waiter.is_served:
                return False
            return self._waiting.pop(waiter, waiter) is None

    # The thread

    def step(self) -> float:
        """One turn of the thread: pop, claim, tell."""
        with self._lock:
            waiting = list(self._waiting)
        try:
            if not waiting:
                return IDLE_S
            self._claims.check_database()
            return self._serve(waiting)
        except StoreUnavailable as away:
            self._dismiss(away)
            raise

    def _serve(self, waiting: list[_Waiter]) -> float:
        first = waiting[0].wanted.queues
        every = tuple(dict.fromkeys(queue for waiter in waiting for queue in waiter.wanted.queues))
        lists = self._claims.lists
        # Whoever has waited longest is not to be starved by what others wait for with a higher priority.
        popped = lists.popped(first, 1) if len(every) > len(first) else Popped()
        if popped is not None and popped.level is None:
            popped = lists.popped(every, 1, BLOCK_S)
        if popped is None:
            return self._serve_without_redis(every)
        if popped.level is not None:
            more = lists.more(popped.level, min(IN_HAND, self._room([popped.level.queue])) - 1)
            self._give(popped.level, [*popped.ids, *more])
        return 0.0

    def _serve_without_redis(self, queues: tuple[str, ...]) -> float:
        lists = self._claims.lists
        if lists.next_look_s == 0:
            lists.look(lambda: self._room(queues), self._give, queues)
        return min(BLOCK_S, lists.next_look_s or BLOCK_S)

    def _room(self, queues: Iterable[str]) -> int:
        """How many tasks those who wait for any of these queues would take."""
        wanted = frozenset(queues)
        with self._lock:
            return sum(w.wanted.most for w in self._waiting if not wanted.isdisjoint(w.wanted.queues))

    def _give(self, level: Level, ids: list[int]) -> list[int]:
        """Claim ids of one level for those who wait for them; answers those that are no work for anybody now."""
        no_work: list[int] = []
        types = self._types(level, ids)
        while ids and (waiter := self._next(level, types.get(ids[0]))):
            fit = [i for i in ids[: waiter.wanted.most] if waiter.wanted.fits(level.queue, types.get(i))] or ids[:1]
            ids = [i for i in ids if i not in fit]
            got: list[Lease] = []
            try:
                no_work += self._claims.claim(level, fit, waiter.wanted, got, behind=ids)
            except Exception as error:
                self._done(waiter, got or error)
                raise
            self._done(waiter, got)
        self._claims.lists.put_back(level, ids)
        return no_work

    def _types(self, level: Level, ids: list[int]) -> dict[int, str]:
        """Of which types these are, if anybody who waits for the level cares."""
        with self._lock:
            matters = any(w.wanted.types is not None and level.queue in w.wanted.queues for w in self._waiting)
        if not matters:
            return {}
        try:
            return self._claims.app.store.types_of(ids)
        except BaseException:
            self._claims.lists.put_back(level, ids)
            raise

    def _next(self, level: Level, task_type: str | None) -> _Waiter | None:
        """The first that can take it, else the first of its queue: then its claim defers the task."""
        with self._lock:
            candidates = [w for w in self._waiting if w.wanted.fits(level.queue, None)]
            fitting = (w for w in candidates if w.wanted.fits(level.queue, task_type))
            waiter = next(fitting, candidates[0] if candidates else None)
            if waiter is not None:
                waiter.is_served = True
            return waiter

    def _done(self, waiter: _Waiter, answer: list[Lease] | Exception) -> None:
        with self._lock:
            waiter.is_served = False
            if not answer and not waiter.has_left and not self._is_closed:
                return  # a copy, or a task that was not due: it waits on, where it was
            self._waiting.pop(waiter, None)
        self._tell(waiter, answer)

    def _tell(self, waiter: _Waiter, answer: list[Lease] | Exception) -> None:
        try:
            waiter.tell(answer)
        except RuntimeError:  # its event loop is closed
            if isinstance(answer, list):
                self._claims.hand_back(answer, waiter.wanted.worker_id)

    def _dismiss(self, answer: list[Lease] | Exception) -> None:
        """Answer everybody but those for whom something is being claimed."""
        with self._lock:
            waiting = [waiter for waiter in self._waiting if not waiter.is_served]
            for waiter in waiting:
                del self._waiting[waiter]
        for waiter in waiting:
            self._tell(waiter, answer)
