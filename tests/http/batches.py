"""Sending a batch, and what came of it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tandemq import Filter
from tests.api import ServedApi

NDJSON = {"Content-Type": "application/x-ndjson"}


def send(client: httpx.Client, form: str, items: list[Any]) -> list[dict[str, Any]]:
    """The answers, and what an array says beside them is right."""
    texts = [item if isinstance(item, str) else json.dumps(item) for item in items]
    if form == "lines":
        answer = client.post("/jobs/batch", content="\n".join(texts), headers=NDJSON)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        answers = [json.loads(line) for line in answer.text.splitlines()]
    else:
        body = f"[{','.join(texts)}]"
        answer = client.post("/jobs/batch", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        answers = answer.json()["items"]
        statuses = [one["status"] for one in answers]
        counts = {"created": statuses.count(201), "existing": statuses.count(200)}
        counts["failed"] = len(answers) - sum(counts.values())
        assert {name: answer.json()[name] for name in counts} == counts
    assert [one["index"] for one in answers] == list(range(len(answers)))
    return answers


def stored(api: ServedApi) -> dict[int, Any]:
    """The payload's "n" of every task there is, by id."""
    found: dict[int, Any] = {}
    after = None
    while True:
        page = api.app.admin.find(Filter(), limit=1000, after=after)
        found |= {task.id: json.loads(task.payload).get("n") for task in page.items}
        if (after := page.next) is None:
            return found


def tasks(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"type": "mail.send", "payload": {"n": n}, **more} for n in range(count)]
