"""A mixed load at half of what the slots can do: short tasks must not wait behind slow ones while a slot is free.

Required: with 2 workers of 8 slots, 90 % tasks of 5 ms and 10 % of 2 s, the 99th percentile from enqueue to start stays
under 150 ms: what a worker has claimed ahead is handed back when its slots are all busy with something slow.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tandemq import NewTask
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = pytest.mark.scenario

SLOTS, WORKERS = 8, 2
SHORT_S, SLOW_S, SLOW_SHARE = 0.005, 2.0, 0.1
#: Half of the capacity: 16 slots / 0.2045 s a task / 2.
RATE = SLOTS * WORKERS / (SLOW_SHARE * SLOW_S + (1 - SLOW_SHARE) * SHORT_S) / 2
SECONDS = size(8.0, 60.0)
P99_S = 0.150


def test_short_tasks_do_not_wait_behind_slow_ones(work: Bench, probe: Probe, weather: Weather) -> None:
    for _ in range(WORKERS):
        work.worker("-c", str(SLOTS)).ready()
    first = [work.app.enqueue("sleep", {"seconds": SHORT_S}).id for _ in range(50)]
    assert work.ended(first) == {"succeeded": 50}
    dice = random.Random(45)
    sent: dict[int, float] = {}
    due = time.monotonic()
    end = due + SECONDS
    while due < end:
        due += dice.expovariate(RATE)
        time.sleep(max(0.0, due - time.monotonic()))
        seconds = SLOW_S if dice.random() < SLOW_SHARE else SHORT_S
        before = time.time()
        sent[work.app.enqueue("sleep", {"seconds": seconds}).id] = before

    assert work.ended(list(sent), 60) == {"succeeded": len(sent)}

    started = {mark.task_id: mark.at for mark in probe.marks("start")}
    waits = sorted(started[task_id] - before for task_id, before in sent.items())
    assert waits[int(0.99 * len(waits))] <= P99_S + weather.slack_s, waits[-20:]
    probe.assert_once([*first, *sent])
    assert_settled(work, probe, [*first, *sent])


def test_what_was_claimed_ahead_goes_to_whoever_has_a_free_slot(work: Bench, probe: Probe, tmp_path: Path) -> None:
    """The directed case: both slots of one worker are held, and what it claimed behind them runs elsewhere meanwhile.

    Red under: nothing is handed back.
    """
    work.worker("-c", "2").ready()
    quick = work.ids("noop", 300)
    assert work.ended(quick, 60) == {"succeeded": 300}  # so short that the next ones are claimed ahead
    gate = tmp_path / "gate"
    held = [task.id for task in work.app.enqueue_many([NewTask("hold", {"until": str(gate)}) for _ in range(2)])]
    behind = work.ids("noop", 50)
    eventually(lambda: set(held) <= set(probe.starts()), 60)
    work.worker("-c", "2").ready()

    assert work.ended(behind, 60) == {"succeeded": 50}

    assert work.statuses(held) == {"running": 2}
    gate.touch()
    assert work.ended(held, 60) == {"succeeded": 2}
    probe.assert_once([*quick, *held, *behind])
    assert_settled(work, probe, [*quick, *held, *behind])
