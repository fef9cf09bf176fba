"""Claims over HTTP: what is given to whom, long polls, clients and servers that go away, the end of the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import pytest

from tandemq.core.errors import StoreUnknown
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.api import ServedApi, served
from tests.healing import Tapped
from tests.http.hands import ME, claim, enqueue, is_untouched, listed, polls, room, send
from tests.waiting import eventually

LOW = Level("default", 0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For requests that take their time."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_what_a_claim_answers(client: httpx.Client, api: ServedApi) -> None:
    low, high = enqueue(client), enqueue(client, queue="other", priority="high", payload={"n": 1})
    assert claim(client, queues=["third"]) == []
    first, second = claim(client, queues=["default", "other"], max=5, lease=12.5)

    assert [first["id"], second["id"]] == [high, low]
    shape = api.app.get(high).to_json()
    assert {name: value for name, value in first.items() if name in shape} == shape
    assert set(first) - set(shape) == {"lease_token", "lease_expires_at"}
    assert first["lease_token"].endswith("-12.5")
    ends, begun = (datetime.fromisoformat(first[name]) for name in ("lease_expires_at", "claimed_at"))
    assert 12.4 < (ends - begun).total_seconds() < 14
    assert claim(client) == []
    assert [job["id"] for job in api.client().get("/jobs", params={"worker_id": ME}).json()["items"]] == [high, low]


#: What must be refused by name.
FAULTS: list[tuple[str, tuple[Any, ...]]] = [
    ("worker_id", (None, "", " x", "x" * 65, "\u00e4", 5, ["x"])),
    ("queues", ([], "default", ["a"] * 101, {})),
    ("queues[1]", (["a", "b c"], ["a", 5], ["a", ""])),
    ("types", ([], "a")),
    ("types[0]", (["a b"], [None])),
    ("max", (0, 101, "1", 1.5, True)),
    ("lease", (0, 0.05, 86_401, "30")),
    ("wait", (-1, 30.5, "1", True)),
    ("colour", (1,)),
]


def test_a_fault_is_named_and_nothing_is_claimed(client: httpx.Client, api: ServedApi) -> None:
    task_id = enqueue(client)
    for field, values in FAULTS:
        for value in values:
            body = {"worker_id": ME, field.partition("[")[0]: value}
            answer = client.post("/jobs/claim", json=body)
            assert (answer.status_code, answer.json()["field"]) == (400, field), body
    assert client.post("/jobs/claim", json={}).json()["field"] == "worker_id"
    assert client.post("/jobs/claim", json={"worker_id": ME}, params={"max": 1}).json()["field"] == "max"
    assert is_untouched(api, task_id)
    whole = {"worker_id": ME, "queues": None, "types": None, "max": 1.0, "lease": None, "wait": None}
    assert client.post("/jobs/claim", json=whole).json()["jobs"][0]["id"] == task_id


def test_a_long_poll_is_answered_when_something_comes_and_empty_after_its_time(
    api: ServedApi, client: httpx.Client, threads: ThreadPoolExecutor
) -> None:
    began = time.monotonic()
    assert claim(client, wait=0.4) == []
    assert time.monotonic() - began >= 0.4

    first, second, other = polls(api, threads), polls(api, threads), polls(api, threads, types=["b"], queues=["x"])
    one = enqueue(client)
    assert [job["id"] for job in first.result(20)] == [one]
    two, three = enqueue(client, priority="critical"), enqueue(client, "b", queue="x")
    assert [job["id"] for job in second.result(20)] == [two]
    assert [job["id"] for job in other.result(20)] == [three]
    assert len(room(api)) == 0


# servers that go away


def test_a_claim_whose_answer_was_lost_is_503_and_the_task_comes_back(api: ServedApi, client: httpx.Client) -> None:
    task_id = enqueue(client)
    store = Tapped(api.app.store)
    store.dies("claim", when="after", error=StoreUnknown("the connection broke"))
    api.app._links._given_store = store
    answer = client.post("/jobs/claim", json={"worker_id": ME})
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
    eventually(lambda: is_untouched(api, task_id))


def test_with_the_database_away_it_is_503_and_the_lists_stay_full(
    own_mysql: Callable[..., Any],
    redis_url: str,
    settings_for: Callable[..., Settings],
    threads: ThreadPoolExecutor,
) -> None:
    server = own_mysql()
    with served(settings_for(server.url(server.create_database()), redis_url)) as api, api.client() as client:
        ids = [enqueue(client) for _ in range(3)]
        waits = [polls(api, threads, queues=["other"]) for _ in range(2)]
        server.stop()
        for _ in range(3):
            assert client.post("/jobs/claim", json={"worker_id": ME, "max": 3}).status_code == 503
        assert listed(api) == ids
        api.app.broker.push(Level("other", 0), [4711])
        for wait in waits:
            with pytest.raises(AssertionError, match="unavailable"):
                wait.result(60)
        server.start()
        eventually(lambda: client.post("/jobs/claim", json={"worker_id": ME}).status_code == 200, 60)


def test_with_redis_away_due_tasks_come_from_the_database(
    own_redis: Callable[..., Any],
    mysql_url: str,
    settings_for: Callable[..., Settings],
    threads: ThreadPoolExecutor,
) -> None:
    server = own_redis()
    settings = settings_for(mysql_url, server.url(), redis_away_s=0.3)
    with served(settings) as api, api.client() as client:
        waits = polls(api, threads)
        server.stop()
        first = enqueue(client)
        assert [job["id"] for job in waits.result(60)] == [first]
        second = enqueue(client)
        assert [job["id"] for job in claim(client, wait=20)] == [second]
        status, job = send(client, "fail", second, {"worker_id": ME, "retry_after": 0})
        assert (status, job["state"]) == (200, "ready")
        assert [job["id"] for job in claim(client, wait=20)] == [second]
        server.start()
        third = enqueue(client)
        assert [job["id"] for job in claim(client, wait=20)] == [third]
