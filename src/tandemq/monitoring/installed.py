"""Levels of the whole install, read from MySQL and Redis by bounded looks; either may be away."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.task import Level, epoch_ms
from tandemq.monitoring.gauges import Reading
from tandemq.monitoring.looks import Look
from tandemq.series import MAX_SERIES, OTHER
from tandemq.store.facts import Levels
from tandemq.store.protocol import Store

STATES = ("ready", "scheduled", "retrying", "running")
#: Levels of Redis that are looked at, two round trips each.
MAX_LEVELS = 500
#: (queue, type) whose ended tasks are told apart, each with about five outcomes; and rows that are read for that.
MAX_NAMES, MAX_OUTCOMES = MAX_SERIES // 5, 20_000
#: Names of the states that a worker may write; anything else is somebody else's.
WORKER_STATES = frozenset({"running", "draining", "late", "stuck"})


class _Ids(NamedTuple):
    """One level in Redis; ``late_s``: for how long the first of its sorted set had been due, None if nobody knows."""

    level: Level
    ready: int
    delayed: int
    late_s: float | None


class Installed:
    """A ``Source``: what MySQL and Redis say, each within its time, each without the other.

    Whether a server is there is asked for itself: counting may take long where there is much, and is no absence. Levels
    that could not be counted in time are the last ones, with their age.
    """

    def __init__(self, store: Store, broker: Broker, clock: Clock, *, alive_s: float) -> None:
        self._store, self._broker, self._clock = store, broker, clock
        self._offset_ms: float | None = None
        self._was_up = {"database": True, "redis": True}
        self._outcomes_shown = Shown()
        self._database = Look("database", self._ask_database, clock)
        self._redis = Look("redis", self._ask_redis, clock)
        self._levels = Look("levels", lambda: store.levels_now(alive_s=alive_s), clock, crowd=_workers)
        self._outcomes = Look("counters", lambda: store.outcomes(MAX_OUTCOMES), clock)
        self._ids = Look("ids", self._ask_ids, clock)

    def __call__(self) -> Iterator[Reading]:
        """All readings."""
        up = self.is_up(self._levels, self._outcomes, self._ids)
        yield from (Reading(f"tandemq_{name}_up", float(is_up)) for name, is_up in up.items())
        if up["database"] and (levels := self._levels.last()) is not None:
            yield from _of_levels(levels.found)
            yield Reading("tandemq_levels_age_seconds", levels.age_s, ("tasks",))
        if up["database"] and (outcomes := self._outcomes.last()) is not None:
            yield from self._outcomes_shown.of(outcomes.found)
            yield Reading("tandemq_levels_age_seconds", outcomes.age_s, ("outcomes",))
        if up["redis"] and (ids := self._ids.last()) is not None:
            yield from _of_ids(ids.found)
            yield Reading("tandemq_levels_age_seconds", ids.age_s, ("redis",))

    def is_up(self, *also: Look[Any]) -> dict[str, bool]:
        """Whether each server has answered just now; looks that come ``also`` are begun meanwhile."""
        # Asked before anything is waited for: two servers that hang cost the time of one.
        for look in (self._database, self._redis, *also):
            look.begin()
        up = {"database": self._database.get() is not None, "redis": self._redis.get() is not None}
        for name, looks in (("database", (self._levels, self._outcomes)), ("redis", (self._ids,))):
            if up[name] and not self._was_up[name]:
                for look in looks:
                    look.forget_rest()
        self._was_up = up
        return up

    def _ask_database(self) -> bool:
        began = self._clock.monotonic()
        self._offset_ms = epoch_ms(self._store.now()) - (began + self._clock.monotonic()) / 2 * 1000
        return True

    def _ask_redis(self) -> bool:
        self._broker.ping()
        return True

    def _ask_ids(self) -> list[_Ids]:
        levels = [Level(q, p) for q in sorted(self._broker.queues()) for p in sorted(self._broker.levels(q))]
        found = []
        for level in levels[:MAX_LEVELS]:
            delayed = self._broker.delayed_sample(level, 1)
            late_s = self._late_s(next(iter(delayed.due_ms), None))
            found.append(_Ids(level, self._broker.depth(level), delayed.length, late_s))
        return found

    def _late_s(self, due_ms: float | None) -> float | None:
        """At the time of the look: an old answer must not grow late by itself."""
        # The database's clock decides what is due: without it there is no lag to tell.
        if self._offset_ms is None:
            return None
        now_ms = self._offset_ms + self._clock.monotonic() * 1000
        return 0.0 if due_ms is None else max(0.0, (now_ms - due_ms) / 1000)


class Shown:
    """Counters of ended tasks for the page, at most ``MAX_SERIES``; those of further names are summed as ``OTHER``.

    A name that was shown once is shown on: were it summed with others later, those would seem to have grown.
    """

    def __init__(self) -> None:
        self._names: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def of(self, outcomes: Iterable[tuple[str, str, str, int]]) -> Iterator[Reading]:
        """Their readings."""
        counted: dict[tuple[str, str], dict[str, int]] = {}
        for queue, kind, outcome, n in outcomes:
            counted.setdefault((queue, kind), {})[outcome] = n
        with self._lock:
            for name in sorted(counted.keys() - self._names, key=lambda name: (-sum(counted[name].values()), name)):
                if len(self._names) >= MAX_NAMES:
                    break
                self._names.add(name)
            names = frozenset(self._names)
        shown: dict[tuple[str, str], Counter[str]] = {}
        for name, of in counted.items():
            # What has not happened yet is 0: a rate begins with the first death, not with the second.
            shown.setdefault(name if name in names else (OTHER, OTHER), Counter(succeeded=0, dead=0)).update(of)
        yield from (
            Reading("tandemq_task_outcomes", n, (*name, outcome))
            for name, of in shown.items()
            for outcome, n in of.items()
        )


def _of_ids(ids: Iterable[_Ids]) -> Iterator[Reading]:
    lag_s: dict[str, float] = {}
    for (queue, priority), ready, delayed, late_s in ids:
        yield Reading("tandemq_redis_ids", ready, (queue, str(priority), "ready"))
        yield Reading("tandemq_redis_ids", delayed, (queue, str(priority), "delayed"))
        if late_s is not None:
            lag_s[queue] = max(lag_s.get(queue, 0.0), late_s)
    yield from (Reading("tandemq_mover_lag_seconds", s, (queue,)) for queue, s in lag_s.items())


def _workers(levels: Levels) -> int:
    """All of them count the same tasks."""
    return sum(levels.workers.values())


def _of_levels(levels: Levels) -> Iterator[Reading]:
    yield from _of_queues(levels)
    for queue, seconds in list(levels.oldest_s.items())[:MAX_SERIES]:
        yield Reading("tandemq_oldest_ready_seconds", seconds, (queue,))
    for queue in sorted(levels.paused)[:MAX_SERIES]:
        yield Reading("tandemq_queue_paused", 1, (queue,))
    yield Reading("tandemq_dead_tasks", levels.dead)
    yield Reading("tandemq_dead_tasks_capped", float(levels.dead_capped))
    for state in sorted(WORKER_STATES):  # 0 as well: an alert on none needs a number
        yield Reading("tandemq_workers", levels.workers.get(state, 0), (state,))
        yield Reading("tandemq_worker_slots", levels.slots.get(state, 0), (state,))
    for role in ("mover", "reconciler"):
        if role in levels.unled_s:
            yield Reading("tandemq_unled_seconds", levels.unled_s[role], (role,))


def _of_queues(levels: Levels) -> Iterator[Reading]:
    left = MAX_SERIES // len(STATES)
    others = dict.fromkeys(STATES, 0)
    for queue, states in levels.queues.items():
        for priority, counts in states["priorities"].items():
            left -= 1
            for state in STATES:
                if left < 0:
                    others[state] += counts[state]
                else:
                    yield Reading("tandemq_open_tasks", counts[state], (queue, priority, state))
        if left >= 0:
            yield Reading("tandemq_open_tasks_capped", float(bool(states.get("capped"))), (queue,))
            yield Reading("tandemq_open_tasks_estimated", float(bool(states.get("estimated"))), (queue,))
    if left < 0:
        yield from (Reading("tandemq_open_tasks", n, (OTHER, OTHER, state)) for state, n in others.items())
