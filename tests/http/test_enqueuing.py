"""``POST /jobs``: 201, 200, 409, and every field refused by name."""

from __future__ import annotations

import httpx

from tandemq import Filter
from tests.api import ServedApi


def test_a_task_is_stored_and_shown(client: httpx.Client, api: ServedApi) -> None:
    answer = client.post("/jobs", json={"type": "mail.send", "payload": {"to": "a"}, "priority": "high"})
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert job == api.app.get(job["id"]).to_json()
    assert (job["type"], job["payload"], job["priority"], job["status"]) == ("mail.send", {"to": "a"}, 20, "pending")


def test_a_known_key_finds_its_task_and_another_request_is_a_conflict(client: httpx.Client) -> None:
    request = {"type": "charge", "payload": {"order": 99}, "idempotency_key": "charge-99"}
    first = client.post("/jobs", json=request)
    again = client.post("/jobs", json=request)
    other = client.post("/jobs", json=request | {"payload": {"order": 98}})
    assert [first.status_code, again.status_code, other.status_code] == [201, 200, 409]
    assert first.json()["id"] == again.json()["id"] == other.json()["task_id"]
    assert other.headers["content-type"] == "application/problem+json"
    assert other.json()["field"] == "idempotency_key"


def test_a_fault_is_named_and_nothing_is_stored(client: httpx.Client, api: ServedApi) -> None:
    for fields, culprit in [
        ({}, "type"),
        ({"type": "a b"}, "type"),
        ({"type": "a", "payload": []}, "payload"),
        ({"type": "a", "queue": "no queue"}, "queue"),
        ({"type": "a", "colour": 1}, "colour"),
    ]:
        answer = client.post("/jobs", json=fields)
        assert (answer.status_code, answer.json()["field"]) == (400, culprit), answer.text
    assert api.app.admin.find(Filter()).items == ()
