"""RQ on Redis: a pool of 2 SimpleWorkers (no fork per job), JSON payloads, no results kept.

``rq worker-pool -n 2 -w rq.worker.SimpleWorker``; bulk: ``enqueue_many`` of ``prepare_data``, 1,000 a call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from redis import Redis
from rq import Queue

from benchmarks import marks

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_REDIS_URL"]))


def noop(order_id: int) -> None:
    marks.noop()


def stamp(order_id: int) -> None:
    marks.stamp(order_id)


def enqueue(order_id: int) -> None:
    queue.enqueue(noop, kwargs={"order_id": order_id}, result_ttl=0)


def enqueue_stamp(order_id: int) -> None:
    queue.enqueue(stamp, kwargs={"order_id": order_id}, result_ttl=0)


def enqueue_bulk(order_ids: Iterable[int]) -> None:
    queue.enqueue_many([Queue.prepare_data(noop, kwargs={"order_id": i}, result_ttl=0) for i in order_ids])
