"""B13: a delay that is longer than the lease, the reconciler's pass and whatever else is periodic runs once.

Required: with several movers, workers and reconcilers at work, and Redis restarted empty while the tasks wait, each
delayed task begins once, not before its time and at most a second after it (or after the recovery time, if it was due
meanwhile), and counts one attempt.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, SLACK, T_REC, assert_settled, redis_ids, sql
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

TASKS = 200
#: All of them longer than the lease of 3 s and the pass of 2 s.
SHORTEST_S, LONGEST_S = size((6.0, 8.0), (12.0, 20.0))
MOVERS, WORKERS = 3, size(2, 4)


@pytest.fixture
def restartable(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, restartable: RedisServer, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, restartable.url(), **PACE), tmp_path, probe.environ) as made:
        yield made


def test_long_delays_run_once_whatever_is_periodic(
    work: Bench, probe: Probe, restartable: RedisServer, weather: Weather
) -> None:
    rng = random.Random(13)
    workers = [work.worker("-c", "4", "--no-mover") for _ in range(WORKERS)]
    for _ in range(MOVERS):
        work.worker(verb="mover")
    for worker in workers:
        worker.ready()

    news = [NewTask("noop", {"n": n}, delay=rng.uniform(SHORTEST_S, LONGEST_S)) for n in range(TASKS)]
    ids = [handle.id for handle in work.app.enqueue_many(news)]
    assert redis_ids(work) == ids
    restartable.kill9()
    restartable.start()
    restarted = time.time()
    rows = sql(work, "SELECT id, run_at FROM {t}tasks")
    due = {task_id: run_at.replace(tzinfo=UTC).timestamp() for task_id, run_at in rows}
    assert restarted < min(due.values()), "nothing was due before the restart, or the test tries something else"
    eventually(lambda: redis_ids(work) == ids or time.time() > min(due.values()), message="not rebuilt")

    assert work.ended(ids) == {"succeeded": TASKS}
    probe.assert_once(ids)
    assert sql(work, "SELECT DISTINCT attempts FROM {t}tasks") == [(1,)]
    late = {m.task_id: m.at - due[m.task_id] for m in probe.marks("start")}
    assert min(late.values()) > -0.005
    in_time = {i: s for i, s in late.items() if due[i] > restarted + T_REC}
    assert max(in_time.values(), default=0.0) < SLACK + weather.slack_s
    assert max(m.at - max(due[m.task_id], restarted + T_REC) for m in probe.marks("start")) < SLACK + weather.slack_s
    assert_settled(work, probe, ids)
    time.sleep(work.settings.lease_s)  # what would come again comes a lease later
    probe.assert_once(ids)
