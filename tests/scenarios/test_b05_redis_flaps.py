"""B05: connections flap, Redis freezes, Redis goes away for long: no worker is deaf afterwards, and none is loud.

Required: after each of these every process of the worker takes tasks again within five seconds, and is the same process
as before. Meanwhile none of them uses more than 5 % of a processor (25 % while there is work) or writes more than two
lines a second. What was enqueued at any moment runs once.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tandemq import NewTask
from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, assert_settled, push_by_hand
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(2400)]

PROCESSES = 3
FLAPS, FLAPPING_S = 6, size(1.2, 3.0)
#: Longer than the time-out of a pop, so that every process sees one.
FROZEN_S = size(3.5, 8.0)
DOWN_S = size(3.0, 20.0)
BACK_WITHIN_S = 5.0
LINES_A_SECOND = 2.0
PROCESSOR_SHARE, PROCESSOR_SHARE_AT_WORK = 0.05, 0.25


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
def work(
    settings_for: Callable[..., object], mysql_url: str, server: RedisServer, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, server.url(), **CALM), tmp_path, probe.environ) as made:
        yield made


class Quiet:
    """``with Quiet(worker, share):`` each of its processes stays within its share of a processor and of the log."""

    def __init__(self, worker: Worker, share: float) -> None:
        self._worker, self._share = worker, share
        self._processes = [psutil.Process(worker.pid), *worker.children()]

    def _used(self) -> dict[int, float]:
        return {p.pid: sum(p.cpu_times()[:2]) for p in self._processes}

    def _lines(self) -> Counter[int]:
        said = re.findall(r"^\S+ \S+ [A-Z]+ (\d+) ", self._worker.text(), re.MULTILINE)
        return Counter(map(int, said))

    def __enter__(self) -> Quiet:
        self._at, self._before, self._said = time.monotonic(), self._used(), self._lines()
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        if kind is not None:
            return
        seconds = time.monotonic() - self._at
        shares = {pid: (used - self._before[pid]) / seconds for pid, used in self._used().items()}
        assert max(shares.values()) < self._share, shares
        lines = self._lines() - self._said
        assert max(lines.values(), default=0) <= LINES_A_SECOND * seconds, self._worker.text()[-4000:]


def assert_all_take_tasks(work: Bench, probe: Probe, worker: Worker, gate: Path, weather: Weather) -> list[int]:
    """Every process, which has one slot, begins one of as many tasks soon after now."""
    back = time.time()
    held = [h.id for h in work.app.enqueue_many([NewTask("hold", {"until": str(gate)})] * PROCESSES)]
    push_by_hand(work, held)  # a producer may still leave Redis alone; here only the worker is on trial

    eventually(lambda: set(held) <= set(probe.starts()), 60, worker.text)

    starts = [mark for mark in probe.marks("start") if mark.task_id in held]
    assert max(mark.at for mark in starts) - back < BACK_WITHIN_S + SLACK + weather.slack_s
    assert {mark.pid for mark in starts} == {child.pid for child in worker.children()}
    gate.touch()
    assert work.ended(held) == {"succeeded": PROCESSES}
    return held


def flap(work: Bench, server: RedisServer) -> list[int]:
    """Cut all connections again and again, with something to fetch before and after each time."""
    ids: list[int] = []
    with server.client() as client:
        for _ in range(FLAPS):
            ids += work.ids("noop", 2)
            time.sleep(FLAPPING_S / FLAPS)
            client.client_kill_filter(_type="normal", skipme=True)
            ids += work.ids("noop", 2)
    return ids


@pytest.mark.parametrize("turn", range(size(1, 20)))
def test_every_process_takes_tasks_again(
    work: Bench, probe: Probe, server: RedisServer, weather: Weather, tmp_path: Path, turn: int
) -> None:
    worker = work.worker("-p", str(PROCESSES), "-c", "1").ready()
    with server.client() as client:
        wait_until_blocked(client, worker, PROCESSES)
    pids = {worker.pid, *(child.pid for child in worker.children())}

    server.sigstop()
    with Quiet(worker, PROCESSOR_SHARE):
        ids = work.ids("noop", 3)
        time.sleep(FROZEN_S)
    server.sigcont()
    ids += assert_all_take_tasks(work, probe, worker, tmp_path / "thawed", weather)

    with Quiet(worker, PROCESSOR_SHARE_AT_WORK):
        ids += flap(work, server)
    ids += assert_all_take_tasks(work, probe, worker, tmp_path / "flapped", weather)

    server.stop()
    with Quiet(worker, PROCESSOR_SHARE):
        ids += work.ids("noop", 3)
        time.sleep(DOWN_S)
    assert "Redis is away" in worker.text()
    deaf = tandemq(work.settings, "health", "--json", code=3).json
    assert (deaf["healthy"], deaf["database"]) == (False, "ok")
    assert "Redis" in deaf["redis"]
    server.start()
    ids += assert_all_take_tasks(work, probe, worker, tmp_path / "started", weather)

    assert work.ended(ids) == {"succeeded": len(ids)}
    assert {worker.pid, *(child.pid for child in worker.children())} == pids
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
