"""How many connections a process holds, and which of them are cut off: the slow ones, and when it is full the idle.

Nothing here asks who is at the other end: behind a proxy all connections come from one address, so none of them is
bounded by itself. Instead a connection on which no request is at work makes room for a new one, the longest first, and
a request that has arrived is never given up for one that has not. Requests are at work only once their token is good:
answers of 401 that nobody reads would keep a connection for ever.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Mapping
from typing import Any, Final, Protocol

from tandemq.core.clock import Clock, SystemClock
from tandemq.http.options import ApiOptions
from tandemq.service import Throttle

_log = logging.getLogger("tandemq.http")
#: Descriptors for everything else: 32 connections to the database and as many to Redis, twice over for the probes and
#: for what is being closed, and the files of Python.
RESERVED_FILES = 200
MIN_CONNECTIONS = 16
#: More are not asked for: an interpreter that serves this many is busy with other things.
MOST_FILES = 65_536
#: Bytes a second. What comes slower in the long run is cut off, whatever its pauses are; mod_reqtimeout asks as much.
FLOOR = 500.0
#: Of a request's line and headers together.
MAX_HEAD_BYTES: Final = 32 * 1024
#: Under this key of a scope's state is the connection that the request came on.
CONNECTION: Final = "tandemq.connection"


def raise_file_limit() -> None:
    """Allow this process (and those it starts) as many files as the machine's settings let it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_allowed(options: ApiOptions) -> int:
    """How many connections one process may hold."""
    if options.max_connections:
        return options.max_connections
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_FILES)
    return max(MIN_CONNECTIONS, files - RESERVED_FILES)


class Connection(Protocol):
    """What is bounded here. See ``tandemq.http.connections``."""

    def overdue(self, now: float) -> str:
        """Why it must be cut off now, or nothing."""
        ...

    def cut(self, reason: str) -> None:
        """Say so if that is possible, and close."""
        ...

    def admitted(self) -> None:
        """The caller of the request at hand may send it."""
        ...


def admitted(scope: Mapping[str, Any]) -> None:
    """The caller of this request is known: its connection makes room for no other. Nothing on a server of another."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    if connection is not None:
        connection.admitted()


class Limits:
    """The connections of one server. Used in its event loop only."""

    def __init__(self, options: ApiOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.max_connections = connections_allowed(options)
        #: How often every connection is looked at.
        self.every_s = min(1.0, options.head_s / 4, options.silence_s / 4, options.idle_s / 4)
        self._say = Throttle(_log, clock or SystemClock())
        self._open: set[Connection] = set()
        self._without_work: dict[Connection, None] = {}  # in the order in which they became so
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def too_slow(self, now: float, since: float, last: float, amount: int) -> bool:
        """Whether what began at ``since``, moved last at ``last`` and moved ``amount`` bytes in all must end."""
        silence = self.options.silence_s
        return now - last > silence or now - since > silence + amount / FLOOR

    def add(self, connection: Connection) -> bool:
        """A new connection. False: it must be refused, all others are at work."""
        room = True
        if len(self._open) >= self.max_connections:
            self._say(logging.WARNING, "full", f"{len(self._open)} connections are open, which is the limit")
            oldest = next(iter(self._without_work), None)
            if oldest is not None:
                self._cut(oldest, "full")
            room = oldest is not None
        self._open.add(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.every_s, self._look)
        return room

    def remove(self, connection: Connection) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._without_work.pop(connection, None)

    def note(self, connection: Connection, *, at_work: bool) -> None:
        """Whether there is a request at work on it; without one it makes room when there is none left."""
        self._without_work.pop(connection, None)
        if not at_work and connection in self._open:
            self._without_work[connection] = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._open):
            if reason := connection.overdue(now):
                self._cut(connection, reason)
        self._timer = loop.call_later(self.every_s, self._look) if self._open else None

    def _cut(self, connection: Connection, reason: str) -> None:
        self._without_work.pop(connection, None)
        connection.cut(reason)
