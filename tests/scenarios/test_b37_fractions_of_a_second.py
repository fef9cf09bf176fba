"""B37: fractions of a second count.

Required: with one worker of one slot, tasks of equal priority that were enqueued within a second start in the order in
which they were enqueued. Tasks with delays of 0.3 to 0.9 seconds start in the order in which they are due, never early,
and late by no more than a turn of the mover and 0.3 seconds. Every time column keeps microseconds.
"""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from tandemq import NewTask
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, SLACK, assert_settled, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"
EARLY_S = 0.005
LATE_S = PACE["mover_s"] + 0.3


def enqueue_in_bursts(work: Bench, count: int, chance: random.Random) -> list[int]:
    """Singles and batches of every size, as callers do it; ids in the order in which the calls were made."""
    ids: list[int] = []
    while len(ids) < count:
        wanted = min(chance.choice((1, 1, 2, 10, 100)), count - len(ids))
        news = [NewTask("b.noop", {"n": len(ids) + n}) for n in range(wanted)]
        ids += [handle.id for handle in work.app.enqueue_many(news)]
    return ids


@pytest.mark.parametrize("worker_first", [True, False], ids=["worker first", "tasks first"])
def test_start_order_is_enqueue_order(work: Bench, probe: Probe, worker_first: bool) -> None:
    if worker_first:
        work.worker("-c", "1", app=APP).ready()
    ids = enqueue_in_bursts(work, size(400, 1000), random.Random(37))
    if not worker_first:
        work.worker("-c", "1", app=APP).ready()

    assert work.ended(ids) == {"succeeded": len(ids)}

    assert probe.order() == ids
    assert_settled(work, probe, ids)


def test_delayed_tasks_start_in_order_of_due_time_neither_early_nor_late(
    work: Bench, probe: Probe, weather: Weather
) -> None:
    chance = random.Random(37)
    worker = work.worker("-c", "1", app=APP).ready()
    (warm,) = work.ids("b.noop", 1)
    eventually(lambda: probe.ends()[warm] == 1, message=worker.text)
    made: dict[int, float] = {}  # id -> when the enqueue had returned
    for _ in range(size(100, 200)):
        handle = work.app.enqueue("b.noop", {}, delay=chance.uniform(0.3, 0.9))
        made[handle.id] = time.time()
    ids = list(made)

    assert work.ended(ids) == {"succeeded": len(ids)}

    due = {i: work.app.get(i).run_at.timestamp() for i in ids}  # type: ignore[union-attr]
    begun = {mark.task_id: mark.at for mark in probe.marks("start") if mark.task_id != warm}
    assert min(begun[i] - due[i] for i in ids) >= -EARLY_S
    # One whose enqueue took longer than its delay could not be known when it was due.
    lateness = sorted(begun[i] - max(due[i], made[i]) for i in ids)
    assert lateness[-1] <= LATE_S + SLACK + weather.slack_s, lateness[-5:]
    in_order = sorted((i for i in ids if made[i] < due[i]), key=begun.__getitem__)
    turned = [(a, b) for a, b in pairwise(in_order) if due[b] < due[a] - 0.001]
    assert not turned, turned
    assert len({round(at % 1, 6) for at in due.values()}) > len(ids) // 2, "the fractions were cut"
    probe.assert_once([warm, *ids])
    assert_settled(work, probe, [warm, *ids])


def test_every_time_column_keeps_microseconds(work: Bench) -> None:
    columns = sql(
        work,
        "SELECT c.table_name, c.column_name, c.data_type, c.datetime_precision FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE c.table_schema = DATABASE() AND t.table_type = 'BASE TABLE'"
        " AND c.data_type IN ('datetime', 'timestamp', 'time', 'date', 'year')",
    )
    assert len(columns) > 10
    assert {(kind, precision) for _, _, kind, precision in columns} == {("datetime", 6)}, columns
