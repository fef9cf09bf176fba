"""Procrastinate on PostgreSQL: 2 workers, concurrency 30 each, LISTEN/NOTIFY, finished jobs kept (its default).

Enqueue, one at a time: ``defer`` on its psycopg pool, and ``defer_async`` on an async pool with 32 coroutines; the
faster counts. Bulk: ``batch_defer``, 1,000 a call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.jobs import JobDeferrer

from benchmarks import marks

DSN = os.environ["BENCH_POSTGRES_URL"]
app = App(connector=PsycopgConnector(conninfo=DSN, min_size=4, max_size=32))


@app.task(name="noop")
async def noop(order_id: int) -> None:
    marks.noop()


@app.task(name="stamp")
async def stamp(order_id: int) -> None:
    marks.stamp(order_id)


_sync = App(connector=SyncPsycopgConnector(conninfo=DSN, min_size=4, max_size=32))
_opened: set[str] = set()


def _jobs(name: str) -> JobDeferrer:
    if "sync" not in _opened:
        _opened.add("sync")
        _sync.open()
    return _sync.configure_task(name)


def enqueue(order_id: int) -> None:
    _jobs("noop").defer(order_id=order_id)


async def aenqueue(order_id: int) -> None:
    if "async" not in _opened:
        _opened.add("async")  # the warm-up is first, and alone
        await app.open_async()
    await noop.defer_async(order_id=order_id)


def enqueue_stamp(order_id: int) -> None:
    _jobs("stamp").defer(order_id=order_id)


def enqueue_bulk(order_ids: Iterable[int]) -> None:
    _jobs("noop").batch_defer(*({"order_id": i} for i in order_ids))
