"""Celery on Redis with what its documentation names for reliability; everything else as it comes.

``acks_late``, ``reject_on_worker_lost``, prefetch 1, cancelled (to be run again) on connection loss; the visibility
timeout as short as the lease of the others.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

import redis
from celery import Celery

from tests.chaos.peers.sides import task

URL, VISIBLE_S = os.environ["PEERS_REDIS_URL"], float(os.environ["PEERS_LEASE_S"])
app = Celery("peers", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"visibility_timeout": VISIBLE_S},
    worker_hijack_root_logger=False,
)


@app.task(name="work")
def work(ref: str) -> None:
    task.work(ref)


def enqueue(ref: str) -> None:
    work.delay(ref)


def left() -> Iterator[tuple[str, str]]:
    """(ref, where) of every message that Redis still holds."""
    with redis.Redis.from_url(URL) as client:
        for raw in client.lrange("celery", 0, -1):
            yield _ref(json.loads(raw)), "queue"
        for raw in client.hvals("unacked"):
            yield _ref(json.loads(raw)[0]), "unacked"


def _ref(message: dict[str, str]) -> str:
    return str(json.loads(base64.b64decode(message["body"]))[0][0])
