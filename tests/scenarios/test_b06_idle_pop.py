"""B06: a worker that has nothing to do waits quietly, whatever the socket time-out of its Redis URL.

Required: idle for longer than any socket time-out, with that of the product and with one second in the URL, a worker
stays the same processes on the same connection, writes no warning, and begins a task within a second after the push;
each of its processes has at most one blocked client. A URL whose time-out cannot work is refused at the start.
"""

from __future__ import annotations

import re
import time

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.blocked import blocked_clients, wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]

#: Longer than the socket time-out of every one of them.
IDLE_S = size(4.5, 30.0)
#: A pop waits for less than half of it: Redis may stall for the rest.
URLS = {"default": "", "short": size("?socket_timeout=2", "?socket_timeout=1"), "long": "?socket_timeout=600"}


def complaints(worker: Worker) -> list[str]:
    """Lines above INFO."""
    return [line for line in worker.text().splitlines() if re.search(r" (WARNING|ERROR|CRITICAL) |Traceback", line)]


def test_idle_longer_than_the_socket_timeout(
    work: Bench, probe: Probe, redis_client: redis.Redis, weather: Weather
) -> None:
    workers = {
        queue: work.worker(
            "-q", queue, "-p", "2", "-c", "4", TANDEMQ_REDIS_URL=f"{work.settings.redis_url}{options}"
        ).ready()
        for queue, options in URLS.items()
    }
    for worker in workers.values():
        wait_until_blocked(redis_client, worker, 2)
    children = {queue: {child.pid for child in worker.children()} for queue, worker in workers.items()}
    seen: dict[int, set[int]] = {pid: set() for pids in children.values() for pid in pids}
    most_at_once = dict.fromkeys(seen, 0)
    pops = redis_client.info("commandstats")["cmdstat_brpop"]["calls"]
    started = time.monotonic()

    def has_idled() -> bool:
        for worker in workers.values():
            for pid, blocked in blocked_clients(redis_client, worker).items():
                most_at_once[pid] = max(most_at_once[pid], len(blocked))
                seen[pid] |= set(blocked)
        return time.monotonic() - started > IDLE_S

    eventually(has_idled, 2 * IDLE_S + 60, every_s=0.05)
    idled_s = time.monotonic() - started
    pops = redis_client.info("commandstats")["cmdstat_brpop"]["calls"] - pops
    assert pops < 6 * 2 * 3.0 * idled_s  # six processes, each about two pops a second
    assert most_at_once == dict.fromkeys(seen, 1)
    assert {pid: len(clients) for pid, clients in seen.items()} == dict.fromkeys(seen, 1), "it has connected anew"

    pushed, ids = {}, {}
    for queue in workers:
        pushed[queue] = time.time()
        (ids[queue],) = work.ids("noop", 1, queue=queue)
    assert work.ended(list(ids.values())) == {"succeeded": len(URLS)}
    for queue, worker in workers.items():
        (start,) = probe.marks("start", ids[queue])
        assert start.at - pushed[queue] < 1.0 + weather.slack_s, queue
        assert start.pid in children[queue]
        assert {child.pid for child in worker.children()} == children[queue]
        assert complaints(worker) == []
    assert_settled(work, probe, ids.values())


def test_a_socket_timeout_that_cannot_work_is_refused_at_the_start(work: Bench) -> None:
    worker = work.worker(TANDEMQ_REDIS_URL=f"{work.settings.redis_url}?socket_timeout=none")
    assert worker.wait() == 2
    (line,) = worker.text().splitlines()
    assert "TANDEMQ_REDIS_URL" in line
    assert "socket_timeout" in line
