"""The show-case: examples/http/worker.mjs, thirty lines of JavaScript, beside a Python worker on the same queue."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import NewTask
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tests.api import ServedApi, served
from tests.foreign import EXAMPLES, HANDLERS, Foreign, program, worker
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import sql
from tests.waiting import eventually
from tests.workers import Bench, bench

N = size(200, 1000)
LEASE_S = 2.0
SLOTS = 8


@pytest.fixture
def quick(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Settings:
    """Healers that do not sleep for long."""
    return settings_for(mysql_url, redis_url, lease_s=LEASE_S, heartbeat_s=0.5, reconcile_s=0.2)


@pytest.fixture
def work(quick: Settings, tmp_path: Path, probe: Probe) -> Iterator[Bench]:
    with bench(quick, tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def api(quick: Settings) -> Iterator[ServedApi]:
    with served(quick) as made:
        yield made


@pytest.fixture
def javascript(api: ServedApi, tmp_path: Path, probe: Probe) -> Iterator[Callable[..., Foreign]]:
    """``javascript(SLOTS="8")`` starts a worker; environment variables as it takes them."""
    node, running = program("node"), []

    def start(**environ: str) -> Foreign:
        log = tmp_path / f"javascript{len(running)}.log"
        own = {"SLOTS": str(SLOTS), "LEASE_S": str(LEASE_S)}
        context = worker(log, node, "worker.mjs", str(HANDLERS), url=api.url, **probe.environ, **own | environ)
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


def test_it_is_thirty_lines() -> None:
    lines = (EXAMPLES / "worker.mjs").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.strip().startswith("//")]

    assert len(code) <= 30
    assert max(map(len, lines)) <= 130


def _enqueue(work: Bench, name: str, payloads: list[dict[str, Any]], **options: Any) -> list[int]:
    return [handle.id for handle in work.app.enqueue_many([NewTask(name, p, **options) for p in payloads])]


def _is_up(work: Bench, script: Foreign) -> None:
    """Wait until it works: it says nothing of itself, but it alone serves this queue."""
    (first,) = _enqueue(work, "js.text", [{"text": "a"}], queue="js")
    eventually(lambda: work.app.get(first).status is Status.SUCCEEDED, 60, script.text)


def test_beside_a_python_worker_nothing_is_lost_and_nothing_runs_twice(
    work: Bench, probe: Probe, javascript: Callable[..., Foreign]
) -> None:
    python = work.worker("-c", "4", "-q", "default", app="tests.apps.beside:app").ready()
    script = javascript(QUEUES="default,js")
    _is_up(work, script)

    ids = _enqueue(work, "beside", [{"n": n, "ms": 10} for n in range(N)])

    assert work.ended(ids) == {"succeeded": N}
    assert script.stop() == 0, script.text()
    python.signal(signal.SIGTERM)
    assert python.wait() == 0
    probe.assert_once(range(N))
    by = {n: "javascript" if pid == script.process.pid else "python" for n, pid in _ran(probe)}
    tasks = [work.app.get(task_id).to_json() for task_id in ids]
    assert [task["result"] for task in tasks] == [{"n": n, "by": by[n]} for n in range(N)]
    assert {task["attempts"] for task in tasks} == {1}
    assert set(by.values()) == {"javascript", "python"}, "one of them had nothing to do"


def _ran(probe: Probe) -> list[tuple[int, int]]:
    return [(mark.task_id, mark.pid) for mark in probe.marks("end")]


def test_killed_half_way_its_tasks_come_back_and_all_end(
    work: Bench, probe: Probe, javascript: Callable[..., Foreign]
) -> None:
    ids = _enqueue(work, "beside", [{"n": n, "ms": 10} for n in range(N)])
    work.worker(verb="mover")
    work.worker(verb="reconcile")
    first = javascript()
    eventually(lambda: len(probe.ends()) >= N // 2, 120, first.text)

    first.kill()
    # In one look: a lease that ends between two would be neither.
    status = dict(sql(work, "SELECT id, status FROM {t}tasks"))
    ended = {n for n, task_id in enumerate(ids) if status[task_id] == Status.SUCCEEDED}
    held = {n for n, task_id in enumerate(ids) if status[task_id] == Status.RUNNING}
    second = javascript()

    assert work.ended(ids) == {"succeeded": N}
    assert second.stop() == 0, second.text()
    assert set(probe.ends()) == set(range(N))
    again = {n for n, times in probe.starts().items() if times > 1}
    assert again <= held, "what was answered began again"
    assert len(held) <= SLOTS + 1  # one more where a claim is answered while the worker is being killed
    assert not again & ended
    attempts = Counter(work.app.get(task_id).attempts for task_id in ids)
    assert set(attempts) <= {1, 2}
    assert attempts[2] <= len(held)


def test_a_task_that_takes_longer_than_its_lease_is_kept_by_heartbeats(
    work: Bench, probe: Probe, javascript: Callable[..., Foreign], tmp_path: Path
) -> None:
    work.worker(verb="reconcile")
    script = javascript()
    (task_id,) = _enqueue(work, "js.hold", [{"n": 7, "until": str(tmp_path / "go")}])
    eventually(lambda: probe.starts()[7] == 1, 60, script.text)
    begun = work.app.get(task_id)

    eventually(lambda: _lease(work, task_id) > begun.lease_expires_at, 60, script.text)
    (tmp_path / "go").touch()

    assert work.ended([task_id]) == {"succeeded": 1}
    task = work.app.get(task_id)
    assert (task.attempts, probe.starts()[7], json.loads(task.result)) == (1, 1, {"n": 7, "by": "javascript"})


def _lease(work: Bench, task_id: int) -> object:
    return work.app.get(task_id).lease_expires_at


def test_how_it_fails_is_as_the_handler_says(work: Bench, probe: Probe, javascript: Callable[..., Foreign]) -> None:
    javascript()
    how = [{"retryable": False}, {"retry_after": 3600}]
    never, later = _enqueue(work, "js.fail", [{"n": n, "how": one} for n, one in enumerate(how)])

    eventually(lambda: work.app.get(never).status is Status.DEAD and work.app.get(later).attempts == 1, 60)
    eventually(lambda: work.app.get(later).status is Status.PENDING, 60)

    dead, waits = work.app.admin.show(never), work.app.admin.show(later)
    assert (dead.dead_reason, dead.error_type, dead.last_error) == ("non_retryable", "RangeError", "no luck with 0")
    assert "handlers.mjs" in dead.attempts_log[-1].traceback
    assert waits.state == "retrying"
    assert (waits.run_at - waits.updated_at).total_seconds() == pytest.approx(3600, abs=60)


def test_an_odd_result_or_error_is_the_end_of_its_own_task_only(
    work: Bench, javascript: Callable[..., Foreign]
) -> None:
    script = javascript(SLOTS="1")
    hows = ["bigint", "throws null", "throws what has no text"]
    odd = _enqueue(work, "js.odd", [{"how": how} for how in hows], max_retries=0)
    refused = _enqueue(work, "js.odd", [{"how": "surrogate"}])
    fine = _enqueue(work, "js.text", [{"text": "a"}])

    assert work.ended([*odd, *refused, *fine]) == {"dead": 4, "succeeded": 1}, script.text()
    said = [work.app.admin.show(task_id).last_error for task_id in [*odd, *refused]]
    assert "BigInt" in said[0]
    assert said[1] == "null"
    assert "surrogate" in said[3]
    assert work.app.admin.show(refused[0]).dead_reason == "non_retryable"


def test_a_cancelled_task_is_stopped(
    work: Bench, probe: Probe, javascript: Callable[..., Foreign], tmp_path: Path
) -> None:
    script = javascript()
    (task_id,) = _enqueue(work, "js.hold", [{"n": 7, "until": str(tmp_path / "never")}])
    eventually(lambda: probe.starts()[7] == 1, 60, script.text)

    assert work.app.cancel(task_id) == "requested"

    assert work.ended([task_id]) == {"cancelled": 1}
    assert not probe.ends()


def test_told_to_stop_it_finishes_what_it_has_begun(
    work: Bench, probe: Probe, javascript: Callable[..., Foreign], tmp_path: Path
) -> None:
    script = javascript(SLOTS="1")
    one, two = _enqueue(work, "js.hold", [{"n": 1, "until": str(tmp_path / "go")}, {"n": 2}])
    eventually(lambda: probe.starts()[1] == 1, 60, script.text)

    script.process.terminate()
    (tmp_path / "go").touch()

    assert script.wait() == 0, script.text()
    assert work.statuses([one, two]) == {"succeeded": 1, "pending": 1}
    assert work.app.get(two).attempts == 0
