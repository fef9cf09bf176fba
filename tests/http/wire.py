"""Bytes on a socket, for requests that no client would send."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.api import ServedApi

PATIENCE_S = 30.0


class Answer(NamedTuple):
    """One answer. ``body`` as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self._buffer = b""

    def send(self, data: bytes | str) -> Wire:
        """Send; whether the other side takes it shows later."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        return self

    def answer(self) -> Answer:
        """The next answer; its body is as long as it says."""
        head, _, self._buffer = self._until(b"\r\n\r\n").partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._buffer) < length and self._more():
            pass
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answer(int(first.split()[1]), headers, body)

    def rest(self) -> bytes:
        """All that comes until the other side closes."""
        while self._more():
            pass
        return self._buffer

    def is_closed(self) -> bool:
        """Whether the other side has closed, and sent nothing more."""
        return self.rest() == b""

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            assert self._more(), f"closed after {self._buffer[:200]!r}"
        return self._buffer

    def _more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)


@contextmanager
def wire(api: ServedApi | str, *, receive_buffer: int = 0) -> Iterator[Wire]:
    """Connect."""
    url = urlsplit(api if isinstance(api, str) else api.url)
    with socket.socket() as made:
        made.settimeout(PATIENCE_S)
        if receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.connect((url.hostname, url.port))
        yield Wire(made)


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    """``request("GET /x", "Accept: a")``, with a Host and the length of the body."""
    lines = [f"{line} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
