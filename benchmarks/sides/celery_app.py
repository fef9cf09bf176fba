"""Celery on Redis: 2 workers of the solo pool, prefetch 128, no results, no events, no gossip, mingle or heartbeat.

A solo worker runs its tasks itself: nearly twice as fast as a prefork pool of 2 with tasks this short.
Acknowledged early (its default, and its fastest). 32 broker connections for 32 threads. It has no bulk enqueue.
"""

from __future__ import annotations

import os

from celery import Celery

from benchmarks import marks

app = Celery("bench", broker=os.environ["BENCH_REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=128,
    broker_pool_limit=32,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(order_id: int) -> None:
    marks.noop()


@app.task(name="stamp")
def stamp(order_id: int) -> None:
    marks.stamp(order_id)


def enqueue(order_id: int) -> None:
    noop.delay(order_id=order_id)


def enqueue_stamp(order_id: int) -> None:
    stamp.delay(order_id=order_id)


enqueue_bulk = None
