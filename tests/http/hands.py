"""What a worker of another language has in its hands: a client that claims, and what the tests ask of its answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx
import redis

from tandemq import TandemQ
from tandemq.core.task import Level
from tandemq.http.waiting import WaitingRoom
from tandemq.redeliver import lost_judge
from tests.api import ServedApi
from tests.waiting import eventually

ME = "worker-1"
LOW = Level("default", 0)


def enqueue(client: httpx.Client, task_type: str = "a", **options: Any) -> int:
    """Enqueue one task over HTTP; its id."""
    answer = client.post("/jobs", json={"type": task_type, "payload": {}, **options})
    assert answer.status_code == 201, answer.text
    task_id: int = answer.json()["id"]
    return task_id


def claim(client: httpx.Client, **options: Any) -> list[dict[str, Any]]:
    """Claim; the jobs, none for 204."""
    answer = client.post("/jobs/claim", json={"worker_id": ME, **options})
    assert answer.status_code in {200, 204}, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"] if answer.status_code == 200 else []
    assert (answer.status_code == 204) == (not jobs)
    return jobs


def held(client: httpx.Client, **options: Any) -> tuple[int, dict[str, Any]]:
    """The id of a new task that this client holds, and the proof that it does."""
    lease = {"lease": options.pop("lease")} if "lease" in options else {}
    enqueue(client, **options)
    (job,) = claim(client, **lease)
    return job["id"], {"lease_token": job["lease_token"]}


def send(client: httpx.Client, what: str, task_id: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """POST /jobs/{id}/{what}; the status and the body of the answer."""
    answer = client.post(f"/jobs/{task_id}/{what}", json=body)
    return answer.status_code, answer.json()


def expire(app: TandemQ, task_id: int) -> bool:
    """What a reconciler does with a claim past its end: whether it was."""
    found = app.store.holding(task_id)
    assert found is not None
    judge = lost_judge(Random(1), "its worker never came back")
    ended = app.store.end_lease(found.lease.token, [task_id], judge=judge, worker_id=ME, expired_only=True)
    return ended is not None and bool(ended.moved)


def room(api: ServedApi) -> WaitingRoom:
    """The waiting room of a served API."""
    return api.api.waiting_room


def polls(api: ServedApi, pool: ThreadPoolExecutor, **options: Any) -> Future[list[dict[str, Any]]]:
    """A long poll; it waits already when this comes back."""
    before = len(room(api))

    def ask() -> list[dict[str, Any]]:
        with api.client() as client:
            return claim(client, **{"wait": 25, **options})

    asked = pool.submit(ask)
    eventually(lambda: len(room(api)) > before or asked.done())
    return asked


def listed(api: ServedApi, level: Level = LOW) -> list[int]:
    """The ready list, the id that is popped next first."""
    with redis.Redis.from_url(api.app.settings.redis_url) as client:
        key = f"{api.app.settings.namespace}:{{{level.queue}}}:ready:{level.priority}"
        found: Any = client.lrange(key, 0, -1)
    return [int(entry) for entry in reversed(found)]


def is_untouched(api: ServedApi, task_id: int) -> bool:
    """Nobody holds it, no attempt is used, and it is the next in its list."""
    task = api.app.get(task_id)
    assert task is not None
    nobody = api.app.store.expired_claims(10) == []
    return (task.state, task.attempts) == ("ready", 0) and listed(api)[:1] == [task_id] and nobody


def request(**options: Any) -> bytes:
    """A claim as it goes over the wire."""
    body = json.dumps({"worker_id": ME, **options}).encode()
    head = f"POST /jobs/claim HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


@contextmanager
def gone_client(api: ServedApi, **options: Any) -> Iterator[socket.socket]:
    """A claim on a connection of its own, without a reader."""
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(request(**options))
        yield connection
