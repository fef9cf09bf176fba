"""Dramatiq on Redis: default middleware and prefetch; 2 processes of 8 threads. It has no bulk enqueue."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks import marks

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@dramatiq.actor
def noop(order_id: int) -> None:
    marks.noop()


@dramatiq.actor
def stamp(order_id: int) -> None:
    marks.stamp(order_id)


enqueue = noop.send
enqueue_stamp = stamp.send
enqueue_bulk = None
