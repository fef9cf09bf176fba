"""A thousand clients that are slow on purpose do not stop a fast one, and are cut off."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tandemq import metrics
from tandemq.core.settings import Settings
from tests.api import ServedApi, served
from tests.http.wire import request, wire
from tests.scenarios.sizes import size
from tests.waiting import eventually

SLOW = size(1000, 3000)
HEAD = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def counted(reason: str) -> int:
    registry = metrics.registry()
    assert registry is not None
    return int(registry.get_sample_value("tandemq_http_cut_total", {"reason": reason}) or 0)


class Crowd:
    """``n`` clients that hold their connections: heads that drip, bodies that stall, readers that do not read."""

    def __init__(self, api: ServedApi, n: int, big: int, stack: ExitStack) -> None:
        parts = (HEAD, HEAD + b"Content-Length: 50\r\n\r\n{", request(f"GET /jobs/{big}"))
        made = [stack.enter_context(wire(api, receive_buffer=4096 * (i % 3 == 2))).send(parts[i % 3]) for i in range(n)]
        self.readers = made[2::3]
        self._dripping = {line.socket for line in made[0::3]}
        self._selector = selectors.DefaultSelector()
        for line in (*made[0::3], *made[1::3]):
            line.socket.setblocking(False)
            self._selector.register(line.socket, selectors.EVENT_READ)

    def drip(self) -> None:
        """A byte of each head; and note who was cut off."""
        for one in list(self._dripping):
            with contextlib.suppress(BlockingIOError, ConnectionError):
                one.send(b"X")
        for key, _ in self._selector.select(0):
            one = key.fileobj
            assert isinstance(one, socket.socket)
            with contextlib.suppress(ConnectionError):
                said = one.recv(4096)
                assert said == b"" or said.startswith(b"HTTP/1.1 408 "), said
            self._selector.unregister(one)
            self._dripping.discard(one)

    def __len__(self) -> int:
        """How many still hold on, of those that send."""
        return len(self._selector.get_map())


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * SLOW + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, "raise the hard limit of open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_slow_clients_do_not_stop_a_fast_one(env: Settings, many_files: None) -> None:
    size_of_big = 150_000
    options = {"head_s": 3.0, "silence_s": 3.0}
    with served(env, send_buffer=16 * 1024, **options) as api, ExitStack() as stack:
        big = api.app.enqueue("big", {"text": "x" * size_of_big}).id
        before = {reason: counted(reason) for reason in ("head", "body", "reader")}
        crowd = Crowd(api, SLOW, big, stack)
        longest_s, n, began = 0.0, 0, time.monotonic()
        client = stack.enter_context(api.client())
        while len(crowd) and time.monotonic() < began + 120:
            crowd.drip()
            sent = time.monotonic()
            job = client.post("/jobs", json={"type": "fast"})
            assert job.status_code == 201, job.text
            assert client.get(f"/jobs/{job.json()['id']}").status_code == 200
            with api.client() as another:
                assert another.get("/health/live").status_code == 200
            longest_s, n = max(longest_s, time.monotonic() - sent), n + 1
        held_s = time.monotonic() - began
        print(f"{SLOW} clients held on for {held_s:.1f} s; the longest of {n} rounds of a fast one: {longest_s:.2f} s")
        assert len(crowd) == 0
        assert n >= 5
        eventually(lambda: counted("reader") - before["reader"] == SLOW // 3)
        cut = {reason: counted(reason) - before[reason] for reason in before}
        assert cut == {"head": (SLOW + 2) // 3, "body": (SLOW + 1) // 3, "reader": SLOW // 3}
        for line in crowd.readers:
            line.socket.settimeout(60)
            assert len(line.rest()) < size_of_big, "the whole answer would be more"
