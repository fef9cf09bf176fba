"""The ready lists as remote workers' claims see them, and what is done while Redis is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from tandemq.app import TandemQ
from tandemq.broker.protocol import Popped
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.pausing import Paused
from tandemq.core.task import Level
from tandemq.pausing import PauseWatch
from tandemq.service import Throttle
from tandemq.worker.direct import WithoutRedis

_log = logging.getLogger("tandemq.remote")
#: How old the known levels of a queue may be; longer where very many queues are asked for, each costs a round trip.
LEVELS_S, LEVELS_PER_QUEUE_S = 0.9, 0.01
#: Queues whose levels are remembered.
MAX_QUEUES = 10_000
#: How often an idle Redis is asked whether it still takes ids: one at maxmemory lets lists be emptied but not filled.
CHECK_S = 2.0


class Lists:
    """One per process, shared by its threads. No method raises BrokerUnavailable."""

    def __init__(self, app: TandemQ, rng: Random) -> None:
        self._app = app
        self._say = Throttle(_log, app.clock)
        away_s = app.settings.redis_away_s
        self._direct = WithoutRedis(_Rows(app), lambda: (), after_s=away_s, clock=app.clock, rng=rng)
        self._mode, self._looking, self._trying = threading.Lock(), threading.Lock(), threading.Lock()
        self._pauses: PauseWatch | None = None
        self._priorities: dict[str, tuple[float, frozenset[int]]] = {}
        self._checked_at = app.clock.monotonic()

    def paused(self) -> Paused:
        """What operators have paused, as of a second ago. StoreUnavailable as long as nobody has said it."""
        if self._pauses is None:  # a store is opened when it is first needed
            self._pauses = PauseWatch(self._app.store, self._app.clock)
        return self._pauses.now()

    @property
    def is_away(self) -> bool:
        """The last call of Redis failed."""
        return self._direct.is_away

    def popped(self, queues: Sequence[str], limit: int, wait_s: float = 0.0) -> Popped | None:
        """Pop up to ``limit`` ids of the first level that has some. None: Redis is away, or not to be asked now."""
        with self._mode:
            was_away, is_time = self._direct.is_away, self._direct.is_time_for_redis
        # A frozen Redis costs a time-out: one caller pays for it.
        if was_away and not (is_time and self._trying.acquire(blocking=False)):
            return None
        try:
            return self._pop(self._levels(queues), limit, wait_s, check=was_away)
        except BrokerUnavailable as away:
            with self._mode:
                self._direct.failed()
            self._say(logging.WARNING, "redis", f"Redis is away, claims wait or go to the database: {away}")
            return None
        finally:
            if was_away:
                self._trying.release()

    def more(self, level: Level, limit: int) -> tuple[int, ...]:
        """Pop up to ``limit`` further ids of a level."""
        try:
            return self._pop([level], limit, 0.0).ids if limit > 0 else ()
        except BrokerUnavailable:
            return ()

    def next_of(self, level: Level, limit: int) -> Sequence[int]:
        """The next ids of a level, popped; or, with Redis away, read from the database. StoreUnavailable."""
        if self.is_away:
            return self._app.store.oldest_due(level, limit=limit, older_than_s=0.0)
        return self.more(level, limit)

    def put_back(self, level: Level, ids: Sequence[int]) -> None:
        """Popped for nobody: they go to the end that is popped next."""
        if ids:
            self.tell({level: list(ids)}, {})

    def _pop(self, levels: Sequence[Level], limit: int, wait_s: float, *, check: bool = False) -> Popped:
        broker = self._app.broker
        if check:
            broker.check_writable()  # first: it waits less long for a Redis that is frozen
        if levels:
            crash_point("pop.before")
            popped = broker.pop(levels, limit=limit, wait_s=wait_s)
        else:  # all of these queues are paused; whether Redis is there is looked after all the same
            self._app.clock.sleep(wait_s)
            popped = Popped()
        if popped.ids:
            crash_point("pop.after")
        elif (now := self._app.clock.monotonic()) - self._checked_at > CHECK_S:
            self._checked_at = now
            broker.check_writable()
        elif not levels and not check:
            return popped
        with self._mode:
            if self._direct.is_back():
                self._say.forget("redis")
                _log.info("Redis is back, ids are popped again")
        for junk in popped.junk:
            text = f"an entry of {popped.level} is no task id and was dropped: {junk!r}"
            self._say(logging.WARNING, "junk", text)
        return Popped(popped.level, tuple(dict.fromkeys(popped.ids)), popped.junk)

    def _levels(self, queues: Sequence[str]) -> list[Level]:
        queues = self.paused().open(tuple(queues))
        at_most_s, now = max(LEVELS_S, LEVELS_PER_QUEUE_S * len(queues)), self._app.clock.monotonic()
        levels: list[Level] = []
        for queue in queues:
            read_at, priorities = self._priorities.get(queue, (float("-inf"), frozenset[int]()))
            if now - read_at > at_most_s:
                priorities = self._app.broker.levels(queue)
                if len(self._priorities) >= MAX_QUEUES:
                    self._priorities.clear()  # clients may ask for any name
                self._priorities[queue] = (now, priorities)
            levels += [Level(queue, priority) for priority in priorities]
        return sorted(levels, key=lambda level: -level.priority)  # stable: equal priority by the order of the queues

    @property
    def next_look_s(self) -> float | None:
        """Seconds until due rows are to be read from the database; None as long as they come from Redis."""
        with self._mode:
            return self._direct.next_look_s if self._direct.begins_in_s == 0 else None

    def look(
        self,
        room: Callable[[], int],
        claim: Callable[[Level, list[int]], Collection[int]],
        queues: tuple[str, ...],
        *,
        sets_pace: bool = True,
    ) -> None:
        """Where Redis has been away for long enough: claim the oldest due rows. StoreUnavailable.

        ``sets_pace``: ``next_look_s`` counts from this look.
        """
        if self.next_look_s is not None:
            with self._looking:
                self._direct.look(room, claim, self.paused().open(queues), sets_pace=sets_pace)

    def tell(self, first: Mapping[Level, list[int]], later: Mapping[Level, dict[int, int]]) -> None:
        """Put ids to the end that is popped next, and others to be popped when they are due."""
        if self._direct.is_away:
            return  # the reconciler pushes what is due when Redis is back
        try:
            for level, ids in first.items():
                self._app.broker.push_next(level, ids)
            for level, due in later.items():
                self._app.broker.delay(level, due)
        except BrokerUnavailable as away:
            text = f"Redis is away, the reconciler will push ids {list(first.values())} later: {away}"
            self._say(logging.WARNING, "put back", text)


class _Rows:
    """The reads of ``WithoutRedis``, over a store that is opened when it is first needed."""

    def __init__(self, app: TandemQ) -> None:
        self._app = app

    def open_levels(self) -> list[Level]:
        return self._app.store.open_levels()

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        return self._app.store.oldest_due(level, limit=limit, older_than_s=older_than_s)
