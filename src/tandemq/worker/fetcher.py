"""Pop ids, claim their rows, put the leases into the inbox; never more than can start soon."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, StoreRefused, StoreUnavailable
from tandemq.core.ids import IdSource
from tandemq.core.lifecycle import Release
from tandemq.core.task import Level
from tandemq.service import Throttle
from tandemq.store.answers import Claimed, Ended
from tandemq.store.protocol import Store
from tandemq.worker.acker import Acker
from tandemq.worker.arena import Arena, Batch, begin_within_s
from tandemq.worker.inbox import Held, Inbox, Room

_log = logging.getLogger("tandemq.worker")
#: Longest BRPOP, so also how often the levels are read again and how late a stop is noticed.
BLOCK_S = 0.5
#: While something waits in the inbox it must be looked after, so BRPOP blocks shorter.
SHORT_BLOCK_S = 0.05
LEVELS_S = 0.9
#: Entries that are no ids are each named in the log, so many of them; further ones are only counted.
NAMED_JUNK = 100
#: Redis away for longer than this: work goes on from MySQL, so many ids at a time, one look a backoff.
REDIS_AWAY_S = 5.0
MAX_DIRECT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under what a worker claims."""

    worker_id: str
    queues: tuple[str, ...]
    known: frozenset[str]
    lease_s: float
    unknown_task_s: float


