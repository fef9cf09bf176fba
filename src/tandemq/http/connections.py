"""uvicorn's protocols with time-outs: uvicorn itself waits for ever for the rest of a head, of a body, or for a reader.

A connection is in one of five phases, which follow from what the parser has seen. Each has its limit in ``ApiOptions``;
``Limits`` looks at every connection about once a second, so a limit holds to a second.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from tandemq import metrics
from tandemq.core.codec import write
from tandemq.http.limits import CONNECTION, MAX_HEAD_BYTES, Limits
from tandemq.http.problems import MEDIA_TYPE, Problem

#: Of a body that nobody reads any more. A client that gets its answer (413, 401) only after it has sent everything is
#: let go on so long; one that is closed in the middle of sending may never see the answer.
MAX_REST_BYTES: Final = 64 * 1024 * 1024
#: What a writer has got rid of when it may go on: the difference of asyncio's high and low water.
_WATER: Final = 48 * 1024
#: States of a TCP connection whose other end has closed; Linux tells them.
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_LEFT: Final = (7, 8)  # CLOSE, CLOSE_WAIT
_CUT: Final = {
    "head": Problem("too-slow", "the head of the request took too long to arrive"),
    "body": Problem("too-slow", "the body of the request took too long to arrive"),
    "full": Problem("unavailable", "too many connections are open; try again", headers={"Retry-After": "1"}),
    "broken": Problem("invalid", "this is no HTTP request that can be understood"),
    "head-size": Problem("head-too-large", f"the head of a request may have {MAX_HEAD_BYTES} bytes"),
}


class Phase(Enum):
    """Where a connection is. No request is at work on it in the first three: see ``Limits``."""

    IDLE = "between two requests, or before the first"
    HEAD = "a part of a head has come"
    REST = "the answer is given, the body is still coming"
    BODY = "the body is coming"
    WORK = "the request is here, its answer is not given yet"


class Watched(asyncio.Protocol):
    """Mixed into a protocol of uvicorn, in front of it."""

    limits: Limits  # of the class: one class for each server
    transport: Any
    flow: Any
    cycle: Any
    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connects."""
        self._phase, self._since, self._last, self._received = Phase.IDLE, self.loop.time(), 0.0, 0
        self._is_first, self._is_cut, self._is_admitted = True, False, False
        self.app_state = {**self.app_state, CONNECTION: self}
        self._looked_at = self._since
        self._unsent, self._taken, self._sending_since, self._taken_at, self._resumed = 0, 0, 0.0, 0.0, False
        super().connection_made(transport)
        if self.limits.add(self):
            self.limits.note(self, at_work=False)
        else:
            self.cut("full")

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self.limits.remove(self)
        self._tell_the_cycles()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then see where that has led."""
        if self._is_cut:
            return
        self._last, before = self.loop.time(), self._phase
        super().data_received(data)
        self._settle(has_come=True)
        if self._phase is before:
            self._received += len(data)
        elif self._phase is not Phase.HEAD or before is Phase.IDLE:
            self._received = len(data)  # else most of it may be the body before this head
        if self._phase is Phase.HEAD and self._received > MAX_HEAD_BYTES:
            self.cut("head-size")

    def resume_writing(self) -> None:
        """The reader has taken something."""
        self._resumed = True
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """The parser gives up. What came before on this connection and is at work is answered first, if it can be."""
        whole = [cycle for cycle in self.cycles() if not cycle.more_body]
        if whole:
            self.flow.pause_reading()
            whole[-1].keep_alive = False
        else:
            self.cut("broken")

    # For Limits

    def overdue(self, now: float) -> str:
        """Why it must be cut off now, or nothing."""
        paused_s, self._looked_at = now - self._looked_at, now
        if self._reader_is_stuck(now):
            return "reader"
        if self._is_cut:
            return ""
        options, waited = self.limits.options, now - self._since
        if self._phase is Phase.WORK:
            return "gone" if self.flow.read_paused and self._has_left() else ""
        if self._phase is Phase.IDLE:
            return "idle" if waited > (options.head_s if self._is_first else options.idle_s) else ""
        if self._phase is Phase.HEAD:
            return "head" if waited > options.head_s else ""
        if self.flow.read_paused:  # it is us who do not read
            self._since, self._last = self._since + paused_s, self._last + paused_s
        if self._phase is Phase.REST and self._received > MAX_REST_BYTES:
            return "rest"
        return "body" if self.limits.too_slow(now, self._since, self._last, self._received) else ""

    def cut(self, reason: str) -> None:
        """Close it, with an answer where nothing has been answered and somebody may read it."""
        was_cut, self._is_cut = self._is_cut, True
        if not was_cut:
            metrics.http_cut(reason)
        cycles = self.cycles()
        # Of several requests the first is answered first, and this is about the last.
        is_answering = self._phase is Phase.REST or len(cycles) > 1 or any(cycle.response_started for cycle in cycles)
        answer = None if is_answering or was_cut else _CUT.get(reason)
        self._tell_the_cycles()
        if cycles:
            self.flow.resume_writing()  # a handler that waits for the reader waits no longer
        if answer is None:
            self.transport.abort()
        else:
            self.transport.write(_raw(answer))
            self.transport.close()

    def admitted(self) -> None:
        """See ``limits``."""
        if self._phase in (Phase.BODY, Phase.WORK):
            self._is_admitted = True
            self.limits.note(self, at_work=True)

    # Phases

    def cycles(self) -> list[Any]:
        """The requests that are not answered yet, the one at work first."""
        return [] if self.cycle is None or self.cycle.response_complete else [self.cycle]

    def reads_head(self) -> bool:
        """Whether a part of a head has come."""
        raise NotImplementedError

    def reads_body(self) -> bool:
        """Whether the body of a request is still coming."""
        raise NotImplementedError

    def _settle(self, *, has_come: bool = False) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if self.reads_body():
            phase = Phase.REST if is_answered else Phase.BODY
        elif not is_answered:
            phase = Phase.WORK
        else:
            # Empty lines before a head are nothing to the parser, but no reason to wait for ever.
            begun = self.reads_head() or self._phase is Phase.HEAD or (has_come and self._phase is Phase.IDLE)
            phase = Phase.HEAD if begun else Phase.IDLE
        if phase is not self._phase:
            self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._phase, self._received = phase, 0
        self._since = self._last = self.loop.time()
        # Tuples, which are searched by identity: the hash of an Enum's member is a call.
        self._is_first &= phase in (Phase.IDLE, Phase.HEAD)
        self._is_admitted &= phase in (Phase.BODY, Phase.WORK)
        self.limits.note(self, at_work=self._is_admitted)

    def _answered(self) -> None:
        self._is_admitted = False  # the next request on this connection may be another caller's
        self.limits.note(self, at_work=False)
        if self._phase is Phase.WORK:
            self._phase = Phase.IDLE  # or a part of the next head is here already, which ``_settle`` sees
            self._since = self.loop.time()
        self._settle()

    def _tell_the_cycles(self) -> None:
        for cycle in self.cycles():
            cycle.disconnected = True
            cycle.message_event.set()

    def _has_left(self) -> bool:
        """Whether the client has closed. Asked where nothing is read: the event loop does not see it then."""
        connected = self.transport.get_extra_info("socket")
        if connected is None or _TCP_INFO is None or self.transport.is_closing():
            return False
        return connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 8)[0] in _LEFT

    def _reader_is_stuck(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._unsent = 0
            return False
        if not self._unsent:
            self._sending_since = self._taken_at = now
            self._taken = 0
        elif self._resumed or unsent < self._unsent:
            self._taken += max(self._unsent - unsent, _WATER if self._resumed else 0)
            self._taken_at = now
        self._unsent, self._resumed = unsent, False
        return self.limits.too_slow(now, self._sending_since, self._taken_at, self._taken)


class WatchedH11(Watched, H11Protocol):
    """Where httptools is not installed."""

    def on_response_complete(self) -> None:
        """An answer is given."""
        super().on_response_complete()
        self._answered()

    def reads_head(self) -> bool:
        """See ``Watched``."""
        return bool(self.conn.trailing_data[0])

    def reads_body(self) -> bool:
        """See ``Watched``."""
        return str(self.conn.their_state) == "SEND_BODY"


def protocol_class(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol for one server: on httptools, or on h11, which is slower, where that is missing."""
    try:
        from tandemq.http.connections_httptools import WatchedHttpTools as Base
    except ImportError:
        return type("Bounded", (WatchedH11,), {"limits": limits})
    return type("Bounded", (Base,), {"limits": limits})


def _raw(problem: Problem) -> bytes:
    """The answer of a connection that is closed, past uvicorn and the application."""
    body = write(problem.document()).encode()
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", f"content-type: {MEDIA_TYPE}"]
    lines += [f"content-length: {len(body)}", "connection: close", "cache-control: no-store"]
    lines += ["x-content-type-options: nosniff", *(f"{name}: {value}" for name, value in problem.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
