"""Around the application: what no request may be, what every answer has, what becomes of an error nobody expected.

Plain ASGI, and cheap: every request goes through it twice. Slow clients are the business of ``connections``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandemq import metrics
from tandemq.http.calls import Caller
from tandemq.http.limits import MAX_HEAD_BYTES
from tandemq.http.options import ApiOptions
from tandemq.http.problems import RETRY_AFTER_S, Problem, problem_of
from tandemq.http.routing import Route
from tandemq.http.security import LOCAL

if TYPE_CHECKING:
    from tandemq.http.api import Api

_access = logging.getLogger("tandemq.http.access")
#: Under this key of the scope the application tells which route and which caller it was.
TOLD: Final = "tandemq.told"
NO_ROUTE: Final = "(none)"
MAX_TARGET_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
_CLOSE: Final = {"Connection": "close"}
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


class Told:
    """What becomes known of a request on its way: for the metrics and the access log."""

    __slots__ = ("caller", "is_gone", "path", "route", "status")

    def __init__(self) -> None:
        self.route, self.path, self.caller, self.status = NO_ROUTE, "-", "-", 0
        self.is_gone = False

    def admitted(self, route: Route, caller: str = "-") -> None:
        """This route; ``caller`` once that is known."""
        self.route, self.path, self.caller = route.name, route.path, caller


class Guard:
    """The application as it is served. ``api`` is what its handlers share."""

    def __init__(self, application: ASGIApp, api: Api, methods: Mapping[str, tuple[str, ...]]) -> None:
        self.api, self._options = api, api.options
        self._application = _with_cors(_with_methods(application, methods), self._options)
        self._now = api.app.clock.monotonic  # uvloop's own time has whole milliseconds only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the whole life of the server."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began = self._now()
        scope[TOLD] = told = Told()
        try:
            await self._serve(scope, receive, _dressed(send, told, scope["scheme"] == "https"), told)
        finally:
            seconds = self._now() - began
            metrics.http_request(told.route, told.status, seconds)
            if self._options.access_log:
                ms = 1000 * seconds
                _access.info("%s %s %s %.1f ms %s", scope["method"], told.path, told.status or "gone", ms, told.caller)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, told: Told) -> None:
        try:
            self._refuse(scope)
            await self._application(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and the time that requests are given for that is over
            text = "the server stops; whether the request was carried out is not known, look before you send it again"
            problem = Problem("unknown-outcome", text, headers={"Retry-After": str(RETRY_AFTER_S)})
        except Exception as error:
            problem = problem_of(error)  # logs what is a fault of ours
        else:
            return
        if not told.status:
            await problem.response()(scope, receive, send)

    def _refuse(self, scope: Scope) -> None:
        """What neither a route nor a role is needed for."""
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if len(raw) + len(scope["query_string"]) > MAX_TARGET_BYTES:
            raise Problem("target-too-long", f"path and query may have {MAX_TARGET_BYTES} bytes together")
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise Problem("head-too-large", f"a request may have {MAX_HEADERS} headers, this one has {len(headers)}")
        if scope["http_version"] not in {"1.0", "1.1"}:
            raise Problem("invalid", "the version must be HTTP/1.1 or HTTP/1.0", headers=_CLOSE)
        size = len(raw) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEAD_BYTES:  # a head that comes in one piece is longer before anybody counts
            raise Problem("head-too-large", f"the head of a request may have {MAX_HEAD_BYTES} bytes", headers=_CLOSE)
        if scope["method"] == "CONNECT":  # what follows may be meant for somebody else
            raise Problem("invalid", "this is no proxy", headers=_CLOSE)
        names = [name for name, _ in headers]
        if names.count(b"host") != 1 and not (b"host" not in names and scope["http_version"] == "1.0"):
            raise Problem("invalid", "a request has exactly one Host header", field="Host", headers=_CLOSE)
        if b"content-length" in names and b"transfer-encoding" in names:
            # A proxy in front may have read another body than the parser here, and take its rest for a request.
            raise Problem("invalid", "Content-Length and Transfer-Encoding exclude each other", headers=_CLOSE)
        if b"%" in raw:
            # Decoded, %2F would be one more step of the path here and none for a proxy that guards paths.
            raise Problem("not-found", "no path of this API has percent-encoded characters; see /openapi.json")


def not_allowed(method: str, allowed: tuple[str, ...]) -> Problem:
    """405."""
    return Problem("method-not-allowed", f"{method} is not allowed here", headers={"Allow": ", ".join(allowed)})


def refuse_foreign(request: Request, caller: Caller, options: ApiOptions) -> None:
    """In open mode a web page must not use the API through the browser of whoever runs it.

    A page can send a request across origins without being let read the answer, and a POST that needs no body is carried
    out all the same; but its browser says where it comes from. With tokens it has none to send. (That a page calls this
    machine by a name of its own is the gate's business.)
    """
    origin = request.headers.get("origin")
    if caller is not LOCAL or origin is None:
        return
    if origin not in {f"{options.scheme}://{request.headers['host']}", *options.cors_origins}:
        raise Problem("forbidden", f"web pages of {origin[:100]!r} may not call this API; --cors lets them")


def _with_methods(application: ASGIApp, methods: Mapping[str, tuple[str, ...]]) -> ASGIApp:
    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        allowed = methods.get(scope["path"]) if scope["type"] == "http" else None
        if allowed is not None and scope["method"] not in allowed:
            await not_allowed(scope["method"], allowed).response()(scope, receive, send)
        else:
            await application(scope, receive, send)

    return checked


def _with_cors(application: ASGIApp, options: ApiOptions) -> ASGIApp:
    if not options.cors_origins:
        return application
    return CORSMiddleware(
        application,
        allow_origins=options.cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"),
        expose_headers=("Location", "Retry-After"),
    )


def _dressed(send: Send, told: Told, is_tls: bool) -> Send:
    async def dressed(message: Message) -> None:
        if told.is_gone:
            return
        if message["type"] == "http.response.start":
            told.status = message["status"]
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            given = {name for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in given]
            if is_tls:
                headers.append(_HSTS)
            message = {**message, "headers": headers}
        await send(message)

    return dressed


def told_of(scope: Mapping[str, Any]) -> Told:
    """Where the application puts what it finds out."""
    told: Told = scope[TOLD]
    return told