class Fetcher:
    """One per process; ``step`` is called in a loop by its thread."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        terms: Terms,
        *,
        arena: Arena,
        inbox: Inbox,
        acker: Acker,
        clock: Clock,
        new_token: IdSource,
        pause: Callable[[float], object],
        on_ended: Callable[[Sequence[Ended]], None],
    ) -> None:
        self._store, self._broker, self._terms = store, broker, terms
        self._arena, self._inbox, self._acker = arena, inbox, acker
        self._clock, self._new_token, self._pause, self._on_ended = clock, new_token, pause, on_ended
        self._levels: list[Level] = []
        self._levels_at = float("-inf")
        self._say = Throttle(_log, clock)
        self._backoff_s = 0.0
        self._junk: set[bytes] = set()
        self._only_free = False
        self._redis_away_since: float | None = None
        self.stopping = False
        #: Popped ids that were no longer pending (running, ended, gone): harmless copies.
        self.dropped = 0

    def step(self) -> None:
        """One turn: hand back what waits too long, fetch what there is room for."""
        for held in self._inbox.stale():
            self._acker.add(held, Release())
        room = self._inbox.room()
        if self._only_free:
            room = Room(min(room.pop, room.free), room.free)
        if room.pop <= 0:
            self._inbox.wait_for_room(SHORT_BLOCK_S, free=self._only_free)
            return
        crash_point("pop.before")
        try:
            popped = self._broker.pop(
                self._watched(), limit=room.pop, wait_s=SHORT_BLOCK_S if self._inbox.waiting else BLOCK_S
            )
        except BrokerUnavailable as away:
            self._without_redis(room, away)
            return
        self._backoff_s, self._redis_away_since = 0.0, None
        for junk in popped.junk:
            self._name_junk(popped.level, junk)
        if not popped.ids or popped.level is None:
            return
        crash_point("pop.after")
        ids = list(dict.fromkeys(popped.ids))
        if self.stopping:
            self._put_back(popped.level, ids)
        else:
            self._claim(popped.level, ids, room)

    def _without_redis(self, room: Room, away: BrokerUnavailable) -> None:
        """Redis away is a degraded mode: after a while due ids are read from the open index, at a gentle rate."""
        now = self._clock.monotonic()
        self._redis_away_since = self._redis_away_since or now
        self._wait_for("Redis", away)
        if self.stopping or now - self._redis_away_since < REDIS_AWAY_S or room.free < 1:
            return
        try:
            levels = [level for level in self._store.open_levels() if level.queue in self._terms.queues]
            for level in sorted(levels, key=lambda level: -level.priority):
                ids = self._store.oldest_due(level, limit=min(room.free, MAX_DIRECT), older_than_s=0.0)
                if ids:
                    self._claim(level, ids, Room(len(ids), room.free))
                    return
        except StoreUnavailable as also_away:
            self._wait_for("the database", also_away)

    def _name_junk(self, level: Level | None, entry: bytes) -> None:
        if len(self._junk) < NAMED_JUNK:
            self._junk.add(entry)
        kind = f"junk {entry!r}" if entry in self._junk else "junk"
        self._say(logging.WARNING, kind, f"an entry of {level} is no task id and was dropped: {entry!r}")

    def _watched(self) -> list[Level]:
        now = self._clock.monotonic()
        if now - self._levels_at > LEVELS_S:
            levels = [Level(queue, p) for queue in self._terms.queues for p in self._broker.levels(queue)]
            self._levels = sorted(levels, key=lambda level: -level.priority)  # stable: equal priority by order of -q
            self._levels_at = now
        return self._levels

    def _claim(self, level: Level, ids: list[int], room: Room) -> None:
        token = self._new_token()
        batch = self._arena.open(token, ids, self._clock.monotonic() + begin_within_s(self._terms.lease_s))
        if batch is None:
            self._put_back(level, ids)
            self._pause(SHORT_BLOCK_S)
            return
        sent_at = self._clock.monotonic()
        try:
            claimed = self._store.claim(
                ids,
                token=token,
                worker_id=self._terms.worker_id,
                lease_s=self._terms.lease_s,
                free=room.free,
                known=self._terms.known,
                queues=self._terms.queues,
                unknown_task_s=self._terms.unknown_task_s,
            )
        except StoreRefused as refused:
            self._isolate(batch, level, ids, refused)
            return
        except Exception as unknown:  # whatever it was, the claim may have been committed
            self._recover(batch, level, ids, unknown)
            return
        took_s = self._clock.monotonic() - sent_at
        crash_point("claim.after_commit")
        batch.held([lease.id for lease in claimed.leases])
        if not claimed.leases:
            batch.close()
        # Rows on their last attempt are not claimed ahead: until there are none, pop no more than there are free slots,
        # or they would be popped, locked and put back in a loop.
        self._only_free = bool(claimed.put_back)
        held = [Held(lease, batch) for lease in claimed.leases]
        if self.stopping:
            for one in held:
                self._acker.add(one, Release())
        else:
            self._inbox.put(held)
        crash_point("claim.after_hand_over")
        if claimed.leases:  # counted when the tasks can start
            metrics.claimed(Counter([(lease.queue, lease.task_type) for lease in claimed.leases]), took_s)
        self._drop(claimed, level)
        self._send_back(claimed)

    def _drop(self, claimed: Claimed, level: Level) -> None:
        if claimed.dropped:
            metrics.dropped(level.queue, len(claimed.dropped))
            self.dropped += len(claimed.dropped)
            self._say(
                logging.DEBUG, "dropped", f"{self.dropped} popped ids were no longer pending, e.g. {claimed.dropped[0]}"
            )

    def _recover(self, batch: Batch, level: Level, ids: list[int], away: Exception) -> None:
        """The claim's answer is unknown: never run, never forget, ask the database what carries the token."""
        self._put_back(level, ids)  # an outage must not drain the lists
        while not self.stopping:
            self._wait_for("the database", away)
            try:
                self._store.give_back(batch.token, ids)
            except Exception as still_away:
                away = still_away
                continue
            batch.settle(ids)
            batch.close()
            self._put_back(level, ids)
            return

    def _isolate(self, batch: Batch, level: Level, ids: list[int], refused: StoreRefused) -> None:
        """Nothing is claimed. One row that the database refuses must not hold up the others of its batch."""
        batch.settle(ids)
        batch.close()
        if len(ids) == 1:
            self._say(logging.ERROR, "refused", f"task {ids[0]} cannot be claimed and is left as it is: {refused}")
            return
        middle = len(ids) // 2
        for some in (ids[:middle], ids[middle:]):
            self._claim(level, some, self._inbox.room())

    def _send_back(self, claimed: Claimed) -> None:
        put_back: dict[Level, list[int]] = defaultdict(list)
        for level, task_id in claimed.put_back:
            put_back[level].append(task_id)
        later: dict[Level, dict[int, int]] = defaultdict(dict)
        for row in claimed.not_due:
            later[row.level][row.id] = row.due_ms
        try:
            for level, ids in put_back.items():
                self._broker.push_next(level, ids)
            for level, due in later.items():
                self._broker.delay(level, due)
        except BrokerUnavailable as away:
            self._say(logging.WARNING, "redis", f"Redis is away, the reconciler will push these ids later: {away}")
        if claimed.ended:
            metrics.dead(Counter([(row.task_type, row.reason) for row in claimed.ended]))
            self._on_ended(claimed.ended)

    def _put_back(self, level: Level, ids: list[int]) -> None:
        try:
            self._broker.push_next(level, ids)
        except BrokerUnavailable as away:
            self._say(logging.WARNING, "redis", f"Redis is away, the reconciler will push these ids later: {away}")

    def _wait_for(self, what: str, error: Exception) -> None:
        self._say(logging.WARNING, what, f"{what} is away, waiting: {error}")
        self._backoff_s = min(2.0, max(0.1, self._backoff_s * 2))
        self._pause(self._backoff_s)
