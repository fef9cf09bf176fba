"""Stopping what runs: what a handler sees of it, and the process as the last step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tandemq.core.task import Task
from tandemq.worker.process import KILL_AFTER_S
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker, bench

HEARTBEAT_S = 0.5
QUICK = {"reconcile_s": 0.3, "mover_s": 0.05, "heartbeat_s": HEARTBEAT_S, "grace_s": 1.0}
APP = "tests.apps.stopping:app"


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **QUICK), tmp_path, probe.environ) as made:
        yield made


def begun(work: Bench, probe: Probe, name: str, payload: dict[str, object] | None = None, **options: object) -> int:
    task_id = work.app.enqueue(name, payload or {}, **options).id  # type: ignore[arg-type]
    eventually(lambda: probe.marks("start", task_id), 60, lambda: [w.text()[-3000:] for w in work.workers])
    return task_id


def seen(work: Bench, task_id: int) -> Task:
    task = work.app.get(task_id)
    assert task is not None
    return task


def outcomes(task: Task) -> list[tuple[str, str]]:
    return [(a.outcome, a.error_type) for a in task.attempts_log]


@pytest.mark.parametrize("max_retries", [3, 0])
def test_an_async_handler_is_cancelled_at_its_await(
    work: Bench, probe: Probe, weather: Weather, max_retries: int
) -> None:
    worker = work.worker("-c", "2", app=APP).ready()
    task_id = begun(work, probe, "polite", max_retries=max_retries)
    assert "asked to stop" in tandemq(work.settings, "cancel", str(task_id)).out
    asked_at = time.monotonic()
    assert work.ended([task_id]) == {"cancelled": 1}
    assert time.monotonic() - asked_at < 1.5 + 2 * HEARTBEAT_S + 1.0 + weather.slack_s
    # Its cleaning up took three heartbeats: it was not cancelled again meanwhile.
    assert [m.attempt for m in probe.marks("cleaned", task_id)] == [1]
    task = seen(work, task_id)
    assert (task.dead_reason, task.attempts) == (None, 1)
    assert outcomes(task) == [("cancelled", "Cancelled")]
    assert "is dead" not in worker.text()
    assert work.app.stats()["ended"]["cancelled"] == 1


@pytest.mark.parametrize(("name", "status"), [("swallows", "succeeded"), ("bows_out", "cancelled")])
def test_a_handler_decides_what_it_makes_of_it(work: Bench, probe: Probe, name: str, status: str) -> None:
    work.worker("-c", "2", app=APP).ready()
    task_id = begun(work, probe, name, max_retries=0)
    assert work.app.cancel(task_id) == "requested"
    assert work.ended([task_id]) == {status: 1}


def test_without_a_request_a_cancelled_error_is_a_failure(work: Bench, probe: Probe) -> None:
    work.worker("-c", "2", app=APP).ready()
    task_id = begun(work, probe, "quits_by_itself", max_retries=1)
    assert work.ended([task_id]) == {"dead": 1}
    assert probe.starts() == {task_id: 2}


def pids(worker: Worker) -> set[int]:
    return {child.pid for child in worker.children()}


@pytest.mark.parametrize("name", ["deaf", "wedged"])
def test_the_process_is_replaced_as_the_last_step_only(
    work: Bench, probe: Probe, weather: Weather, tmp_path: Path, name: str
) -> None:
    go = tmp_path / "go"
    worker = work.worker("-c", "2", app=APP).ready()
    before = pids(worker)
    neighbour = begun(work, probe, "wait", {"until": str(go)}, max_retries=1)
    task_id = begun(work, probe, name, max_retries=0)

    assert work.app.cancel(task_id) == "requested"
    time.sleep(KILL_AFTER_S + 2 * HEARTBEAT_S + 0.5)  # a request alone costs nobody's process, however long it takes
    assert pids(worker) == before
    assert work.statuses([task_id]) == {"running": 1}

    tandemq(work.settings, "cancel", str(task_id), "--kill", "--reason", "stuck")
    killed_at = time.monotonic()
    assert work.ended([task_id]) == {"cancelled": 1}
    # Asked long ago: nothing more is waited for.
    assert time.monotonic() - killed_at < 2 * HEARTBEAT_S + 2.0 + weather.slack_s
    assert outcomes(seen(work, task_id)) == [("cancelled", "Cancelled")]
    assert probe.starts()[task_id] == 1
    kill = work.app.audit(task_id=task_id).items[0]
    assert (kill.action, kill.reason, kill.details) == ("cancel", "stuck", {"kill": True})

    eventually(lambda: probe.starts()[neighbour] == 2, 60, worker.text)  # handed back, and begun anew elsewhere
    go.touch()
    assert work.ended([neighbour]) == {"succeeded": 1}
    assert seen(work, neighbour).attempts == 1
    assert pids(worker).isdisjoint(before)
    assert worker.process.poll() is None
    assert "died" not in worker.text()


def test_a_handler_that_obeys_in_time_costs_no_process(work: Bench, probe: Probe) -> None:
    worker = work.worker("-c", "2", app=APP).ready()
    before = pids(worker)
    task_id = begun(work, probe, "bows_out")
    assert work.app.cancel(task_id, kill=True) == "requested"
    assert work.ended([task_id]) == {"cancelled": 1}
    assert pids(worker) == before


def test_a_worker_tells_what_it_is_and_how_busy(work: Bench, probe: Probe, tmp_path: Path) -> None:
    go = tmp_path / "go"
    work.worker("-c", "3", "--fair", app=APP).ready()
    task_id = begun(work, probe, "wait", {"until": str(go)})
    (record,) = eventually(lambda: [w for w in work.app.workers() if w.busy == 1])
    assert (record.options, record.shown_state) == ("fair", "running")
    assert 0 <= record.heartbeat_age_s < 30
    shown = tandemq(work.settings, "workers").out
    assert "fair" in shown
    assert "1/3" in shown
    go.touch()
    work.ended([task_id])
    eventually(lambda: work.app.workers()[0].busy == 0)
    assert tandemq(work.settings, "workers", "--json").json["items"][0]["busy"] == 0
