"""The ceiling: the SQL and the Redis commands that tandemq sends per batch, in a bare loop without tandemq.

``python -m benchmarks.ceiling`` is one worker process: a thread that pops and claims batches of 200, a thread that
finishes them. No retries, no renewals, no reconciler, no mover. Copied by hand from the general log and from MONITOR of
a drain; ``tests/unit/test_benchmarks.py`` compares the claim and the finish with ``tandemq.store.statements``.
"""

from __future__ import annotations

import json
import os
import queue
import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pymysql
import redis

from benchmarks import marks

BATCH = 200
WORKER = "ceiling"
READY = "tandemq:{default}:ready:"
LEVELS = [f"{READY}{priority}" for priority in (30, 20, 10, 0)]
SESSION = (
    "SET SESSION time_zone = '+00:00', SESSION wait_timeout = 60,"
    " SESSION innodb_lock_wait_timeout = 3, SESSION lock_wait_timeout = 5,"
    " SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
)
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
INSERT = (
    "INSERT INTO tandemq_tasks (queue, task_type, payload, options, priority, max_retries, idempotency_key,"
    " run_at, expires_at, created_at, updated_at) VALUES "
)
ROW = "(%s,%s,%s,%s,%s,%s,%s,UTC_TIMESTAMP(6),'9999-12-31 00:00:00.000000',UTC_TIMESTAMP(6),UTC_TIMESTAMP(6))"
LOCK = (
    "SELECT id, queue, priority, task_type, payload, options, attempts, max_retries, replays, fence,"
    " expires_at <= UTC_TIMESTAMP(6) FROM tandemq_tasks FORCE INDEX (PRIMARY) WHERE id IN ({ids})"
    " AND status = 'pending' AND run_at <= UTC_TIMESTAMP(6) ORDER BY id FOR UPDATE SKIP LOCKED"
)
CLAIM = (
    "UPDATE tandemq_tasks FORCE INDEX (PRIMARY) SET status = 'running', attempts = attempts + 1, fence = fence + 1,"
    " lease_token = %s, worker_id = %s, started_at = UTC_TIMESTAMP(6), updated_at = UTC_TIMESTAMP(6)"
    " WHERE id IN ({ids}) AND status = 'pending'"
)
INSERT_CLAIM = (
    "INSERT INTO tandemq_claims (lease_token, worker_id, expires_at, ids)"
    " VALUES (%s, %s, (UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND), %s)"
)
FINISH = (
    "UPDATE tandemq_tasks FORCE INDEX (PRIMARY) SET status = 'succeeded', ended = 1, completed_at = UTC_TIMESTAMP(6),"
    " updated_at = UTC_TIMESTAMP(6) WHERE id IN ({ids}) AND status = 'running' AND lease_token = {token}"
)
DELETE_CLAIM = "DELETE FROM tandemq_claims WHERE lease_token = %s"
COUNT = (
    "INSERT INTO tandemq_task_counts (queue, task_type, hour, outcome, shard, n)"
    " VALUES (%s,%s,(UTC_DATE() + INTERVAL HOUR(UTC_TIMESTAMP()) HOUR),%s,%s,%s)"
    " ON DUPLICATE KEY UPDATE n = n + VALUES(n)"
)


def connect() -> pymysql.Connection[Any]:
    connection = pymysql.connect(
        host="127.0.0.1",
        port=int(os.environ["BENCH_MYSQL_PORT"]),
        user="root",
        database=os.environ["BENCH_DATABASE"],
        charset="utf8mb4",
        autocommit=False,
    )
    with connection.cursor() as cursor:
        cursor.execute(SESSION)
        cursor.execute(ISOLATION)
    return connection


def connect_redis() -> redis.Redis:
    return redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])


# Producing


class Producer:
    """One connection to each server, opened at the first use."""

    def __init__(self) -> None:
        self._connection: pymysql.Connection[Any] | None = None
        self._redis = connect_redis()

    def send(self, kind: str, order_ids: Iterable[int]) -> None:
        if self._connection is None:
            self._connection = connect()
        payloads = [json.dumps({"order_id": i}, separators=(",", ":")) for i in order_ids]
        params = [value for payload in payloads for value in ("default", kind, payload, "", 0, 3, None)]
        with self._connection.cursor() as cursor:
            cursor.execute(INSERT + ",".join([ROW] * len(payloads)), params)
            first, step = int(cursor.lastrowid), 1
            if len(payloads) > 1:
                cursor.execute("SELECT @@auto_increment_increment")
                step = int(cursor.fetchall()[0][0])
        self._connection.commit()
        pipe = self._redis.pipeline(transaction=False)
        pipe.sadd("tandemq:queues", "default")
        pipe.sadd("tandemq:{default}:levels", 0)
        pipe.lpush(f"{READY}0", *range(first, first + step * len(payloads), step))
        pipe.execute()


_producer: list[Producer] = []


def _send(kind: str, order_ids: Iterable[int]) -> None:
    if not _producer:
        _producer.append(Producer())
    _producer[0].send(kind, order_ids)


def enqueue(order_id: int) -> None:
    _send("noop", [order_id])


def enqueue_stamp(order_id: int) -> None:
    _send("stamp", [order_id])


def enqueue_bulk(order_ids: Iterable[int]) -> None:
    _send("noop", order_ids)


# Working

Batch = tuple[int, list[tuple[Any, ...]]]


def claim(connection: pymysql.Connection[Any], client: redis.Redis) -> Batch | None:
    popped = client.brpop(LEVELS, timeout=0.5)
    if popped is None:
        return None
    key, first = popped
    ids = [int(i) for i in (first, *(client.rpop(key, BATCH - 1) or ()))]
    token, listed = random.getrandbits(63), ",".join(map(str, ids))
    with connection.cursor() as cursor:
        cursor.execute(LOCK.format(ids=listed))
        rows = list(cursor.fetchall())
        if rows:
            claimed = ",".join(str(row[0]) for row in rows)
            cursor.execute(CLAIM.format(ids=claimed), (token, WORKER))
            cursor.execute(INSERT_CLAIM, (token, WORKER, 30_000_000, claimed))
    connection.commit()
    return (token, rows) if rows else None


def finish(connection: pymysql.Connection[Any], token: int, rows: Sequence[tuple[Any, ...]]) -> None:
    counts = Counter((row[1], row[3]) for row in rows)
    with connection.cursor() as cursor:
        cursor.execute(FINISH.format(ids=",".join(str(row[0]) for row in rows), token=token))
        cursor.execute(DELETE_CLAIM, (token,))
        for (name, kind), n in counts.items():
            cursor.execute(COUNT, (name, kind, "succeeded", os.getpid() % 16, n))
    connection.commit()
    marks.noop(counts["default", "noop"])


def run(batch: Batch) -> None:
    """The task itself: nothing, but for the latency measurement."""
    for row in batch[1]:
        if row[3] == "stamp":
            marks.stamp(json.loads(row[4])["order_id"])


def main() -> None:
    ready: queue.Queue[Batch] = queue.Queue(maxsize=3)

    def finishing() -> None:
        connection = connect()
        while True:
            finish(connection, *ready.get())

    threading.Thread(target=finishing, daemon=True).start()
    connection, client = connect(), connect_redis()
    while True:
        batch = claim(connection, client)
        if batch:
            run(batch)
            ready.put(batch)


if __name__ == "__main__":
    main()
