"""taskiq on a Redis list: 2 processes, 100 tasks at a time, prefetch 100, no results, acknowledged when received.

A list loses the tasks that a killed worker had taken; its stream broker, which does not, is slower. 32 producers are 32
coroutines. No bulk enqueue.
"""

from __future__ import annotations

import os

from taskiq_redis import ListQueueBroker

from benchmarks import marks

broker = ListQueueBroker(os.environ["BENCH_REDIS_URL"], queue_name="bench", max_connection_pool_size=40)


@broker.task(task_name="noop")
async def noop(order_id: int) -> None:
    marks.noop()


@broker.task(task_name="stamp")
async def stamp(order_id: int) -> None:
    marks.stamp(order_id)


async def enqueue(order_id: int) -> None:
    await noop.kiq(order_id=order_id)


async def enqueue_stamp(order_id: int) -> None:
    await stamp.kiq(order_id=order_id)


enqueue_bulk = None
