"""SAQ on Redis: 2 worker processes, concurrency 20, hiredis; jobs dropped when done (ttl -1). No bulk enqueue.

32 producers are 32 coroutines. The connections are not limited to redis-py's 100: SAQ loses jobs when they run out.
"""

from __future__ import annotations

import os
from typing import Any

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue

from benchmarks import marks

CONCURRENCY = 20
redis = Redis.from_url(os.environ["BENCH_REDIS_URL"], max_connections=1000)
queue = RedisQueue(redis, name="bench", max_concurrent_ops=32)


async def noop(ctx: dict[str, Any], *, order_id: int) -> None:
    marks.noop()


async def stamp(ctx: dict[str, Any], *, order_id: int) -> None:
    marks.stamp(order_id)


settings = {"queue": queue, "functions": [noop, stamp], "concurrency": CONCURRENCY}


async def enqueue(order_id: int) -> None:
    await queue.enqueue("noop", order_id=order_id, ttl=-1)


async def enqueue_stamp(order_id: int) -> None:
    await queue.enqueue("stamp", order_id=order_id, ttl=-1)


enqueue_bulk = None
