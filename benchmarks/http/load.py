"""A load generator: ``python -m benchmarks.http.load PORT CLIENTS REQUESTS``; one JSON line when done.

Each client keeps one connection and sends its next request when the last is answered, over a bare protocol: a client
library would be the bottleneck. It waits for a line on its standard input before it begins.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import uvloop

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


def request_bytes(n: int, path: str = "/jobs") -> bytes:
    """A small task, every one another."""
    body = json.dumps({"type": "bench.noop", "payload": {"user": n, "to": "someone@example.com", "retry": True}})
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, requests: list[bytes], over: asyncio.Future[None]) -> None:
        self.requests, self.over = requests, over
        self.buffer = b""
        self.took: list[float] = []

    def begin(self) -> None:
        self.at = time.perf_counter()
        self.transport.write(self.requests.pop())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's is no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(HEAD_END)
        if head < 0:
            return
        at = self.buffer.lower().find(LENGTH, 0, head)
        size = int(self.buffer[at + len(LENGTH) : self.buffer.index(b"\r", at)])
        if len(self.buffer) < head + len(HEAD_END) + size:
            return
        self.took.append(time.perf_counter() - self.at)
        if self.buffer[9:12] != b"201":
            self.over.set_exception(RuntimeError(self.buffer[:2000].decode(errors="replace")))
            return
        self.buffer = b""
        if self.requests:
            self.begin()
        else:
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(ConnectionError(f"the server closed the connection: {error}"))


async def run(port: int, clients: int, requests: int) -> dict[str, object]:
    """Send them; when that began and ended (CLOCK_MONOTONIC, the same for all processes), and each answer's time."""
    loop = asyncio.get_running_loop()
    made: list[Client] = []
    for number in range(clients):
        mine = [request_bytes(n) for n in range(number, requests, clients)]
        _, client = await loop.create_connection(
            lambda mine=mine: Client(mine, loop.create_future()), "127.0.0.1", port
        )  # type: ignore[misc]
        made.append(client)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.monotonic()
    for client in made:
        client.begin()
    await asyncio.gather(*(client.over for client in made))
    ended = time.monotonic()
    for client in made:
        client.transport.close()
    return {"began": began, "ended": ended, "took": [t for client in made for t in client.took]}


def main() -> None:
    port, clients, requests = map(int, sys.argv[1:])
    done = uvloop.run(run(port, clients, requests))
    # Not by print, which leaves out what a pipe does not take at once where PYTHONUNBUFFERED is set.
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(json.dumps(done).encode())


if __name__ == "__main__":
    main()
