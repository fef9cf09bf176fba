"""Every statement and every Redis command of the ceiling: the one place to change when tandemq's hot path changes.

Copied by hand from the general log and from MONITOR. ``tests/unit/test_benchmarks.py`` compares the texts with
``tandemq.store.statements``, ``benchmarks.traffic`` what really arrives at the servers, batch by batch.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis

from benchmarks.ceiling.session import Session, Statement

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
    " CASE WHEN expires_at <= UTC_TIMESTAMP(6) THEN -1 ELSE"
    " COALESCE(TIMESTAMPDIFF(MICROSECOND, run_at, UTC_TIMESTAMP(6)), 0) END FROM tandemq_tasks"
    " FORCE INDEX (PRIMARY) WHERE id IN ({ids})"
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
BEGIN, COMMIT = ("BEGIN", ()), ("COMMIT", ())
#: What tandemq's benchmark application registers: a claim of few ids names it.
KNOWN = " AND task_type IN ('noop', 'stamp') AND queue IN ('default') AND expires_at > UTC_TIMESTAMP(6)"
FREE_SLOTS = 8
#: A BRPOP that takes longer has waited: its entry is claimed without a look for more.
WAITED_S = 0.003
#: How often the sets of names are told.
REGISTER_AGAIN_S = 1.0
#: id, queue, priority, task_type, payload, ...
Row = Sequence[Any]


def new_session() -> Session:
    """A connection as tandemq sets one up."""
    return Session(ISOLATION, SESSION)


def _expect(counter: str, n: int) -> Statement:
    return f"SET @tandemq_expected = IF({counter}() = {n}, 0, (SELECT 1 UNION ALL SELECT 2))", ()


# Producing


def insert(session: Session, kind: str, payloads: Sequence[str]) -> Sequence[int]:
    """Rows, committed; their ids."""
    params = [value for payload in payloads for value in ("default", kind, payload, "", 0, 3, None)]
    rows = (INSERT + ",".join([ROW] * len(payloads)), params)
    if len(payloads) == 1:
        session.send(rows)  # commits by itself
        return [session.first_id]
    *_, ((step,),) = session.send(BEGIN, rows, ("SELECT @@auto_increment_increment", ()))
    first = session.first_id
    session.send(COMMIT)
    return range(first, first + int(step) * len(payloads), int(step))


_registered_until = 0.0


def push(client: redis.Redis, ids: Sequence[int]) -> None:
    """Ids of rows just inserted, at most 1,000."""
    global _registered_until
    now = time.monotonic()
    if now < _registered_until:
        client.lpush(f"{READY}0", *ids)
        return
    pipe = client.pipeline(transaction=False)
    pipe.sadd("tandemq:queues", "default")
    pipe.sadd("tandemq:{default}:levels", 0)
    pipe.lpush(f"{READY}0", *ids)
    pipe.execute()
    _registered_until = now + REGISTER_AGAIN_S


# Working


def pop(client: redis.Redis, limit: int) -> list[int]:
    """Ready ids; waits half a second for the first."""
    started = time.monotonic()
    popped = client.brpop(LEVELS, timeout=0.5)
    if popped is None:
        return []
    key, first = popped
    rest = [] if time.monotonic() - started > WAITED_S else client.rpop(key, limit - 1) or []
    return [int(i) for i in (first, *rest)]


def claim(session: Session, ids: Sequence[int]) -> tuple[int, Sequence[Row]]:
    """The token and the rows that are claimed under it."""
    token = random.getrandbits(63)
    lock = (LOCK.format(ids=_list(ids)), ())
    if len(ids) <= FREE_SLOTS:
        move = (CLAIM.format(ids=_list(ids)) + KNOWN, (token, WORKER))
        keep = (INSERT_CLAIM, (token, WORKER, 30_000_000, _list(ids)))
        n = len(ids)
        packet = (BEGIN, lock, _expect("FOUND_ROWS", n), move, _expect("ROW_COUNT", n), keep, COMMIT)
        return token, session.send(*packet)[1]
    _, rows = session.send(BEGIN, lock)
    if not rows:
        session.send(COMMIT)
        return token, rows
    claimed = _list([row[0] for row in rows])
    move, keep = (CLAIM.format(ids=claimed), (token, WORKER)), (INSERT_CLAIM, (token, WORKER, 30_000_000, claimed))
    session.send(move, keep, COMMIT)
    return token, rows


def finish(session: Session, token: int, rows: Sequence[Row]) -> None:
    """A whole batch, succeeded."""
    move = (FINISH.format(ids=_list([row[0] for row in rows]), token=token), ())
    counts = [
        (COUNT, (queue, kind, "succeeded", os.getpid() % 16, n))
        for (queue, kind), n in Counter((row[1], row[3]) for row in rows).items()
    ]
    session.send(BEGIN, move, _expect("ROW_COUNT", len(rows)), (DELETE_CLAIM, (token,)), *counts, COMMIT)


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))
