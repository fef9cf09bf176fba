"""Answers of megabytes: bounded, and put together while the event loop serves others."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq import Filter, NewTask
from tandemq.core import body
from tandemq.core.task import Task
from tandemq.http import enqueuing, filters
from tests.api import ServedApi

LOOP = "api"


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In which threads tasks were turned into JSON, and payloads parsed for it."""
    names: list[str] = []
    real = Task.to_json

    def to_json(task: Task) -> dict[str, Any]:
        names.append(threading.current_thread().name)
        return real(task)

    monkeypatch.setattr(Task, "to_json", to_json)
    return names


def _pages(client: httpx.Client, path: str) -> list[list[int]]:
    found, following = [], ""
    while True:
        shape = client.get(path + (following and f"&after={following}")).json()
        found.append([item["id"] for item in shape["items"]])
        if (following := shape["next"]) is None:
            return found


def test_a_page_ends_before_it_is_too_large_and_the_next_goes_on(
    client: httpx.Client, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "PAGE_BYTES", 10_000)
    sizes = [100, 12_000, 4000, 4000, 4000, 12_000, 100, 100]
    ids = [one.id for one in api.app.enqueue_many([NewTask("a", {"text": "x" * n}) for n in sizes])]
    wanted = [[7, 6], [5], [4, 3], [2], [1], [0]]
    assert _pages(client, "/jobs?limit=1000") == [[ids[n] for n in page] for page in wanted]
    assert _pages(client, "/jobs?limit=1000&status=pending&queue=default") == [
        [ids[n] for n in page] for page in wanted
    ]
    for one in ids:
        api.app.cancel(one)
    assert _pages(client, "/dead?state=cancelled&limit=3")[:2] == [[ids[7], ids[6]], [ids[5]]]


def test_a_task_that_has_changed_since_its_id_was_read_is_not_on_a_list_of_others(
    client: httpx.Client, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [api.app.enqueue("a", {}).id for _ in range(3)]
    real = api.app.store.find_ids

    def find_ids(where: Filter, **options: Any) -> Any:
        found = real(where, **options)
        api.app.cancel(ids[1])
        return found

    monkeypatch.setattr(api.app.store, "find_ids", find_ids)
    shape = client.get("/jobs?status=pending").json()
    assert ([item["id"] for item in shape["items"]], shape["next"]) == ([ids[2], ids[0]], None)


def test_lists_and_big_tasks_are_written_off_the_event_loop(
    client: httpx.Client, api: ServedApi, writers: list[str]
) -> None:
    big = {"type": "a", "payload": {"text": "x" * 100_000}}
    made = client.post("/jobs", json=big)
    assert (made.status_code, made.json()["payload"]) == (201, big["payload"])
    (job,) = client.post("/jobs/claim", json={"worker_id": "w"}).json()["jobs"]
    assert job["payload"] == big["payload"]
    path, token = f"/jobs/{made.json()['id']}", {"lease_token": job["lease_token"]}
    assert client.get(path).json()["payload"] == big["payload"]
    assert len(client.get("/jobs").json()["items"]) == 1
    assert client.post(f"{path}/cancel", json={}).status_code == 202
    failed = client.post(f"{path}/fail", json={**token, "error": "stopped"}).json()
    assert (failed["status"], failed["payload"]) == ("cancelled", big["payload"])
    assert client.post(f"{path}/cancel", json={}).json()["outcome"] == "cancelled"
    assert client.post(f"{path}/replay", json={}).json()["payload"] == big["payload"]
    assert len(writers) == 8
    assert LOOP not in writers


def test_what_waits_is_bytes_and_parsed_where_it_is_stored(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsers: list[str] = []
    real = body.parse_json

    def parse_json(text: bytes, field: str) -> Any:
        parsers.append(threading.current_thread().name)
        return real(text, field)

    monkeypatch.setattr(enqueuing.body, "parse_json", parse_json)
    assert client.post("/jobs", json={"type": "a", "payload": {"brackets": [{}] * 1000}}).status_code == 201
    assert client.post("/jobs", json={"type": "a", "colour": 1}).json()["field"] == "colour"
    assert client.post("/jobs", content="{", headers={"Content-Type": "application/json"}).json()["field"] == "body"
    assert len(parsers) == 3
    assert {name.rpartition("_")[0] for name in parsers} == {"tandemq-http-enqueue"}
    parsers.clear()
    big = {"type": "a", "idempotency_key": "k", "payload": {"text": "x" * 100_000}}
    assert client.post("/jobs", json=big).status_code == 201
    assert parsers
    assert LOOP not in parsers


def test_a_key_goes_its_own_way_however_its_name_is_written(
    client: httpx.Client, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real = api.app.store.insert

    def insert(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(*args, **options)

    monkeypatch.setattr(api.app.store, "insert", insert)
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in "idempotency_key")
    texts = [f'{{"type": "a", "{name}": "k"}}' for name in ("idempotency_key", escaped, "idempotency_ke\\u0079")]
    json = {"Content-Type": "application/json"}
    assert [client.post("/jobs", content=text, headers=json).status_code for text in texts] == [201, 200, 200]
    assert [name for name in threads if name.startswith("tandemq-http-enqueue")] == []
    assert client.post("/jobs", content=r'{"type": "a", "payload": {"t": "\u00e9"}}', headers=json).status_code == 201
    assert threads.pop().startswith("tandemq-http-enqueue")


def test_a_task_shows_its_newest_hundred_failed_attempts(client: httpx.Client, api: ServedApi) -> None:
    task_id, settings = api.app.enqueue("a", {}).id, api.app.settings
    statement = sa.text(
        f"INSERT INTO {settings.table_prefix}task_attempts (task_id, attempt, replays, fence, outcome, worker_id,"
        " started_at, ended_at, error_type, error, traceback) VALUES (:id, :n, 0, :n, 'failed', 'w', UTC_TIMESTAMP(6),"
        " UTC_TIMESTAMP(6), 'E', '', '')"
    )
    engine = sa.create_engine(settings.database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(statement, [{"id": task_id, "n": n} for n in range(1, 151)])
    shown = client.get(f"/jobs/{task_id}").json()["attempts_log"]
    assert [one["attempt"] for one in shown] == list(range(51, 151))
    ((task,), _) = api.app.store.full([task_id])
    assert len(task.attempts_log) == 150
