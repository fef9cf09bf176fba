"""``GET /jobs``, ``/jobs/{id}``, ``/stats``, ``/dead``: pages, filters, and every parameter refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.api import ServedApi

KINDS = [("a", "mail"), ("b", "mail"), ("a", "charge")]


@pytest.fixture
def ids(api: ServedApi) -> list[int]:
    """Nine tasks of three kinds."""
    news = [NewTask(kind, {"n": n}, queue=queue) for n in range(3) for queue, kind in KINDS]
    return [handle.id for handle in api.app.enqueue_many(news)]


def sql(settings: Settings, statement: str, **values: Any) -> None:
    """Run a statement on a connection of its own; ``{t}`` is the table prefix."""
    engine = sa.create_engine(settings.database_url, poolclass=sa.NullPool, connect_args={"charset": "utf8mb4"})
    with engine.begin() as connection:
        connection.execute(sa.text(statement.replace("{t}", settings.table_prefix)), values)


def pages(client: httpx.Client, path: str, **params: Any) -> list[list[int]]:
    """The ids of every page."""
    found, after = [], None
    while True:
        answer = client.get(path, params=params | ({} if after is None else {"after": after}))
        assert answer.status_code == 200, answer.text
        shape = answer.json()
        assert sorted(shape) == ["items", "next"]
        found.append([item["id"] for item in shape["items"]])
        after = shape["next"]
        if after is None:
            return found
        assert isinstance(after, str)


def test_pages_are_newest_first_and_leave_nothing_out(client: httpx.Client, ids: list[int]) -> None:
    found = pages(client, "/jobs", limit=4)

    assert [len(page) for page in found] == [4, 4, 1]
    assert [one for page in found for one in page] == sorted(ids, reverse=True)
    assert pages(client, "/jobs", limit=9) == [sorted(ids, reverse=True)]


def test_every_filter_narrows(client: httpx.Client, api: ServedApi, ids: list[int], env: Settings) -> None:
    keyed = api.app.enqueue("keyed", {}, idempotency_key="k ✓ %&")
    api.app.cancel(ids[0])
    sql(env, "UPDATE {t}tasks SET worker_id = 'w-1', error_type = 'Böse' WHERE id = :id", id=ids[1])

    for params, wanted in [
        ({"queue": "b"}, ids[1::3]),
        ({"type": "charge", "queue": "a"}, ids[2::3]),
        ({"status": "cancelled"}, ids[:1]),
        ({"state": "cancelled"}, ids[:1]),
        ({"status": "pending", "state": "ready", "queue": "a", "type": "mail"}, ids[3::3]),
        ({"status": "dead", "state": "ready"}, []),
        ({"worker_id": "w-1"}, [ids[1]]),
        ({"error_type": "Böse"}, [ids[1]]),
        ({"key": "k ✓ %&"}, [keyed.id]),
    ]:
        (page,) = pages(client, "/jobs", **params)
        assert page == sorted(wanted, reverse=True), params


FAULTS = [
    ("colour=1", "colour"),
    ("queue=", "queue"),
    ("queue=a&queue=a", "queue"),
    ("queue=no%20queue", "queue"),
    ("queue=%ff", "query"),
    ("status=ready", "status"),
    ("state=pending", "state"),
    ("type=a%00", "type"),
    ("worker_id=%20", "worker_id"),
    ("error_type=", "error_type"),
    ("key=", "key"),
    ("limit=0", "limit"),
    ("limit=1001", "limit"),
    ("limit=-1", "limit"),
    ("limit=+5", "limit"),
    ("limit=1e2", "limit"),
    ("limit=%d9%a5", "limit"),  # a digit, but not one of ours
    ("limit=5%0a", "limit"),
    ("after=0", "after"),
    ("after=9223372036854775808", "after"),
    ("after=x", "after"),
]


def test_a_wrong_parameter_is_named(client: httpx.Client) -> None:
    for query, culprit in FAULTS:
        answer = client.get(f"/jobs?{query}")
        assert (answer.status_code, answer.json()["field"]) == (400, culprit), (query, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


def test_text_that_is_not_utf8_is_not_guessed_at(client: httpx.Client) -> None:
    for path in ("/jobs?error_type=%ff", "/dead?error=%80", "/jobs?%ff=1"):
        answer = client.get(path)
        assert answer.status_code == 400, answer.text


def test_one_task_is_shown_with_its_failed_attempts(client: httpx.Client, api: ServedApi, ids: list[int]) -> None:
    answer = client.get(f"/jobs/{ids[0]}")

    assert answer.status_code == 200
    assert answer.json() == api.app.admin.show(ids[0]).to_json()
    assert client.get(f"/jobs/{ids[-1] + 1}").status_code == 404
    assert client.get("/jobs/9223372036854775807").status_code == 404


def test_ids_above_two_to_the_53_come_back_as_text(client: httpx.Client, api: ServedApi, env: Settings) -> None:
    big = 2**53 + 1
    sql(env, "INSERT INTO {t}tasks (id, task_type, payload) VALUES (:id, 'big', '{}')", id=big)

    job = client.get(f"/jobs/{big}").json()
    assert (job["id"], job["id_str"]) == (big, str(big))
    (page,) = pages(client, "/jobs", type="big")
    assert page == [big]
    assert client.post(f"/jobs/{job['id_str']}/cancel", json={}).json()["job"]["id_str"] == str(big)
    moved = client.post("/dead/replay", json={"ids": [job["id_str"], big]})
    assert moved.json()["moved"] == 1, moved.text
    assert api.app.admin.show(big).status == "pending"


def test_a_row_of_other_sql_can_be_looked_at(client: httpx.Client, env: Settings) -> None:
    odd = ["no json", '{"n":1e400}', '{"n":"\\ud800"}', "[" * 200 + "]" * 200, ""]
    insert = "INSERT INTO {t}tasks (id, task_type, payload) VALUES (:id, 'odd', :payload)"
    for number, payload in enumerate(odd, start=1):
        sql(env, insert, id=number, payload=payload)

        answer = client.get(f"/jobs/{number}")
        assert (answer.status_code, answer.json()["payload"]) == (200, payload)
    assert pages(client, "/jobs", type="odd") == [[5, 4, 3, 2, 1]]


def test_stats_count_what_there_is(client: httpx.Client, api: ServedApi, ids: list[int]) -> None:
    api.app.cancel(ids[0])

    shape = client.get("/stats").json()

    assert shape == api.app.stats()
    assert (shape["queues"]["a"]["ready"], shape["queues"]["b"]["ready"]) == (5, 3)
    assert shape["ended"]["cancelled"] == 1
    assert client.get("/stats?all=1").json()["field"] == "all"


def test_dead_letters_are_found_by_what_went_wrong(
    client: httpx.Client, ids: list[int], env: Settings, api: ServedApi
) -> None:
    bury = (
        "UPDATE {t}tasks SET ended = 2, status = 'dead', dead_reason = :why, error_type = :kind, last_error = :said,"
        " completed_at = UTC_TIMESTAMP(6) WHERE id = :id"
    )
    sql(env, bury, id=ids[0], why="timeout", kind="TaskTimeout", said="after 5 s")
    sql(env, bury, id=ids[1], why="retries_exhausted", kind="KeyError", said="no 'order' in 100%")
    api.app.cancel(ids[2])

    for params, wanted in [
        ({}, ids[:2]),
        ({"queue": "b"}, [ids[1]]),
        ({"type": "charge"}, []),
        ({"error": "100%"}, [ids[1]]),
        ({"error_type": "TaskTimeout"}, [ids[0]]),
        ({"reason": "timeout"}, [ids[0]]),
        ({"state": "cancelled"}, [ids[2]]),
        ({"state": "dead", "limit": 1}, ids[:2]),
    ]:
        found = [one for page in pages(client, "/dead", **params) for one in page]
        assert found == sorted(wanted, reverse=True), params
    for query, culprit in [
        ("state=ready", "state"),
        ("reason=x", "reason"),
        ("error=", "error"),
        ("status=dead", "status"),
        ("limit=2000", "limit"),
    ]:
        answer = client.get(f"/dead?{query}")
        assert (answer.status_code, answer.json()["field"]) == (400, culprit), answer.text
