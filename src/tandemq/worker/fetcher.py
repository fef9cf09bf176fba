"""Pop ids, claim their rows, put the leases into the inbox; never more than can start soon."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.ids import IdSource
from tandemq.core.lifecycle import Release
from tandemq.core.task import Level
from tandemq.service import Throttle
from tandemq.store.protocol import Claimed, Ended, Store
from tandemq.worker.acker import Acker
from tandemq.worker.arena import Arena, Batch
from tandemq.worker.inbox import Held, Inbox, Room

_log = logging.getLogger("tandemq.worker")
#: Longest BRPOP, so also how often the levels are read again and how late a stop is noticed.
BLOCK_S = 0.5
#: While something waits in the inbox it must be looked after, so BRPOP blocks shorter.
SHORT_BLOCK_S = 0.05
LEVELS_S = 0.9
#: Entries that are no ids are each named in the log, so many of them; further ones are only counted.
NAMED_JUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under what a worker claims."""

    worker_id: str
    queues: tuple[str, ...]
    known: frozenset[str]
    lease_s: float
    unknown_task_s: float

    @property
    def begin_s(self) -> float:
        """How long after sending the claim (or renewal) a task may still begin: the lease less a margin."""
        return self.lease_s - min(1.0, self.lease_s / 5)


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
        self.stopping = False
        #: Popped ids that were no longer pending (running, ended, gone): harmless copies.
        self.dropped = 0

    def step(self) -> None:
        """One turn: hand back what waits too long, fetch what there is room for."""
        self._acker.add_all([(held, Release()) for held in self._inbox.stale()])
        room = self._inbox.room()
        if room.pop <= 0:
            self._inbox.wait_for_room(SHORT_BLOCK_S)
            return
        try:
            popped = self._broker.pop(
                self._watched(), limit=room.pop, wait_s=SHORT_BLOCK_S if self._inbox.waiting else BLOCK_S
            )
        except BrokerUnavailable as away:
            self._wait_for("Redis", away)
            return
        self._backoff_s = 0.0
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
        # Counted from before the claim is sent: the lease in the database starts later, so it ends later.
        batch = self._arena.open(token, ids, self._clock.monotonic() + self._terms.begin_s)
        if batch is None:
            self._put_back(level, ids)
            self._pause(SHORT_BLOCK_S)
            return
        try:
            claimed = self._store.claim(
                ids,
                token=token,
                worker_id=self._terms.worker_id,
                lease_s=self._terms.lease_s,
                free=room.free,
                known=self._terms.known,
                unknown_task_s=self._terms.unknown_task_s,
            )
        except StoreUnavailable as away:
            self._recover(batch, level, ids, away)
            return
        except TandemQError as refused:
            self._isolate(batch, level, ids, refused)
            return
        crash_point("claim.after_commit")
        since = self._clock.monotonic()
        batch.held([lease.id for lease in claimed.leases])
        if not claimed.leases:
            batch.close()
        self._inbox.put([Held(lease, batch, since) for lease in claimed.leases])
        self._drop(claimed)
        self._send_back(claimed)

    def _drop(self, claimed: Claimed) -> None:
        if claimed.dropped:
            self.dropped += len(claimed.dropped)
            self._say(
                logging.DEBUG, "dropped", f"{self.dropped} popped ids were no longer pending, e.g. {claimed.dropped[0]}"
            )

    def _recover(self, batch: Batch, level: Level, ids: list[int], away: StoreUnavailable) -> None:
        """The claim's answer is unknown: never run, never forget, ask the database what carries the token."""
        self._put_back(level, ids)  # an outage must not drain the lists
        while not self.stopping:
            self._wait_for("the database", away)
            try:
                self._store.give_back(batch.token, ids)
            except StoreUnavailable as still_away:
                away = still_away
                continue
            batch.settle(ids)
            batch.close()
            self._put_back(level, ids)
            return

    def _isolate(self, batch: Batch, level: Level, ids: list[int], refused: TandemQError) -> None:
        """Nothing is claimed. One row that the database refuses must not hold up the others of its batch."""
        batch.settle(ids)
        batch.close()
        if not isinstance(refused, StoreRefused):
            raise refused
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
