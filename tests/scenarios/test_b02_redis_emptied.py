"""B02: Redis is flushed, or killed and started empty, three times while tasks of every kind are about.

Required: ready and delayed tasks all run once, the delayed ones not before their time and none later than the recovery
time; those that run are not started a second time; the counts that people see come from MySQL and never drop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from random import Random

import pytest

from tandemq import NewTask, TandemQ
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled, redis_ids, sql
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

READY, DELAYED, RUNNING, SLOTS = 200, 50, 4, 8
FAULTS = 3
RECONCILE_S = size(1.0, 2.0)
#: The delayed ones come due before, between and after the faults, which are about a pass of the reconciler apart.
EARLIEST_S, LATEST_S = 0.5, size(5.0, 12.0)
#: So long that ready ones are still there at the last fault.
RUN_S = size(0.05, 0.15)
PRIORITIES = ("low", "medium", "high", "critical")
OPEN = ("ready", "scheduled", "retrying", "running")


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, server: RedisServer, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    settings = settings_for(mysql_url, server.url(), **(CALM | {"reconcile_s": RECONCILE_S}))
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


def flush(server: RedisServer) -> None:
    server.flush()


def start_empty(server: RedisServer) -> None:
    server.kill9()
    server.start()


class Counts:
    """What people are shown, read over and over: (all tasks, those that have succeeded)."""

    def __init__(self, app: TandemQ) -> None:
        self.seen: list[tuple[int, int]] = []
        self._app, self._over = app, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            stats = self._app.admin.stats()
            still_open = sum(queue[state] for queue in stats["queues"].values() for state in OPEN)
            done = stats["ended"]["succeeded"]
            self.seen.append((still_open + done, done))

    def __enter__(self) -> Counts:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("fault", [flush, start_empty])
@pytest.mark.parametrize("turn", range(size(1, 10)))
def test_redis_is_emptied_over_and_over(
    work: Bench, probe: Probe, server: RedisServer, weather: Weather, fault: Callable[[RedisServer], None], turn: int
) -> None:
    rng = Random(turn)
    gate = work.folder / "gate"
    worker = work.worker("-c", str(SLOTS)).ready()
    running = [h.id for h in work.app.enqueue_many([NewTask("hold", {"until": str(gate)})] * RUNNING)]
    eventually(lambda: set(running) <= set(probe.starts()), 60, worker.text)
    pids = {child.pid for child in worker.children()}
    ready = [NewTask("sleep", {"seconds": RUN_S}, priority=rng.choice(PRIORITIES)) for _ in range(READY)]
    later = [
        NewTask("noop", {"n": n}, delay=rng.uniform(EARLIEST_S, LATEST_S), priority=rng.choice(PRIORITIES))
        for n in range(DELAYED)
    ]
    ids = [handle.id for handle in work.app.enqueue_many([*ready, *later])]
    due = dict(sql(work, "SELECT id, run_at FROM {t}tasks"))
    everything = len(running) + len(ids)

    with Counts(work.app) as counts:
        for _ in range(FAULTS):
            # As soon as something is back: the next fault strikes in the middle of the refill, or just behind it.
            eventually(lambda: redis_ids(work), 60, worker.text)
            fault(server)
        last_fault = time.time()
        in_time = probe.starts()
        assert work.ended(ids) == {"succeeded": len(ids)}
        assert work.statuses(running) == {"running": RUNNING}
        gate.touch()
        assert work.ended(running) == {"succeeded": RUNNING}
        eventually(lambda: counts.seen[-1] == (everything, everything))

    assert len(in_time) < everything - DELAYED / 5, "there was hardly anything left to be lost"
    probe.assert_once([*running, *ids])
    starts = {mark.task_id: mark.at for mark in probe.marks("start")}
    at = {task_id: run_at.replace(tzinfo=UTC).timestamp() for task_id, run_at in due.items()}
    assert min(starts[task_id] - at[task_id] for task_id in ids) > -0.005
    late = {task_id: starts[task_id] - max(at[task_id], last_fault) for task_id in ids}
    assert max(late.values()) < T_REC + READY * RUN_S / (SLOTS - RUNNING) + SLACK + weather.slack_s
    assert {child.pid for child in worker.children()} == pids
    totals, done = zip(*counts.seen, strict=True)
    assert min(totals) == everything, "tasks were missing from the counts"
    assert list(done) == sorted(done)
    assert_settled(work, probe, [*running, *ids])
