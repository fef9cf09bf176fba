"""Workers of another language over a real ``tandemq api``: beside Python workers, and when somebody dies."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.crash.fleet import Marks
from tests.http.hands import ME, claim, enqueue, send
from tests.probe import Probe, note
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, redis_ids, sql
from tests.waiting import eventually
from tests.workers import Bench, Worker, bench

pytestmark = pytest.mark.timeout(300)
PACE = {"lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "grace_s": 2.0, "mover_s": 0.1}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **PACE), tmp_path, probe.environ) as made:
        yield made


def make(work: Bench, kind: str, n: int, **options: Any) -> list[int]:
    """Enqueue ``n`` tasks without a payload."""
    return [handle.id for handle in work.app.enqueue_many([NewTask(kind, {}, **options) for _ in range(n)])]


def start_api(work: Bench, **extra: str) -> tuple[Worker, int]:
    """``tandemq api`` as a process, once it listens, and its port."""
    api = work.worker("--port", "0", verb="api", **extra)

    def port() -> int:
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", api.text())
        assert found or api.process.poll() is None, api.text()
        return int(found[1]) if found else 0

    return api, eventually(port, 60, api.text)


def connect(port: int) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60.0)


class Foreigner(threading.Thread):
    """A worker that knows HTTP and nothing else. What it begins is noted for the judge; it ends when told.

    ``port`` may be changed: an API that is gone comes back at another.
    """

    def __init__(
        self, port: int, probe: Probe, name: str, most: int = 1, queue: str = "default", lease_s: float = 0.0
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.port, self.probe, self.most, self.queue = port, probe, most, queue
        self.lease_s = lease_s  # 0: as long as the API's own
        self.over = threading.Event()
        self.done = 0
        self.errors: list[Exception] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with connect(self.port) as client:
                    while not self.over.is_set():
                        self.claim(client)
            except httpx.TransportError:
                self.over.wait(0.05)  # the API is being started again
            except Exception as error:
                self.errors.append(error)
                return

    def claim(self, client: httpx.Client) -> None:
        options = {"queues": [self.queue], "max": self.most, "wait": 0.5, "lease": self.lease_s}
        for job in claim(client, worker_id=self.name, **{k: v for k, v in options.items() if v}):
            self.work(client, job)

    def work(self, client: httpx.Client, job: dict[str, Any]) -> None:
        proof = {"lease_token": job["lease_token"]}
        if send(client, "heartbeat", job["id"], proof)[0] != 200:
            return
        note("start", job["id"], job["attempts"], self.probe.path)
        if job["type"] == "flaky" and job["attempts"] == 1:
            send(client, "fail", job["id"], {**proof, "error": "the first time", "retry_after": 0.1})
            return
        note("end", job["id"], job["attempts"], self.probe.path)
        assert send(client, "complete", job["id"], {**proof, "result": self.name})[0] == 200
        self.done += 1


def test_workers_of_both_kinds_share_the_tasks_and_nothing_runs_twice(work: Bench, probe: Probe) -> None:
    n = size(150, 1000)
    _, port = start_api(work)
    # Long leases: a pause of the machine between a claim and its heartbeat must not look like a death.
    foreigners = [Foreigner(port, probe, f"foreigner-{i}", most=1 + i, lease_s=30.0) for i in range(3)]
    ids = make(work, "noop", n) + make(work, "flaky", n // 5, max_retries=2)
    python = work.worker("-c", "2").ready()
    for foreigner in foreigners:
        foreigner.start()
    assert work.ended(ids, 200) == {"succeeded": len(ids)}
    for foreigner in foreigners:
        foreigner.over.set()
        foreigner.join(60)

    assert [foreigner.errors for foreigner in foreigners] == [[]] * 3
    assert_settled(work, probe, ids)
    starts, attempts = probe.starts(), dict(sql(work, "SELECT id, attempts FROM {t}tasks"))
    assert {i: starts[i] for i in ids} == {i: attempts[i] for i in ids}
    by = {name for (name,) in sql(work, "SELECT DISTINCT worker_id FROM {t}tasks")}
    assert sum(foreigner.done for foreigner in foreigners) > 0
    assert by & {foreigner.name for foreigner in foreigners}
    assert python.process.poll() is None


def test_a_task_whose_worker_never_comes_back_is_found_by_the_reconciler(work: Bench) -> None:
    _, port = start_api(work)
    with connect(port) as client:
        kept, again, last = (enqueue(client, "t", max_retries=n) for n in (5, 1, 0))
        jobs = {job["id"]: job for job in claim(client, max=3, lease=0.5)}
        assert set(jobs) == {kept, again, last}
        work.worker(verb="reconcile")
        work.worker(verb="mover")
        proof = {"lease_token": jobs[kept]["lease_token"], "lease": 60}
        assert send(client, "heartbeat", kept, proof)[0] == 200

        def state(task_id: int) -> tuple[str, int, str | None]:
            task = work.app.get(task_id)
            assert task is not None
            return task.status.value, task.attempts, task.dead_reason

        eventually(lambda: state(last) == ("dead", 1, "lease_lost"), 60)
        eventually(lambda: state(again) == ("pending", 1, None), 60)
        (back,) = claim(client, worker_id="another", wait=25, lease=0.5)
        assert (back["id"], back["attempts"]) == (again, 2)
        eventually(lambda: state(again) == ("dead", 2, "lease_lost"), 60)
        assert send(client, "complete", again, {"lease_token": back["lease_token"]})[0] == 409
        assert send(client, "complete", kept, {"worker_id": ME})[0] == 200
        assert [a.outcome for a in work.app.get(again).attempts_log] == ["lease_lost"] * 2


#: Where the API process is killed, and what it was asked to do then. The pass is that of the second task.
DEATHS = {
    "pop.after": "claim",
    "claim.before_commit": "claim",
    "claim.after_commit": "claim",
    "claim.after_hand_over": "claim",
    "renew.before": "heartbeat",
    "renew.after": "heartbeat",
    "finish.before_commit": "complete",
    "finish.after_commit": "complete",
    "retry.after_commit": "fail",
    "retry.after_push": "fail",
}


def dies_at(work: Bench, probe: Probe, marks: Marks, point: str) -> None:
    """An API of its own dies there; another one comes, and the worker goes on as if nothing had been."""
    queue = point
    kind = "flaky" if DEATHS[point] == "fail" else "noop"
    ids = make(work, kind, 4, queue=queue, max_retries=5)
    dying, port = start_api(work, **marks.arming(f"{point}:2:kill9"))
    foreigner = Foreigner(port, probe, point, queue=queue)
    foreigner.start()
    assert dying.wait(100) == -9, dying.text()
    _, foreigner.port = start_api(work)
    try:
        assert work.ended(ids, 100) == {"succeeded": 4}, (foreigner.errors, work.statuses(ids))
    finally:
        foreigner.over.set()
        foreigner.join(60)
    assert foreigner.errors == []


def test_killed_at_any_step_the_api_loses_nothing(work: Bench, probe: Probe, tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    work.worker(verb="reconcile")
    work.worker(verb="mover")
    points = size(list(DEATHS)[1::2], list(DEATHS))
    with ThreadPoolExecutor(size(2, 3)) as pool:
        runs = {point: pool.submit(dies_at, work, probe, marks, point) for point in points}
    faults = {point: str(run.exception())[-1500:] for point, run in runs.items() if run.exception()}
    assert not faults, "\n".join(f"{point}: {said}" for point, said in faults.items())
    assert marks.hit() == set(points)
    starts = probe.starts()
    rows = sql(work, "SELECT id, attempts FROM {t}tasks")
    assert [row for row in rows if not 1 <= starts[row[0]] <= row[1]] == []
    eventually(lambda: redis_ids(work) == [], 60)
    assert sql(work, "SELECT worker_id, ids FROM {t}claims WHERE worker_id <> ''") == []
