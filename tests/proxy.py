"""A TCP relay between a client and a server that can lose answers, go silent, cut and hold: faults on purpose.

Threads of its own, no dependency. Faults are armed while connections stand::

    proxy = Proxy("127.0.0.1", server.port)
    proxy.swallow(b"BRPOP")        # the request is passed on, its answer is lost and the connection cut
    proxy.stop_before(b"COMMIT")   # the request never arrives and the connection is cut
    proxy.hold(b"EVALSHA", 2.0)    # the request arrives 2 seconds later
    proxy.silent = True            # nothing passes either way, connections stand
    proxy.cut()                    # every connection is reset now
    proxy.refuse = True            # new connections are reset

A pattern is matched anywhere in what the client sends, ignoring case ("autocommit" holds "commit": arm after
connecting). ``proxy.hits`` counts how often an armed fault has struck, ``proxy.struck[pattern]`` one of them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class _Fault:
    pattern: bytes
    action: str
    times: int
    seconds: float = 0.0


class _Link:
    """One client connection and its twin to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.swallowing = False

    def cut(self) -> None:
        """Reset both ends; safe from any thread and more than once."""
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads it; SHUT_RDWR would end politely, by a FIN
            with contextlib.suppress(OSError):
                end.close()


class Proxy:
    """Listens on a port of its own from construction to ``close``."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.refuse = False
        self.hits = 0
        self.struck: Counter[bytes] = Counter()
        self.connections = 0
        self._faults: list[_Fault] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    @property
    def silent(self) -> bool:
        """While True nothing passes in either direction; what was sent meanwhile passes afterwards."""
        return not self._flowing.is_set()

    @silent.setter
    def silent(self, on: bool) -> None:
        (self._flowing.clear if on else self._flowing.set)()

    def swallow(self, pattern: bytes, times: int = 1) -> None:
        """Pass the next ``times`` requests that hold ``pattern`` on, then lose the answer and cut the connection."""
        self._arm(_Fault(pattern.lower(), "swallow", times))

    def stop_before(self, pattern: bytes, times: int = 1) -> None:
        """Cut the connection instead of passing the request on."""
        self._arm(_Fault(pattern.lower(), "stop", times))

    def hold(self, pattern: bytes, seconds: float, times: int = 1) -> None:
        """Pass the request on ``seconds`` later."""
        self._arm(_Fault(pattern.lower(), "hold", times, seconds))

    def disarm(self) -> None:
        """Forget faults that have not struck yet."""
        with self._lock:
            self._faults.clear()

    def cut(self) -> None:
        """Reset every connection that stands."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.cut()

    def close(self) -> None:
        """Stop listening and cut everything."""
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _arm(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True, name="proxy").start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuse:
                    raise OSError("refused")
                server = socket.create_connection(self.target, timeout=10)
            except OSError:
                _Link(client, client).cut()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
                self.connections += 1
            self._spawn(self._up, link)
            self._spawn(self._down, link)

    def _up(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while piece := link.client.recv(CHUNK):
                self._flowing.wait()
                fault = self._struck(piece)
                if fault is not None and fault.action == "stop":
                    break
                if fault is not None and fault.action == "hold":
                    self._closed.wait(fault.seconds)
                if fault is not None and fault.action == "swallow":
                    link.swallowing = True  # before sending: the answer may be faster than this thread
                link.server.sendall(piece)
        self._drop(link)

    def _down(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while piece := link.server.recv(CHUNK):
                self._flowing.wait()
                if link.swallowing:
                    break
                link.client.sendall(piece)
        self._drop(link)

    def _struck(self, piece: bytes) -> _Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.pattern in piece.lower():
                    fault.times -= 1
                    self.hits += 1
                    self.struck[fault.pattern] += 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                    return fault
        return None

    def _drop(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)
        link.cut()
