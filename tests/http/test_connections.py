"""Clients that are slow on purpose are cut off, each in its own way: see ``tandemq.http.connections``."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from tandemq.http import ApiOptions, limits
from tandemq.http.connections import Phase, Watched, protocol_class
from tandemq.http.limits import Limits, admitted
from tests.http.wire import Wire, request, wire
from tests.scenarios.sizes import size
from tests.waiting import eventually

SLOW = size(1000, 3000)
HEAD = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@contextmanager
def served_application(application: Any, **options: Any) -> Iterator[tuple[str, Limits]]:
    """Any ASGI application on our protocols; where, and its connections."""
    bounds = Limits(ApiOptions(**options))
    config = uvicorn.Config(
        application, http=protocol_class(bounds), lifespan="off", ws="none", log_config=None, timeout_keep_alive=600
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)  # of those that are accepted
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        eventually(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", bounds
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


async def answer(send: Any, body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def read_all(receive: Any) -> int:
    n, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return -1
        n, more = n + len(message["body"]), message["more_body"]
    return n


class Application:
    """Reads the body, once it may, and answers with its length; notes what it was told."""

    def __init__(self, size: int = 0) -> None:
        self.lengths: list[int] = []
        self.may_read = threading.Event()
        self.may_read.set()
        self._size = size

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        admitted(scope)
        while not self.may_read.is_set():
            await asyncio.sleep(0.01)
        n = await read_all(receive)
        if n >= 0:
            await answer(send, b"x" * self._size or str(n).encode())
        self.lengths.append(n)  # after the last byte was handed over


def assert_too_slow(line: Wire) -> None:
    got = line.answer()
    assert (got.status, got.headers["content-type"]) == (408, "application/problem+json")
    assert got.json["type"] == "urn:tandemq:problem:too-slow"
    assert line.is_closed()


def drip(line: Wire, data: bytes, every_s: float) -> bool:
    """One byte at a time; False when the other side has had enough."""
    line.socket.setblocking(False)
    try:
        for at in range(len(data)):
            line.socket.send(data[at : at + 1])
            if at + 1 == len(data):
                break
            time.sleep(every_s)
            with contextlib.suppress(BlockingIOError):
                line.socket.recv(1, socket.MSG_PEEK)
                return False
        return True
    except ConnectionError:
        return False
    finally:
        line.socket.settimeout(30)


def test_a_head_that_does_not_end(parser: str) -> None:
    with served_application(Application(), head_s=1.0) as (url, bounds):
        with wire(url) as line:
            assert line.is_closed(), "one that says nothing"
        with wire(url) as line:
            assert_too_slow(line.send(HEAD))
        for data in (HEAD * 100, b"\r\n" * 1000):
            with wire(url) as line:
                assert not drip(line, data, 0.02)
        eventually(lambda: len(bounds) == 0)


def test_the_next_request_on_a_connection(parser: str) -> None:
    with served_application(Application(), head_s=1.5, idle_s=60) as (url, _), wire(url) as line:
        assert line.send(request("GET /")).answer().status == 200
        time.sleep(3)  # longer than for a head: nothing has begun
        assert line.send(request("GET /")).answer().status == 200
        assert_too_slow(line.send("GET / HT"))
    with served_application(Application(), head_s=60, idle_s=0.3) as (url, _), wire(url) as line:
        assert line.send(request("GET /")).answer().status == 200
        assert line.is_closed()


def test_a_body_that_stalls_is_told_to_the_handler_too(parser: str) -> None:
    application = Application()
    with served_application(application, silence_s=0.4) as (url, bounds):
        with wire(url) as line:
            assert_too_slow(line.send(HEAD + b"Content-Length: 10\r\n\r\n{"))
        with wire(url) as line:
            assert_too_slow(line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc"))
        eventually(lambda: application.lengths == [-1, -1] and len(bounds) == 0, message=lambda: application.lengths)


def test_a_body_that_drips_below_the_floor(parser: str) -> None:
    with served_application(Application(), silence_s=0.5) as (url, _), wire(url) as line:
        line.send(HEAD + b"Content-Length: 1000\r\n\r\n")
        assert not drip(line, b"x" * 1000, 0.02), "50 bytes a second, and never silent"
        assert_too_slow(line)


def test_a_body_that_nobody_reads_here_is_not_the_clients_fault(parser: str) -> None:
    application = Application()
    application.may_read.clear()
    n = 4_000_000
    with served_application(application, silence_s=0.8) as (url, _), wire(url) as line:
        sender = threading.Thread(target=line.send, args=(HEAD + b"Content-Length: %d\r\n\r\n" % n + b"x" * n,))
        sender.start()
        time.sleep(2)
        application.may_read.set()
        assert line.answer().body == str(n).encode()
        sender.join()


def test_the_rest_of_a_body_after_the_answer(parser: str) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no")

    with served_application(refuses, silence_s=1.5) as (url, bounds):
        with wire(url) as line:
            line.send(HEAD + b"Content-Length: 200000\r\n\r\n" + b"x" * 100_000)
            assert line.answer().body == b"no"
            assert line.send(b"x" * 100_000 + request("GET /")).answer().body == b"no"
        with wire(url) as line:
            assert line.send(HEAD + b"Content-Length: 200000\r\n\r\n").answer().body == b"no"
            assert line.is_closed(), "and with no second answer"
        eventually(lambda: len(bounds) == 0)


def test_the_rest_of_a_body_is_bounded(parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no")

    monkeypatch.setattr("tandemq.http.connections.MAX_REST_BYTES", 1_000_000)
    with served_application(refuses, silence_s=0.4) as (url, bounds), wire(url) as line:
        line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        assert line.answer().body == b"no"
        line.socket.settimeout(30)
        with pytest.raises(ConnectionError):
            while True:
                line.socket.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        eventually(lambda: len(bounds) == 0)


def test_a_reader_that_does_not_read(parser: str) -> None:
    application = Application(8_000_000)
    with served_application(application, silence_s=0.5) as (url, bounds):
        with wire(url, receive_buffer=4096) as line:
            line.send(request("GET /"))
            eventually(lambda: len(bounds) == 1)
            eventually(lambda: len(bounds) == 0)
            assert len(line.rest()) < 8_000_000
        with wire(url, receive_buffer=4096) as line:  # more requests, no reading: the next one waits for the reader
            line.send(request("GET /") * 3)
            eventually(lambda: len(bounds) == 1)
            eventually(lambda: len(bounds) == 0)
    assert application.lengths, "the handler waits no longer"


class Transport:
    """As much of one as the time-outs look at."""

    def __init__(self) -> None:
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent


def looked_after(**options: Any) -> tuple[Watched, Transport]:
    """A connection in the middle of a body; its time is what the test says."""
    line = object.__new__(Watched)
    line.limits, line.transport = Limits(ApiOptions(**options)), Transport()
    line.flow = type("Flow", (), {"read_paused": False})
    line._phase, line._since, line._last, line._received, line._looked_at = Phase.BODY, 0.0, 0.0, 0, 0.0
    line._is_first, line._is_cut, line._unsent, line._resumed = False, False, 0, False
    return line, line.transport


def test_a_body_is_slow_by_its_pauses_or_in_the_long_run() -> None:
    line, _ = looked_after(silence_s=20)
    for second in range(1, 200):  # twice the floor, with pauses just short of what is allowed
        if second % 19 == 0:
            line._last, line._received = float(second), 1000 * second
        assert line.overdue(second) == ""
    assert line.overdue(line._last + 20.5) == "body"

    line, _ = looked_after(silence_s=20)
    for second in range(1, 100):  # never silent, at half the floor
        line._last, line._received = float(second), 250 * second
        if line.overdue(second):
            break
    assert 38 <= second <= 42, second


def test_a_reader_is_slow_by_its_pauses_or_in_the_long_run() -> None:
    line, transport = looked_after(silence_s=20)
    line._phase = Phase.WORK
    left = 1_000_000
    for second in range(1, 500):
        left -= 1000
        transport.unsent = left
        assert line.overdue(second) == ""
    assert line.overdue(second + 15) == ""
    assert line.overdue(second + 25) == "reader"

    line, transport = looked_after(silence_s=20)
    line._phase = Phase.WORK
    transport.unsent = 100_000  # the same at every look, but the handler could write more in between
    for second in range(1, 500):
        line.resume_writing()
        assert line.overdue(second) == ""
    transport.unsent = 0
    assert line.overdue(10_000) == ""
    for second in range(20_000, 20_100):  # a byte a second
        transport.unsent = 50_000 + 20_000 - second
        if line.overdue(second):
            break
    assert second <= 20_022, second


def test_a_full_house_lets_go_of_whoever_does_no_work(parser: str) -> None:
    with served_application(Application(), max_connections=20) as (url, bounds), ExitStack() as held:
        for _ in range(10):
            held.enter_context(wire(url))
        for _ in range(40):
            held.enter_context(wire(url)).send(HEAD)
        eventually(lambda: len(bounds) <= 20)
        for _ in range(5):
            with wire(url) as fast:
                assert fast.send(request("GET /")).answer().status == 200


def test_a_full_house_where_all_work_refuses_the_next(parser: str) -> None:
    application = Application()
    application.may_read.clear()
    with served_application(application, max_connections=5) as (url, bounds), ExitStack() as held:
        working = [held.enter_context(wire(url)).send(request("GET /")) for _ in range(5)]
        eventually(lambda: len(bounds) == 5 and not bounds._without_work)
        with wire(url) as one_more:
            got = one_more.answer()
            assert (got.status, got.headers["retry-after"]) == (503, "1")
            assert one_more.is_closed()
        application.may_read.set()
        assert [line.answer().status for line in working] == [200] * 5
        with wire(url) as one_more:
            assert one_more.send(request("GET /")).answer().status == 200


def test_connections_follow_from_the_files_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: given[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: given.append(new))
    assert limits.connections_allowed(ApiOptions()) == 1024 - limits.RESERVED_FILES
    assert limits.connections_allowed(ApiOptions(max_connections=7)) == 7
    limits.raise_file_limit()
    assert given[-1] == (4096, 4096)
    assert limits.connections_allowed(ApiOptions()) == 4096 - limits.RESERVED_FILES
    given.append((50, resource.RLIM_INFINITY))
    assert limits.connections_allowed(ApiOptions()) == limits.MIN_CONNECTIONS
    limits.raise_file_limit()
    assert given[-1][0] == limits.MOST_FILES
