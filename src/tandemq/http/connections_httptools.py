"""The protocol on httptools: imported only where that is installed."""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandemq.http.connections import Watched
from tandemq.http.limits import MAX_HEAD_BYTES


class _WithoutUpgrades(HttpToolsProtocol):
    """A request to go on in another protocol (h2c, websocket) is served in this one, as HTTP allows.

    The parser would end at the head and leave the body, which would be taken for the next request. So it is given the
    head once more, without that header.
    """

    def data_received(self, data: bytes) -> None:
        """Instead of uvicorn's."""
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as ended:
                    if self.parser.get_method() == b"CONNECT":
                        self.send_400_response("")
                        return
                    rest = rest[ended.args[0] :]
                    self._begin_again()
        except httptools.HttpParserError:
            self.send_400_response("")

    def _begin_again(self) -> None:
        old = self.parser
        lines = [b"%s %s HTTP/%s" % (old.get_method(), self.url, old.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))


class WatchedHttpTools(Watched, _WithoutUpgrades):
    """httptools itself keeps no account of where in a message it is, and bounds nothing."""

    _in_head = _in_body = _has_body_come = False
    _running: Any = None
    _overhead = 0  # bytes since the last of a body: the sizes of chunks, trailers

    def data_received(self, data: bytes) -> None:
        """Bounded also where it is neither head nor body."""
        was_in_body, self._has_body_come = self._in_body, False
        super().data_received(data)
        self._overhead = self._overhead + len(data) if was_in_body and self._in_body and not self._has_body_come else 0
        if self._overhead > MAX_HEAD_BYTES and not self._is_cut:
            self.cut("head-size")

    def connection_lost(self, exc: Exception | None) -> None:
        """Requests that wait for their turn will not have it."""
        super().connection_lost(exc)
        self.pipeline.clear()

    def cut(self, reason: str) -> None:
        """See ``Watched``."""
        super().cut(reason)
        self.pipeline.clear()

    def cycles(self) -> list[Any]:
        """uvicorn itself knows the last one only."""
        running = [] if self._running is None or self._running.response_complete else [self._running]
        return running + [cycle for cycle, _ in reversed(self.pipeline)]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Those behind a body mean nothing here, and would be kept without a limit."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A body may follow."""
        if self.parser.should_upgrade():
            return
        self._in_head, self._in_body = False, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._has_body_come = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It did not, or has ended."""
        if self.parser.should_upgrade():
            return
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is given."""
        super().on_response_complete()
        self._answered()

    def reads_head(self) -> bool:
        """See ``Watched``."""
        return self._in_head

    def reads_body(self) -> bool:
        """See ``Watched``."""
        return self._in_body
