"""Who waits in a BRPOP, as Redis itself tells it."""

from __future__ import annotations

from collections import Counter

import psutil
import redis

from tests.waiting import eventually
from tests.workers import Worker


def blocked_clients(client: redis.Redis, worker: Worker) -> dict[int, Counter[int]]:
    """Per child process of the worker: the ids of its connections that are blocked right now."""
    waiting = {int(c["addr"].rpartition(":")[2]): int(c["id"]) for c in client.client_list() if "b" in c["flags"]}
    found = {}
    for child in worker.children():
        try:
            ports = [c.laddr.port for c in child.net_connections(kind="tcp")]
        except psutil.Error:
            continue
        found[child.pid] = Counter(waiting[port] for port in ports if port in waiting)
    return found


def wait_until_blocked(client: redis.Redis, worker: Worker, processes: int = 1) -> None:
    """Wait until every child is up and waits for work."""

    def look() -> bool:
        waiting = blocked_clients(client, worker)
        return len(waiting) == processes and all(waiting.values())

    eventually(look, 90, worker.text)
