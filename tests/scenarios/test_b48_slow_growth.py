"""B48: after very many tasks, kills and disconnects nothing has grown: keys, memory, files, connections, workers.

Scaled down, the bounds of memory are wide: they catch what grows by kilobytes a task.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import pytest
import redis

from tandemq import NewTask
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, redis_ids, sql
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1800)]

WARM_UP = size(400, 5_000)
STEPS = 10
STEP = size(250, 5_000)
KILLS = size(4, 20)
DISCONNECTS = size(10, 50)
#: What a killed worker had begun runs again when its leases have run out; a step does not wait for that.
IN_HAND = 300
MB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """What may grow, after so many tasks."""

    tasks: int
    keys: int
    redis_bytes: int
    rss: tuple[int, ...]
    files: tuple[int, ...]
    database: int


class Growth:
    """A worker that stays, one that is killed and started again, and a count of what may grow."""

    def __init__(self, work: Bench, client: redis.Redis) -> None:
        self._work, self._client, self.ids = work, client, list[int]()
        self.steady = work.worker("-p", "2", "-c", "4", "--name", "steady").ready()
        self.killed: list[Worker] = []
        self.victim = self._start()
        children = sorted(self.steady.children(), key=lambda child: child.pid)
        self.watched = [psutil.Process(self.steady.pid), *children]

    def _start(self) -> Worker:
        worker = self._work.worker("-c", "4", "--name", "victim").ready()
        eventually(lambda: len(self._work.app.workers()) == len(self.killed) + 2, 30, worker.text)
        return worker

    def enqueue(self, count: int) -> None:
        """One in ten fails once, one in twenty is delayed."""
        kinds = [
            NewTask("flaky" if n % 10 == 0 else "noop", {}, max_retries=20, delay=0.5 if n % 20 == 5 else None)
            for n in range(count)
        ]
        self.ids += [handle.id for handle in self._work.app.enqueue_many(kinds)]

    def kill(self) -> None:
        self.victim.kill_group()
        self.killed.append(self.victim)
        self.victim = self._start()

    def disconnect(self) -> None:
        """Every connection to Redis but this test's own is cut."""
        self._client.execute_command("CLIENT", "KILL", "TYPE", "normal")

    def wait(self, but: int = 0) -> None:
        """Until all tasks have succeeded, but for so many."""
        eventually(lambda: self._done() >= len(self.ids) - but, 240, self.steady.text, every_s=0.1)

    def _done(self) -> int:
        succeeded: int = self._work.app.stats()["ended"]["succeeded"]
        return succeeded

    def sample(self) -> Sample:
        ((connections,),) = sql(
            self._work,
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND command <> 'Killed'",
        )
        return Sample(
            tasks=len(self.ids),
            keys=self._client.dbsize(),
            redis_bytes=self._client.info("memory")["used_memory"],
            rss=tuple(process.memory_info().rss for process in self.watched),
            files=tuple(process.num_fds() for process in self.watched),
            database=connections,
        )


def test_nothing_grows(work: Bench, probe: Probe, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        growth = Growth(work, client)
        growth.enqueue(WARM_UP)
        growth.wait()
        samples = [growth.sample()]
        for step in range(1, STEPS + 1):
            begun = len(growth.ids)
            growth.enqueue(STEP)
            for n in range(_share(DISCONNECTS, step)):
                growth.wait(but=STEP - (n + 1) * STEP // (DISCONNECTS + 1))
                growth.disconnect()
            for _ in range(_share(KILLS, step)):
                growth.kill()
            growth.wait(but=min(IN_HAND, len(growth.ids) - begun))
            samples.append(growth.sample())
        growth.wait()
        assert len(growth.killed) == KILLS
        eventually(lambda: redis_ids(work) == [], 10, lambda: redis_ids(work)[:10])
        first, last = (
            samples[0],
            eventually(lambda: _settled(growth, samples[0]), 30, lambda: (samples, growth.sample())),
        )

    assert last.keys <= first.keys + 10
    assert last.redis_bytes <= first.redis_bytes + 5 * MB
    for number, process in enumerate(growth.watched):
        slope = _slope([(s.tasks, s.rss[number]) for s in samples])
        assert slope * 10_000 < size(50, 5) * MB, f"{process}: {slope * 10_000 / MB:.1f} MB per 10,000 tasks"
    print([(s.tasks, s.keys, s.redis_bytes // 1024, [r // 1024 for r in s.rss], s.files, s.database) for s in samples])
    assert sql(work, "SELECT COUNT(*) FROM {t}claims") == [(0,)]
    work.workers = [worker for worker in work.workers if worker not in growth.killed]
    assert_settled(work, probe, growth.ids)
    _workers_that_are_gone_leave_the_list(work)


def _share(total: int, step: int) -> int:
    """So many in this step that the steps together make the total."""
    return math.floor(total * step / STEPS) - math.floor(total * (step - 1) / STEPS)


def _settled(growth: Growth, first: Sample) -> Sample | None:
    """The last sample, once connections and files are as many as after the warm-up."""
    now = growth.sample()
    files = all(new <= old + 2 for new, old in zip(now.files, first.files, strict=True))
    return now if files and now.database <= first.database + 2 else None


def _slope(points: Sequence[tuple[int, int]]) -> float:
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def _workers_that_are_gone_leave_the_list(work: Bench) -> None:
    """Killed ones are shown as gone, until they have not been heard of for an hour (docs/workers.md)."""
    listed = tandemq(work.settings, "workers", "--json").json["items"]
    assert sorted(w["name"] for w in listed) == ["steady"] + ["victim"] * (1 + KILLS)
    eventually(lambda: [w.alive for w in work.app.workers()].count(True) == 2, 20)
    gone = [w.id for w in work.app.workers() if not w.alive]
    assert len(gone) == KILLS
    for worker_id in gone:
        sql(
            work,
            "UPDATE {t}workers SET heartbeat_at = heartbeat_at - INTERVAL 1 HOUR WHERE id = :id",
            id=worker_id,
        )
    tandemq(work.settings, "reconcile", "--once")
    assert sorted(w.name for w in work.app.workers()) == ["steady", "victim"]
