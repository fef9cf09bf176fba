"""The broker over a Redis server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tandemq.broker.breaker import Breaker
from tandemq.broker.client import Pools, Role, ping
from tandemq.broker.commands import Command, ask, ask_all
from tandemq.broker.diagnosing import DiagnosingBroker
from tandemq.broker.errors import WrongType
from tandemq.broker.keys import Keys, chunks, parse_priority, sift
from tandemq.broker.popping import BadKeys, Popper
from tandemq.broker.protocol import Popped, Window
from tandemq.broker.scripts import script
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.task import Level
from tandemq.core.values import PRIORITY_LABELS, QUEUE_NAME

#: How long a producer takes for granted that its level is in the sets of names. A flush takes them away; the reconciler
#: restores them as well, and the labelled levels are watched without them.
REGISTER_AGAIN_S = 1.0
#: Ids in one command: bounds what one call costs the server (about 1 ms).
CHUNK = 1000
#: Ids in one script call: Lua cannot unpack more than about 8,000.
MAX_PROMOTED = 4000
LABELLED = frozenset(PRIORITY_LABELS.values())


class RedisBroker(DiagnosingBroker):
    """See ``Broker``. Safe for threads; nothing is connected before the first call.

    A key that holds another type (somebody else's doing) is logged once and treated as an empty one: what would be
    put there stays in MySQL until the key is deleted.
    """

    def __init__(self, connections: Pools, keys: Keys, clock: Clock) -> None:
        self._connections = connections
        self._keys = keys
        self._clock = clock
        self._breaker = Breaker(clock, self.check_writable)
        self._registered: dict[Level, float] = {}
        self._bad_keys = BadKeys(clock)
        self._popper = Popper(connections, keys, clock, self._bad_keys)

    def ping(self) -> None:
        """See ``Broker.ping``."""
        ping(self._connections)

    def check_writable(self) -> None:
        """See ``Broker.check_writable``. XX: only if it exists, but a write all the same to Redis."""
        with self._connections.use(Role.PRODUCE) as client:
            ask(client, "SET", self._keys.writable, "1", "XX")

    def close(self) -> None:
        """See ``Broker.close``."""
        self._connections.close()

    # Producing

    def push(self, level: Level, ids: Sequence[int]) -> None:
        """See ``Broker.push``."""
        key = self._keys.ready(level)
        commands: list[Command] = [("LPUSH", key, *some) for some in chunks(ids, CHUNK)]
        self._produce(level, key, commands)

    def delay(self, level: Level, due: Mapping[int, int]) -> None:
        """See ``Broker.delay``."""
        key = self._keys.delayed(level)
        scored = [part for id_, due_ms in due.items() for part in (due_ms, id_)]
        commands: list[Command] = [("ZADD", key, *some) for some in chunks(scored, 2 * CHUNK)]
        self._produce(level, key, commands)

    def _produce(self, level: Level, key: str, commands: Sequence[Command]) -> None:
        if not commands:
            return
        now = self._clock.monotonic()
        is_known = now < self._registered.get(level, 0.0)
        with self._breaker.guard():
            self._write(Role.PRODUCE, key, commands if is_known else [*self._registering([level]), *commands])
        if not is_known:
            self._registered[level] = now + REGISTER_AGAIN_S

    def push_next(self, level: Level, ids: Sequence[int]) -> None:
        """See ``Broker.push_next``."""
        key = self._keys.ready(level)
        commands: list[Command] = [("RPUSH", key, *some) for some in chunks(ids[::-1], CHUNK)]
        if commands:
            self._write(Role.SERVE, key, [*self._registering([level]), *commands])

    def register(self, levels: Iterable[Level]) -> None:
        """See ``Broker.register``."""
        if commands := self._registering(levels):
            self._write(Role.SERVE, self._keys.queues, commands)

    def _registering(self, levels: Iterable[Level]) -> list[Command]:
        by_queue: dict[str, set[int]] = {}
        for level in levels:
            by_queue.setdefault(level.queue, set()).add(level.priority)
        commands: list[Command] = [("SADD", self._keys.levels(queue), *of) for queue, of in by_queue.items()]
        return [("SADD", self._keys.queues, *by_queue), *commands] if by_queue else []

    def _write(self, role: Role, key: str, commands: Sequence[Command]) -> None:
        try:
            with self._connections.use(role) as client:
                ask_all(client, commands)
        except WrongType:
            self._bad_keys.report(key)

    # Consuming

    def pop(self, levels: Sequence[Level], *, limit: int, wait_s: float) -> Popped:
        """See ``Broker.pop``. ``wait_s`` <= 0 does not wait."""
        return self._popper.pop(levels, limit, wait_s)

    def promote(self, level: Level, *, now_ms: int, limit: int) -> int:
        """See ``Broker.promote``. Moves at most 4,000 in one call, however large ``limit`` is."""
        keys = (self._keys.delayed(level), self._keys.ready(level))
        return int(self._script("promote", keys, (now_ms, min(limit, MAX_PROMOTED)), default=0))

    # Looking

    def levels(self, queue: str) -> frozenset[int]:
        """See ``Broker.levels``."""
        members = self._read(self._keys.levels(queue), "SMEMBERS", default=())
        return LABELLED | {p for p in map(parse_priority, members) if p is not None}

    def queues(self) -> frozenset[str]:
        """See ``Broker.queues``."""
        members = self._read(self._keys.queues, "SMEMBERS", default=())
        names = (member.decode("utf-8", "replace") for member in members)
        return frozenset(name for name in names if QUEUE_NAME.fullmatch(name))

    def depth(self, level: Level) -> int:
        """See ``Broker.depth``."""
        return int(self._read(self._keys.ready(level), "LLEN", default=0))

    def delayed(self, level: Level) -> int:
        """See ``Broker.delayed``."""
        return int(self._read(self._keys.delayed(level), "ZCARD", default=0))

    def window(self, level: Level, size: int) -> Window:
        """See ``Broker.window``."""
        key = self._keys.ready(level)
        try:
            with self._connections.use(Role.SERVE) as client:
                tail, length = ask_all(client, [("LRANGE", key, -size, -1), ("LLEN", key)])
        except WrongType:
            self._bad_keys.report(key)
            return Window()
        return Window(frozenset(sift(tail)[0]), int(length))

    def _read(self, key: str, command: str, *, default: Any, role: Role = Role.SERVE) -> Any:
        try:
            with self._connections.use(role) as client:
                return ask(client, command, key)
        except WrongType:
            self._bad_keys.report(key)
            return default

    def _script(self, name: str, keys: Sequence[str], args: Sequence[str | int], *, default: Any) -> Any:
        try:
            with self._connections.use(Role.SERVE) as client:
                return script(name).run(client, keys, args)
        except WrongType:
            self._popper.report_culprits(keys)
            return default

    # Generation

    def install(self) -> str | None:
        """See ``Broker.install``. A producer asks it first: with Redis frozen it must not wait here and in the push."""
        try:
            return _text(self._read(self._keys.install, "GET", default=None, role=Role.PRODUCE))
        except BrokerUnavailable as away:
            self._breaker.trip(str(away))
            raise

    def mark_install(self, install: str) -> str:
        """See ``Broker.mark_install``."""
        key = self._keys.install
        try:
            with self._connections.use(Role.SERVE) as client:
                _, standing = ask_all(client, [("SET", key, install, "NX"), ("GET", key)])
        except WrongType:
            self._bad_keys.report(key)
            raise BrokerUnavailable(f"the Redis key {key} holds another type than tandemq's: delete it") from None
        return _text(standing) or install

    def adopt_install(self, install: str) -> None:
        """See ``Broker.adopt_install``."""
        with self._connections.use(Role.SERVE) as client:
            ask(client, "SET", self._keys.install, install)

    def generation(self, queue: str) -> str | None:
        """See ``Broker.generation``."""
        return _text(self._read(self._keys.generation(queue), "GET", default=None))

    def advance_generation(self, queue: str, *, old: str | None, new: str) -> bool:
        """See ``Broker.advance_generation``."""
        return bool(self._script("advance_generation", (self._keys.generation(queue),), (old or "", new), default=0))

    def begin_rebuild(self, queue: str, *, old: str | None, new: str) -> bool:
        """See ``Broker.begin_rebuild``. A level that is not in ``levels`` keeps its list: its ids are only hints."""
        levels = [Level(queue, priority) for priority in sorted(self.levels(queue))]
        keys = [self._keys.generation(queue)]
        keys += [make(level) for level in levels for make in (self._keys.ready, self._keys.delayed)]
        return bool(self._script("begin_rebuild", keys, (old or "", new), default=0))

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
        """See ``Broker.rebuild_chunk``. At most 2,000 ids a call."""
        groups: dict[tuple[str, str], list[int]] = {}
        push, in_order = ("RPUSH", reversed(ready)) if first else ("LPUSH", iter(ready))
        for priority, id_ in in_order:
            groups.setdefault((self._keys.ready(Level(queue, priority)), push), []).append(id_)
        for priority, id_, due_ms in delayed:
            groups.setdefault((self._keys.delayed(Level(queue, priority)), "ZADD"), []).extend((due_ms, id_))
        keys = [self._keys.generation(queue), *(key for key, _ in groups)]
        args: list[str | int] = [old, new]
        for (_, command), values in groups.items():
            args += [command, len(values), *values]
        return bool(self._script("rebuild_chunk", keys, args, default=0))


def _text(value: bytes | str | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
