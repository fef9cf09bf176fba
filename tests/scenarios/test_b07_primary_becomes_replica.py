"""B07: the Redis server becomes a replica for a while, under workers that wait, tasks that end and ids that come due.

Required: no process exits. Tasks that end meanwhile are recorded at once, retries that are due meanwhile happen, what
is enqueued is accepted, and nothing is lost or run twice. Work resumes within five seconds after the role is back. The
same with a replica that refuses to be read as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tandemq import NewTask
from tests.apps import scenarios_redis
from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled, push_by_hand
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

APP = f"{scenarios_redis.__name__}:app"
REPLICA_S = size(3.0, 8.0)
BACK_WITHIN_S = 5.0
DELAYED, NEW = 20, 10
QUEUES = ("default", "quiet")
#: Whether a replica that has lost its primary may be read, window by window.
READS = ["yes", "no"] * size(1, 5)


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
def work(
    settings_for: Callable[..., object], mysql_url: str, server: RedisServer, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, server.url(), **CALM), tmp_path, probe.environ) as made:
        yield made


def children(*workers: Worker) -> list[int]:
    return [child.pid for worker in workers for child in worker.children()]


@dataclass
class Round:
    """What was enqueued for one window, and when that was over.

    ``once`` runs once, ``fresh`` of it came after the window; ``twice`` fails in the window and runs again.
    """

    once: list[int]
    twice: list[int]
    back: float
    fresh: list[int]


def through_a_window(work: Bench, probe: Probe, client: redis.Redis, gate: Path) -> Round:
    """REPLICAOF and back, with tasks that end, fail, come due and arrive in between."""
    delays = [REPLICA_S * n / DELAYED for n in range(DELAYED)]
    delayed = work.app.enqueue_many([NewTask("noop", {"n": n}, delay=delay) for n, delay in enumerate(delays)])
    held = [h.id for h in work.app.enqueue_many([NewTask("hold", {"until": str(gate)})] * 2)]
    failing = [h.id for h in work.app.enqueue_many([NewTask("hold_and_fail", {"until": str(gate)})] * 2)]
    eventually(lambda: {*held, *failing} <= set(probe.starts()), 60)

    client.replicaof("127.0.0.1", "1")
    until = time.monotonic() + REPLICA_S
    arrived = [task_id for queue in QUEUES for task_id in work.ids("noop", NEW, queue=queue)]
    gate.touch()
    assert work.ended(held) == {"succeeded": len(held)}
    eventually(lambda: probe.ends().keys() >= set(held) and not running(work, failing), 60)
    assert client.role()[0] == b"slave"
    time.sleep(max(0.0, until - time.monotonic()))
    client.replicaof("NO", "ONE")
    back = time.time()
    fresh = []
    for queue in QUEUES:
        fresh += (some := work.ids("noop", NEW, queue=queue))
        push_by_hand(work, some, queue)  # a producer may still leave Redis alone; the workers are on trial
    return Round([*(h.id for h in delayed), *held, *arrived, *fresh], failing, back, fresh)


def running(work: Bench, ids: list[int]) -> int:
    return work.statuses(ids).get("running", 0)


def test_a_primary_becomes_a_replica_and_a_primary_again(
    work: Bench, probe: Probe, server: RedisServer, weather: Weather
) -> None:
    workers = [work.worker("-q", queue, "-c", "6", app=APP).ready() for queue in QUEUES]
    pids = children(*workers)
    rounds: list[Round] = []
    with server.client() as client:
        for n, serve_stale in enumerate(READS):
            for worker in workers:
                wait_until_blocked(client, worker)
            client.config_set("replica-serve-stale-data", serve_stale)
            rounds.append(one := through_a_window(work, probe, client, work.folder / f"gate{n}"))
            assert work.ended([*one.once, *one.twice]) == {"succeeded": len(one.once) + len(one.twice)}

    once = [task_id for one in rounds for task_id in one.once]
    twice = [task_id for one in rounds for task_id in one.twice]
    assert probe.starts() == dict.fromkeys(once, 1) | dict.fromkeys(twice, 2)
    assert probe.ends() == dict.fromkeys([*once, *twice], 1)
    last = {mark.task_id: mark.at for mark in probe.marks("start")}
    for one in rounds:
        assert max(last[task_id] for task_id in one.fresh) - one.back < BACK_WITHIN_S + SLACK + weather.slack_s
        assert max(last[i] for i in [*one.once, *one.twice]) - one.back < T_REC + SLACK + weather.slack_s
    assert [worker.process.poll() for worker in workers] == [None, None]
    assert children(*workers) == pids
    assert any(code in workers[0].text() for code in ("UNBLOCKED", "READONLY", "MASTERDOWN"))
    assert_settled(work, probe, [*once, *twice])
