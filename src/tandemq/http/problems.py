"""Errors as problem documents (RFC 9457): the one place that says which status an error has over HTTP.

A document never quotes SQL, a path or a secret: what the core's own errors say is written for users; anything else
is logged here and answered with a number to look for in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from tandemq.core.codec import write
from tandemq.core.errors import (
    EnqueueUnknown,
    IdempotencyConflict,
    InvalidTask,
    LeaseLost,
    PayloadTooLarge,
    StoreBusy,
    StoreRefused,
    StoreUnknown,
    TaskNotFound,
    Unavailable,
)
from tandemq.core.ids import lease_token

_log = logging.getLogger("tandemq.http")
MEDIA_TYPE: Final = "application/problem+json"
#: Characters of a document's texts, which quote what was sent.
MAX_DETAIL, MAX_FIELD = 1000, 200
#: What a client is told to wait when a server is away.
RETRY_AFTER_S: Final = 2


class Kind(NamedTuple):
    """A kind of problem: its status and its title."""

    status: int
    title: str


#: By the last part of ``type`` (``urn:tandemq:problem:...``).
KINDS: Final[Mapping[str, Kind]] = {
    "invalid": Kind(400, "The request is not valid"),
    "unauthorized": Kind(401, "A valid bearer token is needed"),
    "forbidden": Kind(403, "This token may not do that"),
    "not-found": Kind(404, "There is no such thing"),
    "method-not-allowed": Kind(405, "This path has no such method"),
    "too-slow": Kind(408, "The request took too long to arrive"),
    "key-conflict": Kind(409, "The idempotency key belongs to another task"),
    "lease-lost": Kind(409, "The lease is lost"),
    "wrong-state": Kind(409, "The task is in another state"),
    "too-large": Kind(413, "The request is too large"),
    "target-too-long": Kind(414, "The path and the query are too long"),
    "unsupported-media-type": Kind(415, "The body must be JSON"),
    "too-many-requests": Kind(429, "Too many requests"),
    "head-too-large": Kind(431, "The headers are too large"),
    "internal": Kind(500, "The request failed"),
    "unavailable": Kind(503, "A server is away, nothing was stored"),
    "unknown-outcome": Kind(503, "A server went away, the outcome is not known"),
}


class Problem(Exception):
    """An answer that is an error. ``more`` are further members of the document: ``field``, ``task_id``."""

    def __init__(self, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.headers, self.more = kind, detail, dict(headers or {}), more

    @property
    def status(self) -> int:
        """The HTTP status."""
        return KINDS[self.kind].status

    def document(self) -> dict[str, Any]:
        """The body."""
        kind = KINDS[self.kind]
        given = {name: value for name, value in self.more.items() if value is not None and value != ""}
        if isinstance(given.get("field"), str):
            given["field"] = _plain(given["field"], MAX_FIELD)
        return {
            "type": f"urn:tandemq:problem:{self.kind}", "title": kind.title, "status": kind.status,
            "detail": _plain(self.detail, MAX_DETAIL), **given,
        }  # fmt: skip

    def response(self) -> Response:
        """The answer."""
        return Response(write(self.document()), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def _plain(text: str, limit: int) -> str:
    """Bounded, and UTF-8 whatever was sent, for it is quoted here."""
    text = text if len(text) <= limit else f"{text[:limit]}..."
    return text.encode(errors="backslashreplace").decode()


def problem_of(error: BaseException) -> Problem:
    """What an error means to a client."""
    match error:
        case Problem():
            return error
        case PayloadTooLarge():
            return Problem("too-large", str(error), field=error.field)
        case InvalidTask():
            return Problem("invalid", str(error), field=error.field)
        case IdempotencyConflict():
            return Problem("key-conflict", str(error), field="idempotency_key", task_id=error.task_id)
        case LeaseLost():
            return Problem("lease-lost", str(error), field="lease_token")
        case TaskNotFound():
            return Problem("not-found", str(error), field="id")
        case EnqueueUnknown() | StoreUnknown():
            _log.warning("answered 503: %s", error)
            return unknown("the connection to the database broke; look, or send it again with the same key or token")
        case Unavailable():
            return _away(error)
        case _:
            return _internal(error)


def unknown(text: str) -> Problem:
    """Done or not, nobody can tell; ``text`` says what to do."""
    return Problem("unknown-outcome", text, headers={"Retry-After": str(RETRY_AFTER_S)})


def _away(error: Unavailable) -> Problem:
    # The texts of drivers name hosts, users and ports.
    _log.warning("answered 503: %s", error)
    text = "the database (or Redis) cannot be reached at the moment; send the request again"
    if isinstance(error, StoreBusy):
        text = "another transaction holds the idempotency key, or rows that this needs; send the request again"
    return Problem("unavailable", text, headers={"Retry-After": str(RETRY_AFTER_S)})


def _internal(error: BaseException) -> Problem:
    number = f"{lease_token():016x}"
    _log.error("error %s: %s", number, error, exc_info=None if isinstance(error, StoreRefused) else error)
    return Problem("internal", f"the error is in the log of the API as {number}")
