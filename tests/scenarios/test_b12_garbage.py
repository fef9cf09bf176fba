"""B12: what is no task id in a list harms nobody.

Required: between garbage of every kind, and the id of a task that is done, good tasks run at their normal speed in the
same process; each bad entry is named once, shortened, and no row changes. A string where a list should be costs that
one list alone: it is named in the log, nothing spins, other queues and levels go on, and when the string is deleted the
tasks run within the recovery time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.truth import SLACK, T_REC, assert_settled, sql
from tests.waiting import eventually
from tests.workers import Bench, Worker

pytestmark = pytest.mark.scenario

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
    eventually(lambda: all((client.get(key) or b"").endswith(b":ready") for key in keys), 10)


def test_garbage_between_good_ids(work: Bench, probe: Probe, redis_client: redis.Redis, tmp_path: Path) -> None:
    worker = work.worker("-c", "1").ready()
    (child,) = worker.children()
    (done,) = work.ids("noop", 1)
    assert work.ended([done]) == {"succeeded": 1}
    wait_until_made(work, redis_client, "default")
    before = rows(work, done)
    bad = [*GARBAGE, str(done).encode(), b"999999999"]  # and an id without a row
    gate = tmp_path / "gate"
    busy = work.app.enqueue("hold", {"until": str(gate)})
    eventually(lambda: probe.starts()[busy.id], 10, worker.text)
    good = []
    for n in range(20):
        good += work.ids("noop", 1)
        redis_client.lpush(ready_key(work), *bad[n % len(bad) :][:2])
    assert redis_client.llen(ready_key(work)) >= 40
    gate.touch()

    assert work.ended([busy.id, *good]) == {"succeeded": 21}

    probe.assert_once([done, busy.id, *good])
    (woken,) = [m.at for m in probe.marks("end", busy.id)]
    assert max(m.at for m in probe.marks("end")) - woken < 1.0 + SLACK
    eventually(lambda: redis_client.llen(ready_key(work)) == 0, 5)
    eventually(lambda: all(len(naming(worker, shown)) == 1 for shown in GARBAGE.values()), 5, worker.text)
    assert max(len(line) for line in worker.text().splitlines()) < 300
    assert rows(work, done) == before
    assert sql(work, "SELECT COUNT(*) FROM {t}tasks") == [(22,)]
    assert [p.pid for p in worker.children()] == [child.pid]
    assert_settled(work, probe, [done, busy.id, *good])


def test_a_flood_of_garbage_is_not_a_flood_of_lines(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    worker = work.worker("-c", "1").ready()
    first = work.ids("noop", 1)
    assert work.ended(first) == {"succeeded": 1}
    wait_until_made(work, redis_client, "default")
    redis_client.lpush(ready_key(work), *[f"junk {n}" for n in range(20_000)])
    (good,) = work.ids("noop", 1)
    assert work.ended([good], 20) == {"succeeded": 1}
    assert redis_client.llen(ready_key(work)) == 0
    eventually(lambda: len(naming(worker, "junk")) >= 100, 5)
    assert len(worker.text().splitlines()) < 200
    assert_settled(work, probe, [*first, good])


def test_a_string_where_a_list_should_be(work: Bench, probe: Probe, redis_client: redis.Redis) -> None:
    worker = work.worker("-q", "default,other", "-c", "2").ready()
    (child,) = worker.children()
    first = [*work.ids("noop", 1), *work.ids("noop", 1, queue="other")]
    assert work.ended(first) == {"succeeded": 2}
    wait_until_made(work, redis_client, "default", "other")
    redis_client.set(ready_key(work), "not a list")
    redis_client.set(f"{work.settings.namespace}:{{default}}:delayed:10", "no sorted set either")
    waiting = [*work.ids("noop", 5), *work.ids("noop", 5, priority="medium", delay=0.5)]
    others = [*work.ids("noop", 10, queue="other"), *work.ids("noop", 10, priority="high")]
    assert work.ended(others, 5) == {"succeeded": 20}
    assert not {m.task_id for m in probe.marks()} & set(waiting[:5])
    named = eventually(lambda: naming(worker, ready_key(work)), 5, worker.text)
    assert any("holds another type" in line for line in named), named
    assert_idle(worker.children()[0].cpu_times, redis_client)
    assert len(worker.text().splitlines()) < 20, worker.text()

    redis_client.delete(ready_key(work))

    assert work.ended(waiting, T_REC) == {"succeeded": 10}
    probe.assert_once([*first, *others, *waiting])
    assert [p.pid for p in worker.children()] == [child.pid]
    assert_settled(work, probe, waiting)


def assert_idle(cpu_times: Callable[[], object], client: redis.Redis, over_s: float = 1.0) -> None:
    """Over this time a process uses hardly any processor time, and Redis hears little."""
    user, system, *_ = cpu_times()  # type: ignore[misc]
    heard = client.info("stats")["total_commands_processed"]
    started = time.monotonic()
    eventually(lambda: time.monotonic() - started > over_s, 2 * over_s)
    user_after, system_after, *_ = cpu_times()  # type: ignore[misc]
    assert user_after - user + system_after - system < 0.25 * over_s
    assert client.info("stats")["total_commands_processed"] - heard < 500 * over_s
