"""What the rest of tandemq may ask of Redis. Ids in, ids out; every entry is a hint that may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandemq.broker.facts import Diagnosing
from tandemq.core.task import Level


@dataclass(frozen=True, slots=True)
class Popped:
    """What one pop took: ids of one level, oldest first, and the entries that are no task id (``junk``)."""

    level: Level | None = None
    ids: tuple[int, ...] = ()
    junk: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The tail of a ready list (the end that is popped next): which ids are in it, and the list's length."""

    ids: frozenset[int] = field(default_factory=frozenset)
    length: int = 0


class Broker(Diagnosing, Protocol):
    """Verbs over Redis.

    Every method raises BrokerUnavailable when Redis cannot be reached or refuses (LOADING, READONLY, OOM, MISCONF,
    UNBLOCKED); the outcome of that call is then unknown, and the reconciler heals either way. The library never
    resends a command by itself.
    """

    def ping(self) -> None:
        """One round trip, or BrokerUnavailable."""
        ...

    def check_writable(self) -> None:
        """One round trip that changes nothing, or BrokerUnavailable, also from a Redis that only refuses new entries.

        At maxmemory lists can be popped but not filled. It waits no longer than a producer does.
        """
        ...

    def push(self, level: Level, ids: Sequence[int]) -> None:
        """SADD queue and level, LPUSH the ids in the given order, in one round trip: the first given runs first."""
        ...

    def push_next(self, level: Level, ids: Sequence[int]) -> None:
        """As ``push`` but to the end that is popped: these run next, the first given first of all (RPUSH reversed)."""
        ...

    def delay(self, level: Level, due: Mapping[int, int]) -> None:
        """ZADD ``{id: due epoch ms}``; SADD queue and level in the same round trip."""
        ...

    def pop(self, levels: Sequence[Level], *, limit: int, wait_s: float) -> Popped:
        """BRPOP over the levels in the given order for at most ``wait_s``, then RPOP COUNT up to ``limit``.

        An answer that is lost loses the ids from Redis only: the rows stay pending. A list key of another type
        (WRONGTYPE) is left out for a while, logged once, and the other levels go on.
        """
        ...

    def levels(self, queue: str) -> frozenset[int]:
        """The priorities in use in a queue, plus the four labelled ones."""
        ...

    def queues(self) -> frozenset[str]:
        """The queues in use."""
        ...

    def register(self, levels: Iterable[Level]) -> None:
        """SADD queues and levels (never SREM)."""
        ...

    def promote(self, level: Level, *, now_ms: int, limit: int) -> int:
        """Move ids due at ``now_ms`` from the sorted set to the list; atomic, push before removal. How many."""
        ...

    def depth(self, level: Level) -> int:
        """LLEN."""
        ...

    def delayed(self, level: Level) -> int:
        """ZCARD."""
        ...

    def window(self, level: Level, size: int) -> Window:
        """LRANGE of the last ``size`` entries and LLEN, in one round trip."""
        ...

    # Generation (protocol rules 25-27)

    def install(self) -> str | None:
        """The install id in ``ns:generation``."""
        ...

    def mark_install(self, install: str) -> str:
        """SET NX the install id; returns the one that stands now."""
        ...

    def adopt_install(self, install: str) -> None:
        """Overwrite the install id, on an operator's word."""
        ...

    def generation(self, queue: str) -> str | None:
        """The text in ``ns:{queue}:generation``: ``install:epoch:ready`` or ``install:epoch:building:cursor``."""
        ...

    def advance_generation(self, queue: str, *, old: str | None, new: str) -> bool:
        """Compare-and-set by Lua on the value read in this pass."""
        ...

    def begin_rebuild(self, queue: str, *, old: str | None, new: str) -> bool:
        """If the key still holds ``old``: delete every ready and delayed key of the queue and write ``new``."""
        ...

    def rebuild_chunk(
        self,
        queue: str,
        *,
        old: str,
        new: str,
        ready: Sequence[tuple[int, int]],
        delayed: Sequence[tuple[int, int, int]],
        first: bool = False,
    ) -> bool:
        """If the key holds ``old``: LPUSH ``(priority, id)``, ZADD ``(priority, id, due ms)``, write ``new``.

        ``first``: the ready ones go to the end that is popped next, in the same order.
        """
        ...

    def close(self) -> None:
        """Drop all connections."""
        ...
