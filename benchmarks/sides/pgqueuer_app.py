"""pgqueuer on PostgreSQL: durable tables (its default), ``pgq autovac`` applied, batches of 100, uvloop, 2 processes.

Enqueue, one at a time: ``SyncQueries`` on one psycopg connection, and ``Queries`` on an asyncpg pool of 16 with 32
coroutines; the faster counts. Bulk: the list form of ``enqueue``, 1,000 a call, on asyncpg.
Its NOTIFY goes out with the commit; a finished job is deleted and logged, in batches of 100.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer import PgQueuer, run
from pgqueuer.db import AsyncpgPoolDriver, SyncPsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries, SyncQueries

from benchmarks import marks

DSN = os.environ["BENCH_POSTGRES_URL"]
POOL = 16


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """What ``pgqueuer.run`` is given."""
    async with asyncpg.create_pool(DSN, min_size=4, max_size=4) as pool:
        queuer = PgQueuer.from_asyncpg_pool(pool)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            json.loads(job.payload or b"")
            marks.noop()

        @queuer.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            marks.stamp(json.loads(job.payload or b"")["order_id"])

        yield queuer


def _payload(order_id: int) -> bytes:
    return json.dumps({"order_id": order_id}).encode()


_made: dict[str, Any] = {}


def _sync() -> SyncQueries:
    if "sync" not in _made:
        _made["sync"] = SyncQueries(SyncPsycopgDriver(psycopg.connect(DSN, autocommit=True)))
    return _made["sync"]


async def _async() -> Queries:
    if "async" not in _made:
        pool = await asyncpg.create_pool(DSN, min_size=POOL, max_size=POOL)
        _made.setdefault("async", Queries(AsyncpgPoolDriver(pool)))  # the warm-up is first, and alone
    return _made["async"]


def enqueue(order_id: int) -> None:
    _sync().enqueue("noop", _payload(order_id))


async def aenqueue(order_id: int) -> None:
    await (await _async()).enqueue("noop", _payload(order_id))


def enqueue_stamp(order_id: int) -> None:
    _sync().enqueue("stamp", _payload(order_id))


async def enqueue_bulk(order_ids: Iterable[int]) -> None:
    payloads: list[bytes | None] = [_payload(i) for i in order_ids]
    await (await _async()).enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))


if __name__ == "__main__":
    # What ``pgq run`` does; that itself fails in 1.6.0 (its --log-level is a text where an enum is wanted).
    uvloop.run(run(worker, batch_size=100))
