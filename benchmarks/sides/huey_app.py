"""Huey on Redis: BRPOP instead of polling, no results kept; 2 consumers of 4 threads each, no periodic tasks.

Huey pops a task before it runs it: killed then, the task is lost.
It has no bulk enqueue.
"""

from __future__ import annotations

import os

from huey import RedisHuey

from benchmarks import marks

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS_URL"], blocking=True, results=False, store_none=False)


@huey.task(name="noop")
def noop(order_id: int) -> None:
    marks.noop()


@huey.task(name="stamp")
def stamp(order_id: int) -> None:
    marks.stamp(order_id)


enqueue = noop
enqueue_stamp = stamp
enqueue_bulk = None
