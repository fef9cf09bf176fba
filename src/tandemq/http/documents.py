"""What the OpenAPI document says about one route beyond the table of routes, and the parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandemq.http import schemas
from tandemq.http.problems import KINDS, MEDIA_TYPE
from tandemq.http.schemas import Schema, ref

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
#: Problems that any request may meet; that a token may meet; that a body may meet.
ANY_STATUSES: Final = (400, 408, 414, 431, 500, 503)
TOKEN_STATUSES: Final = (401, 403, 429)
BODY_STATUSES: Final = (413, 415)
_SECONDS: Final[Schema] = {"description": "Whole seconds.", "required": True, "schema": schemas.integer(1)}
_HEADERS: Final[Mapping[int, Mapping[str, Schema]]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": schemas.text("^Bearer")}},
    405: {"Allow": {"required": True, "schema": schemas.text()}},
    429: {"Retry-After": _SECONDS},
    503: {"Retry-After": _SECONDS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer that is no problem. ``schema`` is that of JSON; ``others``: media type -> schema."""

    text: str
    schema: Schema | None = None
    others: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    links: Mapping[str, Schema] = field(default_factory=dict)
    example: Any = None

    def to_json(self) -> Schema:
        """A response object."""
        shape: Schema = {"description": self.text}
        content = {media: {"schema": schema} for media, schema in self.others.items()}
        if self.schema is not None:
            content[JSON] = {"schema": self.schema} | ({} if self.example is None else {"example": self.example})
        if content:
            shape["content"] = content
        if self.headers:
            shape["headers"] = dict(self.headers)
        if self.links:
            shape["links"] = dict(self.links)
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One route. ``body``: media type -> schema; ``examples``: bodies by name; ``problems``: statuses of its own."""

    summary: str
    text: str = ""
    tag: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Mapping[str, Schema] = field(default_factory=dict)
    examples: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[int, Answer]
    problems: tuple[int, ...] = ()


def link(operation: str, found: str, *, body: Any = None, text: str = "") -> Schema:
    """A link to an operation on the task whose id is at ``found`` of the answer."""
    shape: Schema = {"operationId": operation, "parameters": {"id": f"$response.body#{found}"}}
    shape |= {} if body is None else {"requestBody": body}
    return shape | ({"description": text} if text else {})


def location(path: str) -> Mapping[str, Schema]:
    """The Location header."""
    return {"Location": {"description": f"{path}", "required": True, "schema": schemas.text(f"^{path}[1-9][0-9]*$")}}


def kinds_of(status: int) -> dict[str, str]:
    """The kinds of problem that have this status, with their titles."""
    return {name: kind.title for name, kind in KINDS.items() if kind.status == status}


def problem_responses() -> dict[str, Schema]:
    """One response per status that a problem may have, for ``components``."""
    return {
        f"Problem{status}": {
            "description": " / ".join(kinds_of(status).values()),
            "content": {MEDIA_TYPE: {"schema": schemas.problem(kinds_of(status))}},
            **({"headers": dict(_HEADERS[status])} if status in _HEADERS else {}),
        }
        for status in sorted({kind.status for kind in KINDS.values()})
    }


JOB: Final = ref("Job")
JOB_EXAMPLE: Final[dict[str, Any]] = {
    "id": 41,
    "id_str": "41",
    "type": "mail.send",
    "queue": "default",
    "payload": {"to": "ada@example.org"},
    "priority": 20,
    "priority_label": "high",
    "status": "pending",
    "state": "ready",
    "attempts": 0,
    "retry_count": 0,
    "max_retries": 3,
    "replays": 0,
    "idempotency_key": "welcome-7",
    "run_at": "2026-11-30T12:00:00.000000Z",
    "next_attempt_at": "2026-11-30T12:00:00.000000Z",
    "claimed_at": None,
    "started_at": None,
    "completed_at": None,
    "created_at": "2026-11-30T12:00:00.000000Z",
    "worker_id": None,
    "error": None,
    "error_type": None,
    "dead_reason": None,
    "result": None,
    "attempts_log": [],
}
