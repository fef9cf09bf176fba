"""B39: the hosts' clocks are wrong by minutes, and step back by an hour while everything runs.

Required: one clock decides, the database's. With producers ten minutes slow, one worker ten minutes fast and another
ten minutes slow, and a fast mover, delayed tasks begin not early and at most two seconds late by true time, retries
keep their backoff, no lease is stolen from a task that runs longer than it and none of a dead worker is endless; and no
duration is negative. The same goes on after all the clocks were set back by an hour in the middle of it.

The processes read their wall clock through ``tests/apps/pretending``; the probe and the database have the true one.
"""

from __future__ import annotations

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.apps.scenarios_leases import BACKOFF_S
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import T_REC, assert_settled, lease_ends, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import ROOT, Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_leases:app"
FAST_S, SLOW_S, STEP_S = 600.0, -600.0, -3600.0
DELAY_S, LONG_S = size(3.0, 20.0), size(5.0, 10.0)
LATE_S = 2.0
PRETENDING = ROOT / "tests" / "apps" / "pretending"


class Host:
    """A host with a clock of its own."""

    def __init__(self, folder: Path, name: str, ahead_s: float) -> None:
        self._path = folder / f"clock.{name}"
        self.ahead_s = 0.0
        self.step(ahead_s)

    @property
    def environ(self) -> dict[str, str]:
        path = f"{PRETENDING}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        return {"TANDEMQ_TEST_CLOCK": str(self._path), "PYTHONPATH": path}

    def step(self, by_s: float) -> None:
        """Set its clock, at once for all its processes."""
        self.ahead_s += by_s
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{self.ahead_s}")
        fresh.rename(self._path)


def enqueue(work: Bench, host: Host, *tasks: dict[str, object]) -> list[int]:
    """By a producer on this host; their ids."""
    lines = work.folder / "tasks.ndjson"
    lines.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    last = sql(work, "SELECT COALESCE(MAX(id), 0) FROM {t}tasks")[0][0]
    tandemq(work.settings, "-A", APP, "enqueue", "--file", lines, **host.environ)
    return [i for (i,) in sql(work, "SELECT id FROM {t}tasks WHERE id > :last ORDER BY id", last=last)]


def a_round(work: Bench, probe: Probe, producer: Host, weather: Weather, in_between: list[Host]) -> list[int]:
    """Tasks of every kind from a producer whose clock is wrong; ``in_between`` step back while they wait and run."""
    gate = work.folder / f"gate{time.monotonic()}"
    run_at = datetime.now(UTC) + timedelta(seconds=2 * DELAY_S)
    delayed = [{"type": "noop", "payload": {}, "delay": DELAY_S}] * 20
    later = [{"type": "noop", "payload": {}, "run_at": run_at.isoformat()}] * 5
    patient = {"type": "noop", "payload": {}, "expires": 300}
    flaky = {"type": "l.flaky", "payload": {}}
    held = [{"type": "hold", "payload": {"until": str(gate)}}] * 2
    asked = time.time()
    ids = enqueue(work, producer, *delayed, *later, patient, flaky, *held)
    answered = time.time()
    by_delay, by_time, others = ids[:20], ids[20:25], ids[25:]
    created = {
        i: stored.replace(tzinfo=UTC).timestamp() for i, stored in sql(work, "SELECT id, created_at FROM {t}tasks")
    }
    assert all(asked <= created[i] <= answered for i in ids)

    eventually(lambda: all(probe.starts()[i] for i in others), message=work.workers[0].text)
    for host in in_between:
        host.step(STEP_S)
    eventually(lambda: time.time() > answered + LONG_S)  # longer than a lease
    gate.touch()
    assert work.ended(ids) == {"succeeded": len(ids)}

    late_s = LATE_S + weather.slack_s
    due = {i: created[i] + DELAY_S for i in by_delay} | dict.fromkeys(by_time, run_at.timestamp())
    for task_id, due_at in due.items():
        (start,) = probe.marks("start", task_id)
        assert due_at - 0.01 <= start.at < max(due_at, answered) + late_s
    first, second = probe.marks("start", others[1])
    assert BACKOFF_S - 0.01 <= second.at - first.at < BACKOFF_S + late_s
    starts = probe.starts()
    assert {i: starts[i] for i in ids} == {**dict.fromkeys(ids, 1), others[1]: 2}, "no lease was stolen"
    return ids


def assert_no_negative_time(work: Bench, since: float) -> None:
    """Every stored time is a true one, and they are in order."""
    rows = sql(work, "SELECT id, created_at, started_at, completed_at, updated_at FROM {t}tasks")
    for task_id, created, started, completed, updated in rows:
        times = [t.replace(tzinfo=UTC).timestamp() for t in (created, started, completed, updated)]
        assert times == sorted(times), (task_id, times)
        assert since - 1.0 < times[0] <= times[-1] < time.time() + 1.0, (task_id, times)
    for task_id, started, ended in sql(work, "SELECT task_id, started_at, ended_at FROM {t}task_attempts"):
        assert started <= ended, task_id


def test_wrong_clocks_decide_nothing(work: Bench, probe: Probe, weather: Weather) -> None:
    began = time.time()
    fast, slow = Host(work.folder, "fast", FAST_S), Host(work.folder, "slow", SLOW_S)
    ahead = Host(work.folder, "mover", FAST_S)
    producer = Host(work.folder, "producer", SLOW_S)
    one = work.worker("-c", "4", "--no-mover", "--name", "fast", app=APP, **fast.environ)
    other = work.worker("-c", "4", "--no-mover", "--name", "slow", app=APP, **slow.environ)
    work.worker(verb="mover", **ahead.environ)
    one.ready()
    other.ready()
    assert_wrong(one.text(), FAST_S)
    assert_wrong(other.text(), SLOW_S)

    ids = a_round(work, probe, producer, weather, [])
    ids += a_round(work, probe, producer, weather, [fast, slow, ahead, producer])
    assert {w.name: w.alive for w in work.app.workers()} == {"fast": True, "slow": True}
    for worker in work.app.workers():
        assert began - 1.0 < worker.started_at.timestamp() <= worker.heartbeat_at.timestamp() < time.time() + 1.0

    gate = work.folder / "gate"
    held = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(8)]
    eventually(lambda: all(probe.starts()[i] for i in held), message=one.text)
    mine = "SELECT id FROM {t}tasks WHERE status = 'running' AND worker_id LIKE 'slow-%'"
    lost = [task_id for (task_id,) in sql(work, mine)]
    assert lost
    other.kill_group()
    killed, ends = time.time(), lease_ends(work, "slow")
    gate.touch()
    assert work.ended(held) == {"succeeded": len(held)}
    again = [probe.marks("start", i)[1].at for i in lost]
    assert min(again) >= ends[0]
    assert max(again) < killed + work.settings.lease_s + T_REC + weather.slack_s
    assert_no_negative_time(work, began)
    work.workers.remove(other)
    assert_settled(work, probe, [*ids, *held])


def assert_wrong(log: str, ahead_s: float) -> None:
    """The process that wrote this log did have a wrong clock."""
    first = re.match(r"\S+ \S+", log)
    assert first
    said = datetime.strptime(first.group(), "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
    assert abs(said - ahead_s - time.time()) < 120, (said, ahead_s)
