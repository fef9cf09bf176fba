"""Dramatiq on Redis: acknowledged after the run and retried by default; its heartbeat as short as the others' lease.

What a dead worker held comes back with a "maintenance" that one command in a thousand does: idle workers would take
many minutes to do one. Here it is every tenth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from tests.chaos.peers.sides import task

URL, LEASE_S = os.environ["PEERS_REDIS_URL"], float(os.environ["PEERS_LEASE_S"])
dramatiq.set_broker(RedisBroker(url=URL, heartbeat_timeout=int(LEASE_S * 1000), maintenance_chance=100_000))


@dramatiq.actor(max_retries=20)
def work(ref: str) -> None:
    task.work(ref)


enqueue = work.send


def left() -> Iterator[tuple[str, str]]:
    """(ref, where) of every message that Redis still holds."""
    with redis.Redis.from_url(URL) as client:
        for name, where in (("default", "queue or in work"), ("default.DQ", "delayed"), ("default.XQ", "dead")):
            for raw in client.hvals(f"dramatiq:{name}.msgs"):
                yield str(json.loads(raw)["args"][0]), where
