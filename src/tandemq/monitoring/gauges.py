"""Every metric that is read at a scrape, by name; counters that happen in a process are in ``tandemq.metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Gauge:
    """One metric. ``scope``: of the whole install (the same on every page), or of the processes of this page."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    scope: Literal["install", "process"] = "install"
    kind: Literal["gauge", "counter"] = "gauge"


class Reading(NamedTuple):
    """A value of a ``Gauge``; ``labels`` in its order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


#: Asked at a scrape; may raise nothing.
Source = Callable[[], Iterable[Reading]]

_ALL = (
    Gauge("tandemq_database_up", "1 if the database answered within the time of a scrape."),
    Gauge("tandemq_redis_up", "1 if Redis answered within the time of a scrape."),
    Gauge("tandemq_levels_age_seconds", "Age of the levels that are shown: tasks, outcomes, redis.", ("levels",)),
    Gauge("tandemq_open_tasks", "Tasks that have not ended, by state.", ("queue", "priority", "state")),
    Gauge("tandemq_open_tasks_capped", "1 if a queue has at least so many: too many to count.", ("queue",)),
    Gauge("tandemq_open_tasks_estimated", "1 if scheduled and retrying are told apart by a sample.", ("queue",)),
    Gauge("tandemq_oldest_ready_seconds", "For how long the oldest ready task has been due.", ("queue",)),
    Gauge("tandemq_queue_paused", "1 for a queue that an operator has paused.", ("queue",)),
    Gauge("tandemq_dead_tasks", "Tasks that are dead now."),
    Gauge("tandemq_dead_tasks_capped", "1 if there are at least so many dead tasks: too many to count."),
    Gauge(
        "tandemq_task_outcomes", "What became of tasks so far: succeeded, dead, cancelled, retried, purged.",
        ("queue", "type", "outcome"), kind="counter",
    ),
    Gauge("tandemq_workers", "Workers heard of lately, by state.", ("state",)),
    Gauge("tandemq_worker_slots", "Slots of the workers heard of lately, by the worker's state.", ("state",)),
    Gauge("tandemq_unled_seconds", "For how long nobody has led a role, 0 while somebody does.", ("role",)),
    Gauge("tandemq_redis_ids", "Ids in Redis, ready or delayed.", ("queue", "priority", "state")),
    Gauge("tandemq_mover_lag_seconds", "For how long the oldest due id has waited for the mover.", ("queue",)),
    Gauge("tandemq_slots", "Slots of this worker, busy or free.", ("state",), "process"),
    Gauge("tandemq_children", "Child processes of this worker, ready or starting.", ("state",), "process"),
    Gauge("tandemq_loop_age_seconds", "Since the last good turn of a loop.", ("loop",), "process"),
    Gauge("tandemq_fetch_age_seconds", "Since a child last looked for work and was answered.", (), "process"),
    Gauge("tandemq_lease_seconds", "How long a lease stands without renewal (a setting).", (), "process"),
    Gauge("tandemq_lease_margin_seconds", "Least that was left of a lease when it was renewed, in the last minute.", (),
          "process"),
    Gauge("tandemq_reconciler_pass_age_seconds", "Since the last good pass of the reconciler, where it leads.", (),
          "process"),
    Gauge("tandemq_reconciler_drift", "Counts of the reconciler's last pass, where it leads.", ("kind",), "process"),
)  # fmt: skip
GAUGES: Final = {gauge.name: gauge for gauge in _ALL}
