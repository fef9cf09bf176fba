"""B12: what is no task id in a list harms nobody.

Required: between garbage of every kind, and the id of a task that is done, good tasks run at their normal speed in the
same process; each bad entry is named once, shortened, and no row changes. A string where a list should be costs that
one list alone: it is named in the log, nothing spins, other queues and levels go on, and when the string is deleted the
tasks run within the recovery time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import redis

from tests.probe import Probe
from tests.scenarios.truth import SLACK, T_REC, assert_settled, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]

GARBAGE = {
    b"abc": "b'abc'",
    b"": "b''",
    b"99999999999999999999": "b'99999999999999999999'",
    b"12\n": r"b'12\n'",
    b"\xff\xfe": r"b'\xff\xfe'",
    b"-1": "b'-1'",
    b"0": "b'0'",
    b" 7": "b' 7'",
    b"x" * 2_000_000: "b'xxxxxxxxxx",
}


def ready_key(work: Bench, queue: str = "default", priority: int = 0) -> str:
    return f"{work.settings.namespace}:{{{queue}}}:ready:{priority}"


def rows(work: Bench, task_id: int) -> list[tuple[object, ...]]:
    return sql(work, "SELECT * FROM {t}tasks WHERE id = :id", id=task_id)


def naming(worker: Worker, shown: str) -> list[str]:
    """The lines of its log that hold this."""
    return [line for line in worker.text().splitlines() if shown in line]


def wait_until_made(work: Bench, client: redis.Redis, *queues: str) -> None:
    """The reconciler makes the lists of a queue that it meets anew, without what was in them; wait until it has."""
    keys = [f"{work.settings.namespace}:{{{queue}}}:generation" for queue in queues]
    eventually(lambda: all((client.get(key) or b"").endswith(b":ready") for key in keys))


def test_garbage_between_good_ids(
    work: Bench, probe: Probe, redis_client: redis.Redis, tmp_path: Path, weather: Weather
) -> None:
    worker = work.worker("-c", "1").ready()
    (child,) = worker.children()
    (done,) = work.ids("noop", 1)
    assert work.ended([done]) == {"succeeded": 1}
    wait_until_made(work, redis_client, "default")
    before = rows(work, done)
    bad = [*GARBAGE, str(done).encode(), b"999999999"]  # and an id without a row

    def run(garbage: list[bytes]) -> tuple[list[int], float]:
        """20 tasks behind one that holds the slot until all of them wait; their ids, and how long they took."""
        gate = tmp_path / f"gate-{len(garbage)}"
        ids = [work.app.enqueue("hold", {"until": str(gate)}).id]
        eventually(lambda: probe.starts()[ids[0]], message=worker.text)
        held_since = time.time()
        # By then the last BRPOP that it began with a free slot in sight has ended: nothing is popped meanwhile.
        eventually(lambda: time.time() - held_since > 1.0)
        for n in range(20):
            ids += work.ids("noop", 1)
            if garbage:
                redis_client.lpush(ready_key(work), *garbage[n % len(garbage) :][:2])
        if garbage:
            assert redis_client.llen(ready_key(work)) >= 40
        gate.touch()
        assert work.ended(ids) == {"succeeded": 21}
        ends = {m.task_id: m.at for m in probe.marks("end")}
        return ids, max(ends[i] for i in ids) - ends[ids[0]]

    clean, normal_s = run([])
    good, took_s = run(bad)

    probe.assert_once([done, *clean, *good])
    assert took_s < 1.0 + SLACK + 2 * normal_s + weather.slack_s
    eventually(lambda: redis_client.llen(ready_key(work)) == 0)
    eventually(lambda: all(len(naming(worker, shown)) == 1 for shown in GARBAGE.values()), message=worker.text)
    assert max(len(line) for line in worker.text().splitlines()) < 300
    assert rows(work, done) == before
    assert sql(work, "SELECT COUNT(*) FROM {t}tasks") == [(43,)]
    assert [p.pid for p in worker.children()] == [child.pid]
    assert_settled(work, probe, [done, *clean, *good])


def test_a_flood_of_garbage_is_not_a_flood_of_lines(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    worker = work.worker("-c", "1").ready()
    first = work.ids("noop", 1)
    assert work.ended(first) == {"succeeded": 1}
    wait_until_made(work, redis_client, "default")
    redis_client.lpush(ready_key(work), *[f"junk {n}" for n in range(20_000)])
    (good,) = work.ids("noop", 1)
    assert work.ended([good]) == {"succeeded": 1}
    eventually(lambda: redis_client.llen(ready_key(work)) == 0)
    eventually(lambda: len(naming(worker, "junk")) >= 100)
    assert len(worker.text().splitlines()) < 200
    assert_settled(work, probe, [*first, good])


def test_a_string_where_a_list_should_be(
    work: Bench, probe: Probe, redis_client: redis.Redis, weather: Weather
) -> None:
    worker = work.worker("-q", "default,other", "-c", "2").ready()
    (child,) = worker.children()
    first = [*work.ids("noop", 1), *work.ids("noop", 1, queue="other")]
    assert work.ended(first) == {"succeeded": 2}
    wait_until_made(work, redis_client, "default", "other")
    idle = load_of(child, redis_client)
    redis_client.set(ready_key(work), "not a list")
    redis_client.set(f"{work.settings.namespace}:{{default}}:delayed:10", "no sorted set either")
    waiting = [*work.ids("noop", 5), *work.ids("noop", 5, priority="medium", delay=0.5)]
    others = [*work.ids("noop", 10, queue="other"), *work.ids("noop", 10, priority="high")]
    assert work.ended(others) == {"succeeded": 20}
    assert not {m.task_id for m in probe.marks()} & set(waiting[:5])
    named = eventually(lambda: naming(worker, ready_key(work)), message=worker.text)
    assert any("holds another type" in line for line in named), named
    load = load_of(child, redis_client)
    assert load.processor < min(0.25 + 2 * idle.processor, 0.5), (idle, load)
    assert load.commands < 500
    assert len(worker.text().splitlines()) < 20, worker.text()

    redis_client.delete(ready_key(work))
    mended = time.time()

    assert work.ended(waiting) == {"succeeded": 10}
    assert max(m.at for m in probe.marks("end")) - mended < T_REC + weather.slack_s
    probe.assert_once([*first, *others, *waiting])
    assert [p.pid for p in worker.children()] == [child.pid]
    assert_settled(work, probe, waiting)


@dataclass(frozen=True)
class Load:
    """What a process and Redis do a second."""

    processor: float
    commands: float


def load_of(process: psutil.Process, client: redis.Redis, over_s: float = 1.0) -> Load:
    """Over this time."""

    def read() -> tuple[float, float, int]:
        user, system, *_ = process.cpu_times()
        return time.monotonic(), user + system, client.info("stats")["total_commands_processed"]

    at, used, heard = read()
    eventually(lambda: time.monotonic() - at > over_s)
    at_end, used_at_end, heard_at_end = read()
    return Load((used_at_end - used) / (at_end - at), (heard_at_end - heard) / (at_end - at))
