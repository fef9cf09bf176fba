"""The live tokens as the gate knows them: read from the database off the event loop, once for all requests.

A new roster is read from ``AHEAD_S`` after the last reading began, while requests go on with the last one; a request
that meets one older than ``OLD_S`` waits for the new one. So what is revoked is refused within ``OLD_S`` of its commit,
and under steady traffic nobody waits. A database that does not answer is waited for a moment, then the last roster goes
on; before the first one there is nothing to go on with, and a request gets the error of the reading.

It is read in a thread and over a connection of its own: those of requests may all be waiting for locks, and a token
that is revoked must not be let in for as long as that takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

from tandemq.app import TandemQ
from tandemq.core.errors import StoreUnavailable, TandemQError
from tandemq.core.tokens import LiveToken, LiveTokens
from tandemq.http.calls import Caller
from tandemq.store.protocol import Store

_log = logging.getLogger("tandemq.http")
AHEAD_S, OLD_S = 1.0, 1.9
#: How long a reading is waited for: where tokens are known, after one that failed, and where none are known yet.
PATIENCE_S, SHORT_PATIENCE_S, FIRST_PATIENCE_S = 2.0, 0.25, 10.0
#: From the end of a reading that failed to the next one.
AGAIN_S = 1.0
#: Uses of one token are noted so often.
NOTE_S = 60.0


class Bucket:
    """``capacity`` at once, and ``rate`` a second from then on (above 0)."""

    __slots__ = ("_at", "_level", "capacity", "rate")

    def __init__(self, rate: float, now: float, *, capacity: float | None = None) -> None:
        self.rate = rate
        self.capacity = max(1.0, rate) if capacity is None else capacity
        self._at, self._level = now, self.capacity

    def take(self, now: float) -> float:
        """0.0, and one is taken; or the seconds until there is one."""
        level = min(self.capacity, self._level + max(0.0, now - self._at) * self.rate)
        self._at = now
        # A sum of floats: whoever comes back when told to must not be a billionth too early.
        if level >= 1 - 1e-6:
            self._level = max(0.0, level - 1)
            return 0.0
        self._level = level
        return (1 - level) / self.rate


class Bearer:
    """A live token: whose it is, how often it may ask, when it ends (monotonic). Lives as long as it is on a roster."""

    __slots__ = ("_bucket", "caller", "ends_at", "hash", "id", "note_at", "rate")

    def __init__(self, token: LiveToken, rate: float, now: float) -> None:
        self.id, self.hash = token.id, token.hash
        self.caller = Caller(f"token {token.name}", token.roles)
        self.rate = token.rate or rate
        self._bucket = Bucket(self.rate, now) if self.rate else None
        self.ends_at = float("inf")
        self.note_at = now

    def take(self, now: float) -> float:
        """0.0, or the seconds to wait."""
        return self._bucket.take(now) if self._bucket is not None else 0.0

    def is_of(self, token: LiveToken, rate: float) -> bool:
        """Whether this can go on for the row: only somebody with SQL in hand changes more of it than its end."""
        same = (self.hash, self.caller.roles, self.caller.name, self.rate)
        return same == (token.hash, token.roles, f"token {token.name}", token.rate or rate)


class Roster(NamedTuple):
    """All live tokens by id. ``any_ever``: there is a token, live or not. Times are monotonic."""

    bearers: Mapping[bytes, Bearer]
    any_ever: bool
    ahead_at: float
    old_at: float


class Rosters:
    """The one known now, and the way to the next. All methods are called in one event loop."""

    def __init__(self, app: TandemQ, rate: float) -> None:
        self._app, self._rate, self._clock = app, rate, app.clock
        self.known: Roster | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = self._again_at = float("-inf")
        self._failure: Exception | None = None
        self._used: set[str] = set()
        self._noting: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tandemq-tokens")
        self._store: Store | None = None
        self._open = ExitStack()

    async def fresh(self, now: float) -> Roster:
        """One that is not old, or the last known while there is none; before the first: what its reading raised."""
        known = self.known
        if self._reading is None and now >= self._again_at:
            self._began = now
            self._reading = asyncio.create_task(self._read(now))
        if known is not None and now < known.old_at:
            return known
        if self._reading is not None:
            left_s = self._began + self._patience() - now
            if left_s > 0:
                await asyncio.wait({self._reading}, timeout=left_s)
        if self.known is None:
            raise self._failure or StoreUnavailable("the tokens have not been read yet: the database does not answer")
        return self.known

    def note_use(self, bearer: Bearer, now: float) -> None:
        """Have it written that the token is used, not on the way of a request; at most once a minute."""
        bearer.note_at = now + NOTE_S
        self._used.add(bearer.id)
        if self._noting is None:
            self._noting = asyncio.create_task(self._note())

    async def stop(self) -> None:
        """Cancel what is under way, wait for the thread and drop its connection."""
        tasks = [task for task in (self._reading, self._noting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._thread.shutdown()
        self._open.close()

    def _patience(self) -> float:
        if self.known is None:
            return FIRST_PATIENCE_S
        return PATIENCE_S if self._failure is None else SHORT_PATIENCE_S

    async def _read(self, began: float) -> None:
        try:
            live = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
        except Exception as error:  # whatever it is, the tokens known so far are as good as they were
            if self._failure is None:
                expected = isinstance(error, TandemQError)
                _log.warning("the tokens cannot be read: %s", error, exc_info=None if expected else error)
            self._failure, self._again_at = error, self._clock.monotonic() + AGAIN_S
        else:
            if self._failure is not None:
                _log.warning("the tokens can be read again")
            self._failure, self.known = None, self._roster(live, began)
        finally:
            self._reading = None

    def _roster(self, live: LiveTokens, began: float) -> Roster:
        before = {} if self.known is None else self.known.bearers
        bearers = {}
        for token in live.tokens:
            key = token.id.encode()
            bearer = before.get(key)
            if bearer is None or not bearer.is_of(token, self._rate):
                bearer = Bearer(token, self._rate, began)
            bearer.ends_at = float("inf") if token.left_s is None else began + token.left_s
            bearers[key] = bearer
        return Roster(bearers, live.any_ever, began + AHEAD_S, began + OLD_S)

    async def _note(self) -> None:
        try:
            while self._used:
                used, self._used = self._used, set()
                await self._app.offload(self._tell, used)
        except Exception as error:  # noted a minute later
            _log.debug("the use of tokens could not be noted: %s", error)
        finally:
            self._noting = None

    # ``store`` connects on first use: in these threads, not in the event loop.

    def _ask(self) -> LiveTokens:
        if self._store is None:
            self._app.store  # noqa: B018 - what is wrong with the tables is found there
            self._store, _ = self._open.enter_context(self._app._links.unchecked())
        return self._store.live_tokens()

    def _tell(self, ids: set[str]) -> None:
        self._app.store.note_tokens_used(ids)
