"""A small HTTP listener in a thread: ``/metrics`` for Prometheus, ``/health/live`` and ``/health/ready`` for probes.

It holds no secrets and changes nothing, and has no password: it listens on this machine alone unless told otherwise.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from tandemq.core.clock import SystemClock
from tandemq.core.errors import ConfigurationError
from tandemq.monitoring.exposition import Exposition

_log, _clock = logging.getLogger("tandemq.monitoring"), SystemClock()
#: For a request to arrive and its answer to leave; and so many requests at a time.
REQUEST_S, REQUESTS = 5.0, 8
#: Threads at most: those of connections that were cut need a moment to notice.
THREADS = 4 * REQUESTS
#: How late a stop is noticed.
STOP_S = 0.2
JSON: Final = "application/json"


class Health(Protocol):
    """What a process knows of itself: sentences on what is wrong, none if all is well."""

    def not_live(self) -> list[str]:
        """Why it should be started anew: something hangs that a server away does not explain."""
        ...

    def not_ready(self) -> list[str]:
        """Why it does no work now: also a server that does not answer."""
        ...


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_S
    server_version, sys_version = "tandemq", ""

    def do_GET(self) -> None:
        """One of three pages."""
        routes: dict[str, Callable[[], None]] = {
            "/metrics": self._metrics,
            "/health/live": lambda: self._health(self.server.health.not_live()),
            "/health/ready": lambda: self._health(self.server.health.not_ready()),
        }
        route = routes.get(self.path.split("?", 1)[0])
        if route is None:
            self._answer(404, b"there is /metrics, /health/live and /health/ready\n", "text/plain")
            return
        try:
            route()
        except OSError:
            raise  # whoever asked went away
        except Exception:
            _log.exception("a page cannot be made")
            self._answer(500, b"", "text/plain")

    do_HEAD = do_GET  # noqa: N815 - the name in the library

    def _metrics(self) -> None:
        page = self.server.exposition.page()
        self._answer(200, page.text, page.content_type)

    def _health(self, wrong: list[str]) -> None:
        shape = {"status": "unavailable" if wrong else "ok", "wrong": wrong}
        self._answer(503 if wrong else 200, json.dumps(shape).encode() + b"\n", JSON)

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the library
        """Scrapes are not worth a line."""
        _log.debug(format, *args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64  # with the usual 5 a burst of connections waits for the retransmission of its SYN
    exposition: Exposition
    health: Health

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._lock = threading.Lock()
        #: Connections that are open, the oldest first, and since when.
        self._open: dict[Any, float] = {}
        self._room = threading.Semaphore(THREADS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the library's question to a name server, which may take its time."""
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 as well
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread each. Where there are too many the oldest goes: a probe must be heard beside clients that idle."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            while len(self._open) >= REQUESTS:
                self._cut(next(iter(self._open)))
            self._open[request] = _clock.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the place back, whatever happens."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def service_actions(self) -> None:
        """Called some times a second: end connections whose time is up, however busily they trickle."""
        late = _clock.monotonic() - _Handler.timeout
        with self._lock:
            for request in [request for request, since in self._open.items() if since < late]:
                self._cut(request)

    def _cut(self, request: Any) -> None:
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # its thread reads or writes no more, and closes it

    def _ended(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._room.release()

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        """A client that goes away is no fault of ours."""
        _log.debug("a request was cut off", exc_info=True)


class Listener:
    """Listens from its making on, answers from ``start`` to ``stop``. ConfigurationError if the port cannot be had."""

    def __init__(self, host: str, port: int, exposition: Exposition, health: Health) -> None:
        try:
            self._server = _Server((host, port))
        except (OSError, OverflowError) as refused:
            raise ConfigurationError(f"--metrics-host {host} --metrics-port {port}: {refused}") from None
        self._server.exposition, self._server.health = exposition, health
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_S,), name="tandemq-metrics", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is the true one where 0 was asked for."""
        host, port, *_ = self._server.server_address
        return str(host), int(port)

    def start(self) -> None:
        """Answer, in a thread."""
        self._thread.start()
        host, port = self.address
        _log.info("metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)

    def stop(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
