"""B30 over HTTP: payloads near the size limits.

What is accepted comes back byte for byte. What is over the configured limit, or over the server's
``max_allowed_packet``, is refused with 413, size and limit named, before any row or Redis id exists, and the next
request on the same connection works; alone and in a batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tandemq.core.settings import Settings
from tests.api import ServedApi, served
from tests.scenarios.sizes import size
from tests.scenarios.test_b30_size_limits import MIB, RAISED, payload_of, sha
from tests.scenarios.truth import redis_ids, sql
from tests.servers import MySQLServer

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

SIZES = size((65_535, 65_536, MIB, 15 * MIB), (254, 255, 256, 65_535, 65_536, MIB, 2 * MIB, 8 * MIB, 15 * MIB))
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api(
    own_mysql: Callable[..., MySQLServer],
    settings_for: Callable[..., Settings],
    redis_url: str,
    request: pytest.FixtureRequest,
) -> Iterator[ServedApi]:
    """On a server with this ``max_allowed_packet`` in MiB; both limits of tandemq are raised."""
    server = own_mysql(f"--max-allowed-packet={request.param}M")
    limits = {"max_payload_bytes": RAISED, "max_result_bytes": RAISED}
    with served(settings_for(server.url(server.create_database()), redis_url, **limits)) as made:
        yield made


@pytest.fixture
def client(api: ServedApi) -> Iterator[httpx.Client]:
    """One connection for all requests of a test."""
    with api.client(limits=httpx.Limits(max_connections=1, max_keepalive_connections=1)) as made:
        yield made


def body_of(payload: dict[str, str], *, ascii_only: bool = False, **more: Any) -> bytes:
    return json.dumps({"type": "b.digest", "payload": payload, **more}, ensure_ascii=ascii_only).encode()


def assert_nothing_but(api: ServedApi, ids: list[int]) -> None:
    assert [task_id for (task_id,) in sql(api.app, "SELECT id FROM {t}tasks ORDER BY id")] == sorted(ids)  # type: ignore[arg-type]
    assert redis_ids(api.app) == sorted(ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("api", [16], indirect=True)
def test_payloads_of_every_size_come_back_byte_for_byte(api: ServedApi, client: httpx.Client) -> None:
    for char in ("x", "🦀"):
        for wide in SIZES if char == "x" else (65_536, 4 * MIB):
            payload = payload_of(wide, char)
            # Escaped, twelve bytes a crab travel where four are stored: the body may be longer than the payload.
            for more in ({}, {"idempotency_key": f"{char}{wide}"}):
                answer = client.post("/jobs", content=body_of(payload, ascii_only=wide < MIB, **more), headers=JSON)
                assert answer.status_code == 201, answer.text
                assert sha(answer.json()["payload"]["text"]) == sha(payload["text"])
                stored = api.app.get(answer.json()["id"])
                assert stored is not None
                assert sha(json.loads(stored.payload)["text"]) == sha(payload["text"])


@pytest.mark.parametrize("api", [16], indirect=True)
def test_too_big_payloads_are_refused_by_name_and_the_next_request_works(api: ServedApi, client: httpx.Client) -> None:
    ids = [client.post("/jobs", json={"type": "b.noop"}).json()["id"]]
    over = payload_of(17 * MIB)
    quotes = payload_of(9 * MIB, '"')  # fits the limit, but not the packet: SQL escapes what JSON has escaped
    attempts = {
        "over the limit": (body_of(over), "16000000", str(17 * MIB)),
        "over the packet": (body_of(quotes), "16777216", ""),
        "with a key": (body_of(quotes, idempotency_key="k"), "16777216", ""),
    }
    for name, (body, limit, said_size) in attempts.items():
        answer = client.post("/jobs", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["field"]) == (413, "payload"), name
        assert limit in answer.json()["detail"], name
        assert said_size in answer.json()["detail"], name
        assert_nothing_but(api, ids)
        ids.append(client.post("/jobs", json={"type": "b.noop"}).json()["id"])
    lines = b"\n".join([body_of({}), body_of(over), body_of(quotes), body_of({})])
    answer = client.post("/jobs/batch", content=lines, headers={"Content-Type": "application/x-ndjson"})
    items = [json.loads(line) for line in answer.text.splitlines()]
    assert [item["status"] for item in items] == [201, 413, 413, 201]
    assert "16000000" in items[1]["problem"]["detail"]
    assert "16777216" in items[2]["problem"]["detail"]
    assert_nothing_but(api, [*ids, items[0]["id"], items[3]["id"]])


@pytest.mark.parametrize("api", [16], indirect=True)
def test_a_body_over_every_limit_is_not_even_read(api: ServedApi) -> None:
    limit = 2 * RAISED + 64 * 1024

    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65_536

    with api.client() as client:
        declared = client.post("/jobs", content=b" " * (limit + 1), headers=JSON)
        assert (declared.status_code, declared.json()["field"]) == (413, "body")
        assert str(limit) in declared.json()["detail"]
    with api.client() as client:
        try:
            answer = client.post("/jobs", content=endless(), headers=JSON)
        except (httpx.WriteError, httpx.RemoteProtocolError):
            pass  # it hung up on a client that does not stop
        else:
            assert answer.status_code == 413
    with api.client() as client:
        assert client.post("/jobs", json={"type": "b.noop"}).status_code == 201


@pytest.mark.parametrize("api", [1], indirect=True)
def test_a_server_with_small_packets_refuses_by_name_and_takes_what_fits(api: ServedApi, client: httpx.Client) -> None:
    for more in ({}, {"idempotency_key": "k"}):
        answer = client.post("/jobs", content=body_of(payload_of(2 * MIB), **more), headers=JSON)
        assert answer.status_code == 413
        assert str(MIB) in answer.json()["detail"]
    assert_nothing_but(api, [])
    fitting = body_of(payload_of(MIB - 10_000))
    ids = [client.post("/jobs", content=fitting, headers=JSON).json()["id"] for _ in range(3)]
    third = body_of(payload_of(MIB // 3))
    answer = client.post("/jobs/batch", content=b"[" + b",".join([third] * 10) + b"]", headers=JSON)
    assert (answer.json()["created"], answer.json()["failed"]) == (10, 0)
    assert_nothing_but(api, ids + [item["id"] for item in answer.json()["items"]])


@pytest.mark.parametrize("api", [16], indirect=True)
def test_results_come_back_byte_for_byte_or_end_the_task_with_a_note(api: ServedApi, client: httpx.Client) -> None:
    kept = ["x" * 65_533, "x" * 65_534, "x" * MIB, "🦀" * (2 * MIB), "x" * (RAISED - 2)]
    left_out = ["x" * (RAISED - 1), "x" * (17 * MIB), '"' * (6 * MIB)]  # the last: 12 MiB of JSON, 24 MiB of SQL
    for text in kept + left_out:
        task_id = client.post("/jobs", json={"type": "b.noop"}).json()["id"]
        (job,) = client.post("/jobs/claim", json={"worker_id": "w", "wait": 30}).json()["jobs"]
        assert job["id"] == task_id
        body = json.dumps({"lease_token": job["lease_token"], "result": text}, ensure_ascii=False).encode()
        answer = client.post(f"/jobs/{task_id}/complete", content=body, headers=JSON)
        assert answer.status_code == 200, answer.text[:500]
        stored = api.app.get(task_id)
        assert stored is not None
        assert (stored.status, stored.attempts) == ("succeeded", 1)
        if text in kept:
            assert sha(json.loads(stored.result or "")) == sha(text)
            assert stored.last_error is None
        else:
            assert (stored.result, stored.error_type) == (None, "ResultNotStorable")
            assert stored.last_error
    assert redis_ids(api.app) == []  # type: ignore[arg-type]
    assert client.post("/jobs", json={"type": "b.noop"}).status_code == 201
