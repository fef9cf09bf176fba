"""What comes behind a request: an upgrade's body, trailers, the next request. See ``tandemq.http.connections``."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import Any

import pytest

from tandemq import metrics
from tandemq.http.limits import MAX_HEAD_BYTES, admitted
from tests.api import served
from tests.http.hands import claim, enqueue, is_untouched, room
from tests.http.hands import request as claim_request
from tests.http.test_connections import HEAD, Application, answer, read_all, served_application
from tests.http.wire import request, wire
from tests.waiting import eventually

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"


def counted(reason: str) -> int:
    registry = metrics.registry()
    assert registry is not None
    return int(registry.get_sample_value("tandemq_http_cut_total", {"reason": reason}) or 0)


@pytest.mark.parametrize("upgrade", [H2C, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_an_upgrade_is_not_done_and_its_body_is_its_own(parser: str, upgrade: bytes) -> None:
    inner = request("GET /smuggled")
    heads = [b"Content-Length: %d\r\n\r\n" % len(inner), b"Transfer-Encoding: chunked\r\n\r\n"]
    bodies = [inner, b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)]
    with served_application(Application()) as (url, _):
        for head, body in zip(heads, bodies, strict=True):
            for pieces in ([HEAD + upgrade + head + body], [HEAD + upgrade + head, body], [HEAD, upgrade, head, body]):
                with wire(url) as line:
                    for piece in pieces:
                        line.send(piece)
                    assert line.answer().body == str(len(inner)).encode()
                    assert line.send(request("GET /")).answer().body == b"0"
        with wire(url) as line:
            line.send((request("GET /").replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n")) * 20)
            assert [line.answer().body for _ in range(20)] == [b"0"] * 20
        with wire(url) as line:
            line.send(HEAD + upgrade.replace(b"Connection: ", b"Connection: close, ") + heads[0] + bodies[0])
            assert line.answer().body == str(len(inner)).encode()
            assert line.is_closed()


def test_trailers_are_not_kept(parser: str) -> None:
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        n = await read_all(receive)
        seen.append([name for name, _ in scope["headers"]])
        await answer(send, str(n).encode())

    with served_application(application) as (url, _), wire(url) as line:
        line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX-Late: 1\r\nHost: evil\r\n\r\n")
        assert line.answer().body == b"2"
        assert line.send(request("GET /")).answer().body == b"0"
    assert seen[0] == [b"host", b"content-type", b"transfer-encoding"]


@pytest.mark.parametrize("endless", [b"a:b\r\n", b"x"])
@pytest.mark.parametrize("before", [b"0\r\n", b"0\r\na: ", b"2;"])
def test_what_is_neither_head_nor_body_is_bounded(parser: str, before: bytes, endless: bytes) -> None:
    with served_application(Application()) as (url, bounds), wire(url) as line:
        line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + before)
        block = endless * 5000
        sent = 0
        try:
            while sent < 20_000_000:
                sent += line.socket.send(block)
        except ConnectionError:
            pass
        assert sent < 20_000_000
        eventually(lambda: len(bounds) == 0)


def test_a_head_behind_the_rest_of_a_body_is_counted_by_itself(parser: str) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no")

    n = MAX_HEAD_BYTES + 5000  # arrives in one piece
    with served_application(refuses) as (url, _), wire(url) as line:
        assert line.send(HEAD + b"Content-Length: %d\r\n\r\n" % n).answer().body == b"no"
        line.send(b"x" * n + b"GET / HTTP/1.1\r\nHo")
        threading.Event().wait(0.3)  # for the server to have read that
        assert line.send(b"st: h\r\n\r\n").answer().body == b"no"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_claim_is_told_that_its_client_left_whatever_came_behind_it(parser: str, env: Any, at_once: bool) -> None:
    with served(env) as api, api.client() as client:
        with wire(api) as line:
            behind = request("GET /health/live") + request("GET /nothing")
            line.send(claim_request(wait=25) + behind * at_once)
            eventually(lambda: len(room(api)) == 1)
            if not at_once:
                line.send(behind)
                threading.Event().wait(0.3)
        eventually(lambda: len(room(api)) == 0, 15)
        task_id = enqueue(client)
        assert is_untouched(api, task_id)
        assert [job["id"] for job in claim(client)] == [task_id]


def test_a_body_that_stalls_behind_another_request_ends_that_without_an_answer_of_its_own(parser: str) -> None:
    told: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        told.append((await receive())["type"])

    with served_application(application, silence_s=0.5) as (url, bounds), wire(url) as line:
        line.send(request("GET /") + HEAD + b"Content-Length: 10\r\n\r\n{")
        if parser == "httptools":  # h11 looks at it when its turn has come
            assert line.is_closed()
            eventually(lambda: told == ["http.disconnect"] and len(bounds) == 0)


def test_garbage_behind_a_body_that_is_broken_does_not_take_an_earlier_answer(parser: str) -> None:
    application = Application()
    application.may_read.clear()
    before = counted("broken")
    with served_application(application) as (url, _):
        with wire(url) as line:
            line.send(request("GET /") + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
            threading.Timer(0.2, application.may_read.set).start()
            assert (got := line.answer()).status == 200, got
            assert b"HTTP/1.1 200" not in line.rest()
        with wire(url) as line:
            assert line.send(b"noise\r\n\r\n").answer().status == 400
        eventually(lambda: counted("broken") > before)


# Who makes room


def test_a_request_whose_caller_nobody_knows_makes_room(parser: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        if scope["path"] == "/slow":
            while (await receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
        else:
            await answer(send, b"ok")

    with served_application(application, max_connections=5) as (url, bounds), ExitStack() as held:
        for _ in range(5):
            held.enter_context(wire(url)).send(request("GET /slow"))
        eventually(lambda: len(bounds) == 5)
        for _ in range(10):
            with wire(url) as fast:
                assert fast.send(request("GET /")).answer().body == b"ok"


def test_who_is_let_in_is_so_for_one_request(parser: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        if scope["path"] == "/first":
            admitted(scope)
            await asyncio.sleep(0.1)
        elif scope["path"] == "/slow":
            while (await receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
        await answer(send, b"ok")

    slow = request("POST /slow", "Content-Length: 5")
    for behind in (request("GET /slow"), slow, slow + b"12345"):
        with served_application(application, max_connections=1) as (url, bounds), wire(url) as line:
            assert line.send(request("GET /first") + behind).answer().body == b"ok"
            with wire(url) as fast:
                assert fast.send(request("GET /")).answer().body == b"ok"
            eventually(lambda: len(bounds) == 0)


def test_a_claim_that_waits_makes_no_room(parser: str, env: Any) -> None:
    before = counted("full")
    with served(env, max_connections=5) as api, ExitStack() as held:
        claims = [held.enter_context(wire(api)).send(claim_request(wait=25)) for _ in range(5)]
        eventually(lambda: len(room(api)) == 5)
        with wire(api) as one_more:
            assert one_more.answer().status == 503
        assert counted("full") == before + 1
        assert len(room(api)) == 5
        api.server.should_exit = True
        assert [line.answer().status for line in claims] == [204] * 5
