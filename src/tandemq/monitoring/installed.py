"""Levels of the whole install, read from MySQL and Redis by bounded looks; either may be away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.task import Level, epoch_ms
from tandemq.metrics import MAX_SERIES, OTHER
from tandemq.monitoring.gauges import Reading
from tandemq.monitoring.looks import Look
from tandemq.store.facts import Levels
from tandemq.store.protocol import Store

STATES = ("ready", "scheduled", "retrying", "running")
#: Levels of Redis that are looked at, two round trips each.
MAX_LEVELS = 500
#: Names of the states that a worker may write; anything else is somebody else's.
WORKER_STATES = frozenset({"running", "draining", "stuck"})


class _Ids(NamedTuple):
    """One level in Redis; ``first_ms``: the earliest due time in its sorted set."""

    level: Level
    ready: int
    delayed: int
    first_ms: float | None


class Installed:
    """A ``Source``: what MySQL and Redis say, each within its time, each without the other."""

    def __init__(self, store: Store, broker: Broker, clock: Clock, *, alive_s: float) -> None:
        self._store, self._broker, self._clock, self._alive_s = store, broker, clock, alive_s
        self._offset_ms: float | None = None
        self._database = Look("database", self._ask_database, clock)
        self._outcomes = Look("counters", lambda: store.outcomes(MAX_SERIES), clock)
        self._redis = Look("redis", self._ask_redis, clock)

    def __call__(self) -> Iterator[Reading]:
        """All readings."""
        # Asked before anything is waited for: two servers that hang cost the time of one.
        for look in (self._database, self._outcomes, self._redis):
            look.begin()
        levels, outcomes, ids = self._database.get(), self._outcomes.get(), self._redis.get()
        yield Reading("tandemq_database_up", float(levels is not None))
        yield Reading("tandemq_redis_up", float(ids is not None))
        if levels is not None:
            yield from _of_levels(levels)
        yield from _of_outcomes(outcomes or ())
        if ids is not None:
            yield from self._of_ids(ids)

    def is_up(self) -> dict[str, bool]:
        """Whether each server has answered just now."""
        self._redis.begin()
        return {"database": self._database.get() is not None, "redis": self._redis.get() is not None}

    def _ask_database(self) -> Levels:
        levels = self._store.levels_now(alive_s=self._alive_s)
        self._offset_ms = epoch_ms(levels.now) - self._clock.monotonic() * 1000
        return levels

    def _ask_redis(self) -> list[_Ids]:
        self._broker.ping()
        levels = [Level(q, p) for q in sorted(self._broker.queues()) for p in sorted(self._broker.levels(q))]
        found = []
        for level in levels[:MAX_LEVELS]:
            delayed = self._broker.delayed_sample(level, 1)
            found.append(_Ids(level, self._broker.depth(level), delayed.length, next(iter(delayed.due_ms), None)))
        return found

    def _of_ids(self, ids: Iterable[_Ids]) -> Iterator[Reading]:
        lag_s: dict[str, float] = {}
        # The database's clock decides what is due: without it there is no lag to tell.
        now_ms = None if self._offset_ms is None else self._offset_ms + self._clock.monotonic() * 1000
        for (queue, priority), ready, delayed, first_ms in ids:
            yield Reading("tandemq_redis_ids", ready, (queue, str(priority), "ready"))
            yield Reading("tandemq_redis_ids", delayed, (queue, str(priority), "delayed"))
            late_s = 0.0 if first_ms is None or now_ms is None else max(0.0, (now_ms - first_ms) / 1000)
            lag_s[queue] = max(lag_s.get(queue, 0.0), late_s)
        if now_ms is not None:
            yield from (Reading("tandemq_mover_lag_seconds", s, (queue,)) for queue, s in lag_s.items())


def _of_outcomes(outcomes: Iterable[tuple[str, str, str, int]]) -> Iterator[Reading]:
    counted = {(queue, kind, outcome): n for queue, kind, outcome, n in outcomes}
    # What has not happened yet is 0: a rate begins with the first death, not with the second.
    for queue, kind in {key[:2]: None for key in counted}:
        counted |= {(queue, kind, o): counted.get((queue, kind, o), 0) for o in ("succeeded", "dead")}
    yield from (Reading("tandemq_task_outcomes", n, labels) for labels, n in counted.items())


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
