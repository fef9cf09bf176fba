"""Taking ready ids: BRPOP for the first, RPOP COUNT for the rest of the batch."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import redis

from tandemq.broker.client import Pools, Role
from tandemq.broker.commands import ask, ask_all
from tandemq.broker.errors import CrossSlot, WrongType
from tandemq.broker.keys import Keys, expected_type, ready_levels, sift
from tandemq.broker.protocol import Popped
from tandemq.core.clock import Clock
from tandemq.core.task import Level

log = logging.getLogger("tandemq.broker")

#: How long a key of another type is left out before it is tried again.
LEFT_OUT_S = 5.0
#: On a cluster a pop can block on one queue only; the others are looked at this often.
CLUSTER_BLOCK_S = 0.1
_SHORTEST_BLOCK_S = 0.01
#: A BRPOP that takes longer than a busy Redis needs to answer has been waiting for a push.
_WAITED_S = 0.003
#: How long ago a round trip may have been measured: on a link that became slow every BRPOP looks like one that waited.
_MEASURE_AGAIN_S = 1.0


class BadKeys:
    """Keys of ours that hold another type: each is left out for a while and logged once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._logged: set[str] = set()

    def report(self, key: str) -> None:
        """Leave the key out from now on."""
        self._until[key] = self._clock.monotonic() + LEFT_OUT_S
        if key not in self._logged:
            self._logged.add(key)
            log.error("the Redis key %s holds another type than tandemq's; it is left out until it is deleted", key)

    def usable(self, keys: Mapping[str, Level]) -> Mapping[str, Level]:
        """The keys that are not left out at the moment."""
        if not self._until:
            return keys
        now = self._clock.monotonic()
        self._until = {key: until for key, until in self._until.items() if until > now}
        return {key: level for key, level in keys.items() if key not in self._until}


class Popper:
    """Pops batches of one level from the ready lists, the first level that has something winning."""

    def __init__(self, connections: Pools, keys: Keys, clock: Clock, bad_keys: BadKeys) -> None:
        self._connections = connections
        self._keys = keys
        self._clock = clock
        self._bad_keys = bad_keys
        self._is_cluster = False
        self._turn = 0
        self._round_trip_s, self._measured_at = 0.0, float("-inf")

    def pop(self, levels: Sequence[Level], limit: int, wait_s: float) -> Popped:
        """See ``Broker.pop``."""
        known = ready_levels(self._keys, tuple(levels))
        if limit < 1 or not known:
            return Popped()
        wait_s = min(wait_s, self._connections.max_block_s)
        while keys := self._bad_keys.usable(known):
            try:
                return self._pop(keys, limit, wait_s)
            except CrossSlot:
                self._is_cluster = True
            except WrongType:
                if not self.report_culprits(keys):
                    break
        if wait_s > 0:
            self._clock.sleep(wait_s)
        return Popped()

    def _pop(self, keys: Mapping[str, Level], limit: int, wait_s: float) -> Popped:
        if wait_s > 0 and not self._is_cluster:
            return self._pop_waiting(keys, limit, wait_s)
        popped = self._pop_at_once(keys, limit)
        if popped.level is not None or wait_s <= 0:
            return popped
        return self._pop_waiting(self._next_queue(keys), limit, min(wait_s, CLUSTER_BLOCK_S))

    def _next_queue(self, keys: Mapping[str, Level]) -> Mapping[str, Level]:
        queues = sorted({level.queue for level in keys.values()})
        self._turn += 1
        queue = queues[self._turn % len(queues)]
        return {key: level for key, level in keys.items() if level.queue == queue}

    def _pop_waiting(self, keys: Mapping[str, Level], limit: int, wait_s: float) -> Popped:
        with self._connections.use(Role.BLOCK) as client:
            block_s = f"{max(wait_s, _SHORTEST_BLOCK_S):.3f}"
            started = self._clock.monotonic()
            answer = ask(client, "BRPOP", *keys, block_s)
            if answer is None:
                return Popped()
            key, entry = answer
            now = self._clock.monotonic()
            if now - started > max(_WAITED_S, 4 * self._round_trip_s) and now - self._measured_at < _MEASURE_AGAIN_S:
                # It had to wait, so the lists were empty: the entry is most likely alone, and its task need not wait
                # for a round trip that finds nothing more. If it is not, the next pop takes the others.
                rest = []
            else:
                rest = _fill(client, key, limit - 1)
                self._measured_at = self._clock.monotonic()
                self._round_trip_s = self._measured_at - now
        return _batch(keys[key.decode()], [entry, *rest])

    def _pop_at_once(self, keys: Mapping[str, Level], limit: int) -> Popped:
        with self._connections.use(Role.SERVE) as client:
            lengths = ask_all(client, [("LLEN", key) for key in keys])
            for key, length in zip(keys, lengths, strict=True):
                if length and (entries := ask(client, "RPOP", key, limit)):
                    return _batch(keys[key], entries)
        return Popped()

    def report_culprits(self, keys: Collection[str]) -> bool:
        """Find the keys that hold another type and leave them out; whether there were any."""
        with self._connections.use(Role.SERVE) as client:
            types = ask_all(client, [("TYPE", key) for key in keys])
        culprits = [key for key, kind in zip(keys, types, strict=True) if kind not in {expected_type(key), b"none"}]
        for key in culprits:
            self._bad_keys.report(key)
        return bool(culprits)


def _fill(client: redis.Redis, key: bytes, count: int) -> list[bytes]:
    """Up to ``count`` more. An error here must not lose the entry in hand: the next pop will meet it again."""
    if count < 1:
        return []
    try:
        return ask(client, "RPOP", key, count) or []
    except (redis.RedisError, OSError):
        return []


def _batch(level: Level, entries: Iterable[bytes]) -> Popped:
    ids, junk = sift(entries)
    return Popped(level, ids, junk)
