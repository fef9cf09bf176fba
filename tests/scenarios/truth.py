"""What has to hold whatever the scenario was, read from the servers themselves and from the probe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC
from typing import Any

import redis
import sqlalchemy as sa

from tests import recipes
from tests.probe import Probe
from tests.waiting import eventually
from tests.workers import Bench

#: The pace of the scenarios: leases of 3 s, renewed every second, a pass of the reconciler every 2 s.
PACE = {"lease_s": 3.0, "heartbeat_s": 1.0, "reconcile_s": 2.0, "mover_s": 0.2, "grace_s": 2.0}
#: The same where no lease is to run out: none that a stall of the machine could end.
CALM = PACE | {"lease_s": 30.0}
#: The longest time that a task may stay unseen after a fault has ended.
T_REC = 10.0
#: What a busy machine of two cores may add to any time; one that is slow just now adds more: ``weather.slack_s``.
SLACK = 1.0


def sql(work: Bench, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own; ``{t}`` is the table prefix. Its rows, if it has any."""
    engine = sa.create_engine(
        recipes.administrator(work.settings.database_url), poolclass=sa.NullPool, connect_args={"charset": "utf8mb4"}
    )
    text = statement.replace("{t}", work.settings.table_prefix)
    with engine.begin() as connection:
        answer = connection.execute(sa.text(text), params)
        return [tuple(row) for row in answer] if answer.returns_rows else []


def lease_ends(work: Bench, worker_name: str) -> list[float]:
    """When the leases that workers of this name hold will run out: the earliest first, as seconds since the epoch."""
    rows = sql(work, "SELECT expires_at FROM {t}claims WHERE worker_id LIKE :like", like=f"{worker_name}-%")
    return sorted(at.replace(tzinfo=UTC).timestamp() for (at,) in rows)


def row_count(work: Bench) -> int:
    """How many tasks are stored."""
    return int(sql(work, "SELECT COUNT(*) FROM {t}tasks")[0][0])


def redis_ids(work: Bench) -> list[int]:
    """Every id in a list or sorted set of the namespace, as often as it is there."""
    found: list[bytes] = []
    with redis.Redis.from_url(recipes.administrator(work.settings.redis_url)) as client:
        for key in client.scan_iter(f"{work.settings.namespace}:*"):
            kind = client.type(key)
            if kind == b"list":
                found += client.lrange(key, 0, -1)
            elif kind == b"zset":
                found += client.zrange(key, 0, -1)
    return sorted(int(entry) for entry in found)


def push_by_hand(work: Bench, ids: Iterable[int], queue: str = "default", priority: int = 0) -> None:
    """LPUSH ids as a producer would, whatever their rows say."""
    with redis.Redis.from_url(recipes.administrator(work.settings.redis_url)) as client:
        client.lpush(f"{work.settings.namespace}:{{{queue}}}:ready:{priority}", *ids)


def assert_settled(work: Bench, probe: Probe, ids: Iterable[int]) -> None:
    """Every accepted task has ended, never began more often than is on record, and left nothing behind in Redis.

    The workers that were not told to stop still run, and none has written a traceback of its own.
    """
    rows = sql(work, "SELECT id, status, attempts, replays FROM {t}tasks")
    assert {row[0] for row in rows} >= set(ids)
    unended = [row for row in rows if row[1] not in {"succeeded", "dead", "cancelled"}]
    assert not unended, f"{len(unended)} rows have not ended: {unended[:5]}"
    starts = probe.starts()
    handed_back = Counter(i for (i,) in sql(work, "SELECT task_id FROM {t}task_attempts WHERE outcome = 'interrupted'"))
    counted = {task_id: attempts + handed_back[task_id] for task_id, _, attempts, replays in rows if not replays}
    too_often = {i: (starts[i], n) for i, n in counted.items() if starts[i] > n}
    assert not too_often, f"begun more often than is on record (starts, attempts): {too_often}"
    eventually(lambda: redis_ids(work) == [], message=lambda: f"left in Redis: {redis_ids(work)[:10]}")
    for worker in work.workers:
        assert worker.process.poll() in {None, 0}, worker.text()[-3000:]
        assert "Traceback" not in worker.text(), worker.text()[-3000:]
