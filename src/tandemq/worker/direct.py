"""Work without Redis: a worker that cannot reach it for a while takes due tasks straight from MySQL.

A degraded mode, at a gentle rate: due ids are read from the open index, the oldest first, and claimed by primary key
as popped ones are. So nothing runs twice, however many workers do this and whatever the lists still hold.

All workers see the same oldest rows. They look at moments of their own (jitter), and one that finds its ids taken, or
held by somebody's lock, passes them over and goes on behind them in the same look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Protocol

from tandemq.core.clock import Clock
from tandemq.core.task import Level
from tandemq.worker.fair import FairTurns

#: In one look so many ids are claimed at most, by so many claims of a level: one whose oldest rows are all of unknown
#: types, or locked, does not keep the look from the levels below it.
MAX_IDS, MAX_CLAIMS = 50, 5
#: Between two looks; longer and longer while they find nothing.
LOOK_S, IDLE_LOOK_S, JITTER = 0.5, 2.0, 0.25
#: How often Redis is tried meanwhile. One that is frozen costs a time-out each time.
TRY_REDIS_S = 2.0
#: Rows that could not be claimed are passed over for so long, so many at most: else they would hide those behind them.
PASS_OVER_S, MAX_PASSED_OVER = 3.0, 5000

#: Claims these ids of a level; answers those that are no work now (taken, locked, refused, of an unknown type).
Claim = Callable[[Level, list[int]], Collection[int]]


class DueRows(Protocol):
    """What it reads of the store (``store.protocol.Surveying``)."""

    def open_levels(self) -> list[Level]:
        """Levels that have open rows."""
        ...

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        """Ids of the oldest due rows of a level."""
        ...


class WithoutRedis:
    """Since when Redis is away as this worker sees it, and the looks at MySQL once that has lasted ``after_s``."""

    def __init__(
        self, store: DueRows, queues: Callable[[], tuple[str, ...]], *, after_s: float, clock: Clock, rng: Random,
        fair: FairTurns | None = None,
    ) -> None:  # fmt: skip
        self._fair = fair
        self._store, self._queues, self._after_s, self._clock, self._rng = store, queues, after_s, clock, rng
        self._since: float | None = None
        self._try_redis_at = self._look_at = float("-inf")
        self._pause_s = LOOK_S
        self._passed_over: dict[int, float] = {}

    @property
    def is_away(self) -> bool:
        """The last call of Redis failed."""
        return self._since is not None

    @property
    def begins_in_s(self) -> float:
        """Seconds until work goes on without Redis; 0 when it does, infinite while Redis is there."""
        if self._since is None:
            return float("inf")
        return max(0.0, self._since + self._after_s - self._clock.monotonic())

    @property
    def is_time_for_redis(self) -> bool:
        """Whether Redis shall be tried now: always, unless work goes on without it."""
        return self.begins_in_s > 0 or self._clock.monotonic() >= self._try_redis_at

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._look_at - self._clock.monotonic())

    def failed(self) -> None:
        """Redis did not answer, or refused."""
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        self._try_redis_at = now + TRY_REDIS_S

    def is_back(self) -> bool:
        """Redis has answered; whether work went on without it until now."""
        worked = self.begins_in_s == 0
        self._since, self._pause_s = None, LOOK_S
        self._passed_over = {}  # a new one: another thread may be in a look
        return worked

    def look(
        self, room: Callable[[], int], claim: Claim, queues: tuple[str, ...] | None = None, *, sets_pace: bool = True
    ) -> None:
        """Claim the oldest due rows, by priority over all levels of the worker. Raises StoreUnavailable.

        ``queues``: those of this look, where they are others each time. ``sets_pace``: the next one is due after it.
        One look at a time; the other methods may be called by other threads meanwhile.
        """
        now = self._clock.monotonic()
        passed = self._passed_over = {i: until for i, until in self._passed_over.items() if until > now}
        found = False
        try:
            levels = self._levels(self._queues() if queues is None else queues)
            taken = 0
            if self._fair is not None:
                order, turn = self._fair.order(levels, MAX_IDS)
                if order is not levels:
                    taken, found = self._take(order, turn, room, claim, passed, now)
                    self._fair.strictly()
            _, more = self._take(levels, MAX_IDS - taken, room, claim, passed, now)
            found = found or more
        finally:
            if sets_pace:
                self._pause_s = LOOK_S if found else min(IDLE_LOOK_S, self._pause_s * 2)
                self._look_at = self._clock.monotonic() + self._pause_s * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _take(
        self,
        levels: Sequence[Level],
        most: int,
        room: Callable[[], int],
        claim: Claim,
        passed: dict[int, float],
        now: float,
    ) -> tuple[int, bool]:
        """How many were claimed of these levels in their order, and whether any was seen."""
        taken, found = 0, False
        for level in levels:
            for _ in range(MAX_CLAIMS):
                n = min(most - taken, room())
                ids = self._oldest(level, n, passed) if n > 0 else []
                if not ids:
                    break
                found = True
                passed_over = claim(level, ids)
                claimed = len(ids) - len(passed_over)
                taken += claimed
                _pass_over(passed, passed_over, now)
                if self._fair is not None and claimed:
                    self._fair.took(level, claimed)
        return taken, found

    def _levels(self, queues: tuple[str, ...]) -> list[Level]:
        """As a pop would serve them: by priority, levels of one priority in the order of ``-q``."""
        places = {queue: place for place, queue in enumerate(queues)}
        mine = [level for level in self._store.open_levels() if level.queue in places]
        return sorted(mine, key=lambda level: (-level.priority, places[level.queue]))

    def _oldest(self, level: Level, n: int, passed: Collection[int]) -> list[int]:
        due = self._store.oldest_due(level, limit=n + len(passed), older_than_s=0.0)
        return [task_id for task_id in due if task_id not in passed][:n]


def _pass_over(passed: dict[int, float], ids: Collection[int], now: float) -> None:
    passed |= dict.fromkeys(ids, now + PASS_OVER_S)
    while len(passed) > MAX_PASSED_OVER:
        del passed[next(iter(passed))]
