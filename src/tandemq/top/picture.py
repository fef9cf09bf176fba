"""What is shown: one look at the database and at Redis, bounded however much there is in them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from tandemq.app import TandemQ
from tandemq.core.errors import BrokerUnavailable, ForeignInstall
from tandemq.core.kinds import error_kind
from tandemq.core.lifecycle import Status
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.task import Level
from tandemq.store.answers import Filter, WorkerRecord

#: Rates are means over so long.
RATE_S = 10.0
#: Newest dead letters (by id) that are told apart by kind, and how often they are read when nobody looks at them.
DEAD_ROWS, DEAD_EVERY_S = 500, 10.0
#: Claimed tasks whose waiting times are looked at, and counters that are read.
WAIT_ROWS, MAX_COUNTERS = 300, 20_000
#: A Redis that does not answer is left alone for so long: it must not slow down the rest.
REDIS_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Tasks a second. ``came`` (enqueued or replayed) is None where the open ones are too many to be counted."""

    came: float | None = None
    done: float | None = None
    failed: float | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue. ``oldest_s``: since when its oldest ready task is due. ``wait_s``: the median wait of those that run."""

    name: str
    ready: int
    running: int
    retrying: int
    scheduled: int
    is_inexact: bool
    pause: Pause | None
    oldest_s: float
    wait_s: float | None
    rates: Rates


@dataclass(frozen=True, slots=True)
class DeadRow:
    """A kind of dead letters among the newest: ``ids`` are all of them that were looked at."""

    task_type: str
    error_type: str
    text: str
    last_at: datetime
    ids: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it this kind."""
        return self.task_type, self.error_type, self.text


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. ``redis`` says why Redis is away, '' while it answers; ``in_redis`` counts the ids there."""

    at: datetime
    queues: tuple[QueueRow, ...] = ()
    paused_types: tuple[Pause, ...] = ()
    workers: tuple[WorkerRecord, ...] = ()
    dead: tuple[DeadRow, ...] = ()
    dead_count: int = 0
    dead_capped: bool = False
    rates: Rates = Rates()
    redis: str = ""
    in_redis: int | None = None


@dataclass(frozen=True, slots=True)
class _Sample:
    """Sums by queue at one moment: open ones (None: not counted), ended ones, succeeded ones, failed attempts."""

    at: float
    open: Mapping[str, int | None]
    ended: Counter[str]
    done: Counter[str]
    failed: Counter[str]


class Painter:
    """Makes pictures of one application; keeps what rates are made of. One thread."""

    def __init__(self, app: TandemQ) -> None:
        self._app, self._clock = app, app.clock
        self._samples: deque[_Sample] = deque()
        self._dead: tuple[DeadRow, ...] = ()
        self._dead_at = self._redis_at = float("-inf")
        self._redis: tuple[str, int | None] = ("", None)

    def paint(self, *, dead: bool = False) -> Picture:
        """Look; ``dead``: somebody looks at the dead letters. Raises StoreUnavailable and whatever else is wrong."""
        store = self._app.store
        now = store.levels_now(alive_s=self._app.settings.lease_s)
        self._sample(now.queues, store.outcomes(MAX_COUNTERS))
        pauses = store.pauses()
        by_queue = {pause.name: pause for pause in pauses if pause.kind is PauseKind.QUEUE}
        waits = defaultdict[str, list[float]](list)
        for queue, seconds in store.waits(WAIT_ROWS):
            waits[queue].append(seconds)
        redis, in_redis = self._look_at_redis()
        return Picture(
            at=now.now,
            queues=tuple(
                self._row(name, now.queues.get(name, {}), by_queue.get(name), now.oldest_s.get(name, 0.0), waits[name])
                for name in sorted({*now.queues, *by_queue, *self._active()})
            ),
            paused_types=tuple(pause for pause in pauses if pause.kind is PauseKind.TYPE),
            workers=tuple(self._app.workers()),
            dead=self._dead_rows(wanted=dead, some=now.dead > 0),
            dead_count=now.dead,
            dead_capped=now.dead_capped,
            rates=self._rates(None),
            redis=redis,
            in_redis=in_redis,
        )

    def forget_dead(self) -> None:
        """They have been acted upon: read them anew."""
        self._dead_at = float("-inf")

    def _row(
        self, name: str, states: Mapping[str, Any], pause: Pause | None, oldest_s: float, waits: Sequence[float]
    ) -> QueueRow:
        ready, running, retrying, scheduled = (states.get(s, 0) for s in ("ready", "running", "retrying", "scheduled"))
        inexact = bool(states.get("capped") or states.get("estimated"))
        wait_s = median(waits) if waits else None
        return QueueRow(
            name, ready, running, retrying, scheduled, inexact, pause, oldest_s, wait_s, self._rates(name)
        )  # fmt: skip

    # rates

    def _sample(self, queues: Mapping[str, Mapping[str, Any]], outcomes: Sequence[tuple[str, str, str, int]]) -> None:
        counts = {name: Counter[str]() for name in ("succeeded", "dead", "cancelled", "retried")}
        for queue, _, outcome, n in outcomes:
            if outcome in counts:
                counts[outcome][queue] += n
        waiting = {
            queue: None
            if states.get("capped")
            else sum(states[s] for s in ("ready", "running", "retrying", "scheduled"))
            for queue, states in queues.items()
        }
        done, dead, cancelled, retried = counts.values()
        self._samples.append(_Sample(self._clock.monotonic(), waiting, done + dead + cancelled, done, retried + dead))
        while len(self._samples) > 2 and self._samples[1].at < self._samples[-1].at - RATE_S:
            self._samples.popleft()

    def _rates(self, queue: str | None) -> Rates:
        """Of a queue, or of all together."""
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        if seconds <= 0:
            return Rates()

        def rate(before: int, after: int) -> float:
            return max(0, after - before) / seconds

        def of(sums: Counter[str]) -> int:
            return sums.total() if queue is None else sums[queue]

        def all_of(sample: _Sample) -> int | None:
            waiting = list(sample.open.values()) if queue is None else [sample.open.get(queue, 0)]
            counted = [n for n in waiting if n is not None]
            return sum(counted) + of(sample.ended) if len(counted) == len(waiting) else None

        before, after = all_of(first), all_of(last)
        return Rates(
            came=None if before is None or after is None else rate(before, after),
            done=rate(of(first.done), of(last.done)),
            failed=rate(of(first.failed), of(last.failed)),
        )

    def _active(self) -> set[str]:
        """Queues that have nothing open now, and in which something ended lately."""
        first, last = self._samples[0], self._samples[-1]
        return {queue for queue, n in last.ended.items() if n != first.ended[queue]}

    # Redis and the dead

    def _look_at_redis(self) -> tuple[str, int | None]:
        now = self._clock.monotonic()
        if self._redis[0] and now < self._redis_at:
            return self._redis
        try:
            broker = self._app.broker
            levels = [Level(queue, priority) for queue in broker.queues() for priority in broker.levels(queue)]
            self._redis = "", sum(broker.depth(level) + broker.delayed(level) for level in levels)
        except (BrokerUnavailable, ForeignInstall) as away:
            self._redis, self._redis_at = (str(away) or "away", None), self._clock.monotonic() + REDIS_AGAIN_S
        return self._redis

    def _dead_rows(self, *, wanted: bool, some: bool) -> tuple[DeadRow, ...]:
        """By when the last one died, newest first."""
        now = self._clock.monotonic()
        if not some:
            self._dead = ()
        elif wanted or now - self._dead_at > DEAD_EVERY_S:
            self._dead_at = now
            ids, _ = self._app.store.find_ids(Filter(state=Status.DEAD.value), limit=DEAD_ROWS)
            groups: dict[tuple[str, str, str], list[tuple[datetime, int]]] = {}
            for one in self._app.store.kinds(ids):
                key = (one.task_type, one.error_type or one.reason, error_kind(one.error))
                groups.setdefault(key, []).append((one.ended_at, one.id))
            rows = [DeadRow(*key, max(of)[0], tuple(i for _, i in of)) for key, of in groups.items()]
            self._dead = tuple(sorted(rows, key=lambda row: (row.last_at, row.key), reverse=True))
        return self._dead
