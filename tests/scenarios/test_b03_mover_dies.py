"""B03: a mover that is killed at any moment loses no delayed task.

Required: with movers killed a moment after they have begun, over and over, every delayed task runs once, not before
its time and not later than the recovery time after it, without anybody's help. The network is slow here, so that a
mover is killed between any two of its commands; with the reconciler off nothing else could bring back an id that was
taken from one place and not put into the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC

import pytest
import redis

from tandemq import NewTask
from tests.probe import Probe
from tests.proxy import Proxy
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import SLACK, T_REC, assert_settled, sql
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

KILLS = size(5, 40)
TASKS_PER_MOVER = 50
PRIORITIES = ("low", "medium", "high", "critical")
#: Each command of a mover takes this much longer, those on the ids most of all: a turn lasts as long as a mover lives,
#: and half of it lies between any two commands that would move an id in two steps.
SLOWNESS_S, SLOWNESS_WITH_IDS_S = 0.01, 0.05
ON_DELAYED = b":delayed:"


@pytest.fixture
def slow_redis(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", redis_server.port) as proxy:
        for pattern in (ON_DELAYED, b":ready:"):
            proxy.hold(pattern, SLOWNESS_WITH_IDS_S, times=10**9)
        proxy.hold(b"\r\n", SLOWNESS_S, times=10**9)
        yield proxy


def start_mover(work: Bench, slow_redis: Proxy) -> Worker:
    # Or it would wait for the end of the leadership of the dead one, with nothing to be killed in.
    sql(work, "DELETE FROM {t}leaders WHERE role = 'mover'")
    url = f"redis://127.0.0.1:{slow_redis.port}/0"
    return work.worker(verb="mover", TANDEMQ_REDIS_URL=url, TANDEMQ_MOVER_S="0.05")


def enqueue(work: Bench, rng: random.Random) -> dict[int, float]:
    """Tasks of every priority that are due by the time a mover has started: id -> when, by the row."""
    news = [
        NewTask("noop", {"n": n}, delay=rng.uniform(0, 0.5), priority=rng.choice(PRIORITIES))
        for n in range(TASKS_PER_MOVER)
    ]
    first = min(handle.id for handle in work.app.enqueue_many(news))
    rows = sql(work, "SELECT id, run_at FROM {t}tasks WHERE id >= :first", first=first)
    return {task_id: run_at.replace(tzinfo=UTC).timestamp() for task_id, run_at in rows}


def wait_until_it_moves(mover: Worker, slow_redis: Proxy, commands: int) -> None:
    """Until so many of its commands on delayed ids have come to the proxy, which holds each of them for a while."""
    seen = slow_redis.struck[ON_DELAYED]
    eventually(lambda: slow_redis.struck[ON_DELAYED] >= seen + commands, 60, mover.text)


@pytest.mark.parametrize("healers", [[], ["--no-reconcile"]], ids=["healer", "no healer"])
def test_movers_killed_over_and_over(
    work: Bench, probe: Probe, slow_redis: Proxy, redis_client: redis.Redis, weather: Weather, healers: list[str]
) -> None:
    rng = random.Random(3)
    redis_client.config_resetstat()
    worker = work.worker("-c", "8", "--no-mover", *healers).ready()
    wait_until_blocked(redis_client, worker)
    due: dict[int, float] = {}
    for _ in range(KILLS):
        mover = start_mover(work, slow_redis)
        due |= enqueue(work, rng)
        wait_until_it_moves(mover, slow_redis, rng.randint(2, 8))
        time.sleep(rng.uniform(0, 1.2 * SLOWNESS_WITH_IDS_S))  # the moment of the kill is what is tried here
        mover.kill_group()
        work.workers.remove(mover)
    promotions = redis_client.info("commandstats")["cmdstat_zrem"]["calls"]
    assert promotions >= KILLS / 2, "the movers have hardly moved anything"
    wait_until_it_moves(start_mover(work, slow_redis), slow_redis, 1)
    last_fault = time.time()

    assert work.ended(list(due)) == {"succeeded": KILLS * TASKS_PER_MOVER}

    probe.assert_once(due)
    starts = probe.marks("start")
    assert min(m.at - due[m.task_id] for m in starts) > -0.005
    late = {m.task_id: m.at - max(due[m.task_id], last_fault) for m in starts}
    assert max(late.values()) < T_REC + SLACK + weather.slack_s
    assert_settled(work, probe, due)
