"""``POST /jobs``: 201, 200, 409, and every field refused by name."""

from __future__ import annotations

import httpx
import pytest

from tandemq import Filter, RetryPolicy
from tests.api import ServedApi
from tests.scenarios.truth import redis_ids


def test_a_task_is_stored_and_shown(client: httpx.Client, api: ServedApi) -> None:
    answer = client.post("/jobs", json={"type": "mail.send", "payload": {"to": "a"}, "priority": "high"})
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert job == api.app.get(job["id"]).to_json()
    assert (job["type"], job["payload"], job["priority"], job["status"]) == ("mail.send", {"to": "a"}, 20, "pending")
    assert redis_ids(api.app) == [job["id"]]


@pytest.mark.parametrize("key", [{}, {"idempotency_key": "schlüssel"}])
def test_what_is_answered_is_what_is_stored(client: httpx.Client, api: ServedApi, key: dict[str, str]) -> None:
    # Answered from what was sent and the times of the row: every kind of time, alone and side by side.
    api.app.queues.set_policy("slow", RetryPolicy(max_retries=7, backoff=[1, 2]), reason="a test")
    bodies = [
        {"type": "a"},
        {"type": "a", "payload": {"é": [1, 2.5, None, "🦀", {"x": "</script>"}]}, "queue": "slow", "priority": -7},
        {"type": "a", "delay": 3600.5},
        {"type": "a", "run_at": "2040-01-01T00:00:00.000001Z"},
        {"type": "a", "run_at": "2001-01-01T00:00:00+05:45", "expires": 60},
        {"type": "a", "expires": "2041-01-01T00:00:00Z", "max_retries": 0},
        {"type": "a", "delay": 0.5, "expires": 60.25},
    ]
    for n, body in enumerate(bodies):
        more = {name: f"{value}{n}" for name, value in key.items()}
        answer = client.post("/jobs", json=body | more)
        assert answer.status_code == 201, answer.text
        stored = api.app.get(answer.json()["id"])
        assert stored is not None
        if stored.run_at < api.app.store.now():  # it has become due since
            stored = stored if answer.json()["state"] == "ready" else None
        if stored is not None:
            assert answer.json() == stored.to_json()
        assert answer.json()["idempotency_key"] == more.get("idempotency_key")
    assert client.post("/jobs", json={"type": "a", "queue": "slow"}).json()["max_retries"] == 7


def test_a_known_key_finds_its_task_and_another_request_is_a_conflict(client: httpx.Client) -> None:
    request = {"type": "charge", "payload": {"order": 99}, "idempotency_key": "charge-99"}
    first = client.post("/jobs", json=request)
    again = client.post("/jobs", json=request)
    other = client.post("/jobs", json=request | {"payload": {"order": 98}})
    assert [first.status_code, again.status_code, other.status_code] == [201, 200, 409]
    assert first.json() == again.json()
    assert first.json()["id"] == other.json()["task_id"]
    assert other.headers["content-type"] == "application/problem+json"
    assert other.json()["field"] == "idempotency_key"


def test_a_fault_is_named_and_nothing_is_stored(client: httpx.Client, api: ServedApi) -> None:
    for fields, culprit in [
        ({}, "type"),
        ({"type": "a b"}, "type"),
        ({"type": "a", "payload": []}, "payload"),
        ({"type": "a", "queue": "no queue"}, "queue"),
        ({"type": "a", "colour": 1}, "colour"),
        ({"type": "a", "idempotency_key": ["list"]}, "idempotency_key"),
        ({"type": "a", "idempotency_key": "k" * 1000}, "idempotency_key"),
    ]:
        answer = client.post("/jobs", json=fields)
        assert (answer.status_code, answer.json()["field"]) == (400, culprit), answer.text
    assert api.app.admin.find(Filter()).items == ()
