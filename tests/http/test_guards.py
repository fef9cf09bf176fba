"""What no request may be, and what every answer has, on httptools and on h11."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request

import tandemq.http.api
from tandemq import Filter, metrics
from tandemq.core.errors import ConfigurationError
from tandemq.core.settings import Settings
from tandemq.http import ApiOptions
from tandemq.http.problems import Problem
from tests.api import ServedApi, served
from tests.http.wire import request, wire
from tests.waiting import eventually

OWN = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
TASK = b'{"type":"a"}'


@pytest.fixture
def on_both(parser: str, env: Settings) -> Iterator[ServedApi]:
    with served(env) as api:
        yield api


def stored(api: ServedApi) -> int:
    return len(api.app.admin.find(Filter()).items)


def counted(route: str, status: int) -> float:
    registry = metrics.registry()
    assert registry is not None
    labels = {"route": route, "status": str(status)}
    return registry.get_sample_value("tandemq_http_requests_total", labels) or 0.0


def test_every_answer_has_its_headers_and_none_tells_what_serves(client: httpx.Client) -> None:
    answers = {
        200: client.get("/health/live"),
        201: client.post("/jobs", json={"type": "a"}),
        404: client.get("/nothing"),
        405: client.delete("/jobs"),
        415: client.post("/jobs", content=TASK),
    }
    for status, answer in answers.items():
        assert answer.status_code == status, answer.text
        assert OWN.items() <= dict(answer.headers).items()
        assert not {"server", "strict-transport-security", "access-control-allow-origin"} & set(answer.headers)
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status


def test_another_method_is_405_and_the_right_ones_are_named(client: httpx.Client) -> None:
    for method, path, allow in [
        ("DELETE", "/jobs", "GET, HEAD, POST"),
        ("OPTIONS", "/jobs", "GET, HEAD, POST"),
        ("GET", "/jobs/batch", "POST"),  # and not the task with the id "batch"
        ("GET", "/jobs/claim", "POST"),
        ("HEAD", "/jobs/batch", "POST"),
        ("QUERY", "/stats", "GET, HEAD"),
        ("POST", "/jobs/1", "GET, HEAD"),
        ("TRACE", "/jobs/1/cancel", "POST"),
        ("PUT", "/health/live", "GET, HEAD"),
    ]:
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers.get("allow")) == (405, allow), (method, path)
        assert answer.headers["content-type"] == "application/problem+json"
        assert method == "HEAD" or answer.json()["type"] == "urn:tandemq:problem:method-not-allowed"


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    head, get = client.head("/health/live"), client.get("/health/live")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


def test_odd_targets_are_refused(on_both: ServedApi) -> None:
    for target in (
        "//jobs", "/jobs//1", "/jobs/", "/jobs/../stats", "/./jobs", "/jobs/%00", "/jobs/1%2Fcancel",
        "/jobs/%2e%2e/stats", "/%6Aobs", "/jobs/\xff\xfe", "/jobs/1;x", "/jobs\\1", "/jobs/%F0%28",
        "/\x7f", "/jobs/" + "9" * 5000, "*", "jobs", "http://127.0.0.1", "http://127.0.0.1/nothing", "/jobs?x=%ff",
    ):  # fmt: skip
        with wire(on_both) as line:
            answer = line.send(request(f"GET {target}")).answer()
            assert 400 <= answer.status < 500, (target, answer)
            assert answer.headers["content-type"] == "application/problem+json", (target, answer)
            assert OWN["x-content-type-options"] == answer.headers["x-content-type-options"]


POST, GET = b"POST /jobs HTTP/1.1\r\nHost: h\r\n", b"GET /stats HTTP/1.1\r\nHost: h\r\n"
#: What two parsers in a row might take for different requests, or is no request at all.
BROKEN = {
    "two lengths": POST + b"Content-Length: 12\r\nContent-Length: 40\r\n\r\n" + TASK,
    "length and chunks": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "odd coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "space before colon": POST + b"Content-Length : 12\r\n\r\n" + TASK,
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "length in hex": POST + b"Content-Length: 0xc\r\n\r\n" + TASK,
    "huge length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n" + TASK,
    "broken chunk": POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "NUL in a header": GET + b"X: a\0b\r\n\r\n",
    "CR in a header": GET + b"X: a\rb\r\n\r\n",
    "no version": b"GET /stats\r\n\r\n",
    "HTTP/9.9": b"GET /stats HTTP/9.9\r\nHost: h\r\n\r\n",
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "a tunnel": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
    "noise": bytes(range(256)),
}


@pytest.mark.parametrize("parser", ["httptools", "h11"], indirect=True)
def test_what_is_no_request_is_400_and_the_end_of_the_connection(
    on_both: ServedApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    smuggled = request("POST /jobs", body=TASK)
    for name, broken in BROKEN.items():
        with wire(on_both) as line:
            answer = line.send(broken + smuggled).answer()
            assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json"), (name, answer)
            assert line.is_closed(), name
    assert stored(on_both) == 0
    assert [r for r in caplog.records if r.levelno >= logging.WARNING and "uvicorn" in r.name] == []


def test_a_big_head_is_refused_before_it_is_kept(on_both: ServedApi) -> None:
    with wire(on_both) as line:
        assert line.send(request(f"GET /jobs?x={'a' * 9000}")).answer().status == 414
    with wire(on_both) as line:
        assert line.send(request("GET /health/live", *(f"X-{n}: 1" for n in range(150)))).answer().status == 431
    for n, status in ((32_500, 200), (33_000, 431), (200_000, 431)):  # in one piece, or in few
        with wire(on_both) as line:
            got = line.send(request("GET /health/live", "X: " + "x" * n)).answer().status
            assert got == status or (n, got) == (200_000, 400), (n, got)
    for unfinished in (b"GET /" + b"a" * 200_000, b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 200_000):
        with wire(on_both) as line:
            answer = line.send(unfinished).answer()
            assert answer.status in {431, 400}, answer  # h11 does not tell them apart
            assert line.is_closed()


def test_garbage_behind_a_request_does_not_take_its_answer(on_both: ServedApi) -> None:
    with wire(on_both) as line:
        line.send(request("POST /jobs", body=TASK) + b"\0\0 garbage\r\n\r\n")
        assert line.answer().status == 201
        rest = line.rest()  # a 400 may follow, nothing else
        assert rest == b"" or rest.startswith(b"HTTP/1.1 400 ")


def test_requests_in_one_packet_are_answered_in_order(on_both: ServedApi) -> None:
    with wire(on_both) as line:
        line.send(request("POST /jobs", body=TASK) + request("GET /health/live") + request("GET /nothing"))
        assert [line.answer().status for _ in range(3)] == [201, 200, 404]


def test_an_answer_before_the_end_of_the_body_is_read_and_the_connection_goes_on(on_both: ServedApi) -> None:
    limit = 2 * max(on_both.app.settings.max_payload_bytes, on_both.app.settings.max_result_bytes) + 64 * 1024
    body = b" " * (limit + 1_000_000)
    with wire(on_both) as line:
        assert line.send(request("POST /jobs", body=body)).answer().status == 413
        assert line.send(request("GET /health/live")).answer().status == 200


# Web pages


def test_no_web_page_may_call_it_unless_its_origin_is_named(env: Settings) -> None:
    with served(env, cors_origins=("https://shop.example",)) as api, api.client() as client:
        ours = client.post("/jobs", json={"type": "a"}, headers={"Origin": "https://shop.example"})
        assert ours.status_code == 201
        assert ours.headers["access-control-allow-origin"] == "https://shop.example"
        assert "access-control-allow-credentials" not in ours.headers
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        good = client.options("/jobs", headers={"Origin": "https://shop.example"} | asked)
        assert (good.status_code, good.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        for origin in ("https://evil.example", "http://shop.example", "https://shop.example.evil.example", "null"):
            bad = client.options("/jobs", headers={"Origin": origin} | asked)
            assert bad.status_code == 400
            assert "access-control-allow-origin" not in bad.headers


@pytest.mark.parametrize("origin", ["*", "shop.example", "https://shop.example/", "https://*.example", "HTTPS://a", ""])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="CORS origin"):
        ApiOptions(cors_origins=(origin,))


def test_without_tokens_a_web_page_cannot_act_blindly(env: Settings) -> None:
    with served(env, cors_origins=("https://shop.example",)) as api, api.client() as client:
        job = client.post("/jobs", json={"type": "a"}).json()
        cancel = f"/jobs/{job['id']}/cancel"
        for origin in ("https://evil.example", "null", "http://127.0.0.1", f"https://127.0.0.1:{client.base_url.port}"):
            refused = client.post(cancel, headers={"Origin": origin})
            assert (refused.status_code, refused.headers["content-type"]) == (403, "application/problem+json")
        assert client.get(f"/jobs/{job['id']}").json()["status"] == "pending"
        for origin in (api.url, "https://shop.example"):
            assert client.post(cancel, headers={"Origin": origin}).status_code != 403


# Errors


def test_an_error_that_nobody_expected_is_a_number_and_no_more(
    env: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: Any) -> Any:
        raise RuntimeError("/etc/secret SELECT 1")

    def refuses(_: Request, __: Exception) -> Any:
        raise RuntimeError("/etc/secret SELECT 2")

    monkeypatch.setattr("tandemq.http.enqueuing.Enqueuer.enqueue", fails)
    monkeypatch.setattr(tandemq.http.api, "_refused", refuses)
    with served(env) as api, api.client() as client:
        for answer in (client.post("/jobs", json={"type": "a"}), client.get("/nothing")):
            assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
            assert OWN.items() <= dict(answer.headers).items()
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
            number = re.search(r"as ([0-9a-f]{16})", answer.json()["detail"])
            assert number
            assert f"error {number[1]}" in caplog.text
        assert client.get("/health/live").status_code == 200
    assert [r for r in caplog.records if r.name.startswith("uvicorn")] == []


def test_a_problem_may_have_members_of_any_kind() -> None:
    document = Problem("invalid", "no", field="", task_id=None, ids=[1, 2], more={}).document()
    assert (document["ids"], document["more"]) == ([1, 2], {})
    assert not {"field", "task_id"} & set(document)


def test_a_client_that_goes_away_is_no_error(on_both: ServedApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    before = counted("enqueue", 0)
    with wire(on_both) as line:
        line.send(request("POST /jobs", "Content-Type: application/json", "Content-Length: 100") + b'{"type":')
    eventually(lambda: counted("enqueue", 0) == before + 1)
    ours = {"tandemq", "uvicorn", "asyncio", "starlette"}
    assert [r for r in caplog.records if r.name.partition(".")[0] in ours and r.levelno >= logging.INFO] == []
    assert stored(on_both) == 0


def test_the_access_log_names_route_and_caller_and_nothing_secret(
    env: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tandemq.http.access")
    with served(env, access_log=True) as api, api.client() as client:
        client.get("/jobs/123?key=planted", headers={"X-Planted": "planted", "Authorization": "Bearer planted"})
        client.get("/planted")
    lines = [r.getMessage() for r in caplog.records if r.name == "tandemq.http.access"]
    assert [re.sub(r"[\d.]+ ms", "N ms", line) for line in lines] == [
        "GET /jobs/{id} 400 N ms local",
        "GET - 404 N ms -",
    ]
    assert "planted" not in caplog.text
