"""The OpenAPI document: made of the table of routes, and of a description by the name of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from starlette.responses import Response

import tandemq
from tandemq.core.codec import write
from tandemq.http import (
    documents_enqueuing,
    documents_looking,
    documents_operating,
    documents_working,
    schemas,
)
from tandemq.http.calls import Call
from tandemq.http.documents import ANY_STATUSES, BODY_STATUSES, TOKEN_STATUSES, Described, problem_responses
from tandemq.http.routing import Route
from tandemq.http.schemas import Limits, Schema

_ABOUT: Final = (
    "A durable task queue. What is answered 2xx has been committed. Errors are problem documents (RFC 9457) that name"
    " the field; unknown fields and parameters are refused. Times are RFC 3339, seconds are numbers, ids are numbers"
    " and text. A 503 may be sent again after Retry-After."
)
_PARTS: Final = (documents_enqueuing, documents_working, documents_looking, documents_operating)


async def document(call: Call) -> Response:
    """The document of this installation."""
    call.query()
    settings = call.api.app.settings
    limits = Limits(
        settings.max_payload_bytes, settings.max_result_bytes, call.api.options.max_wait_s, settings.lease_s
    )
    return Response(_text(limits), media_type="application/json")


@lru_cache(maxsize=4)
def _text(limits: Limits) -> str:
    return write(built(limits))


def described(limits: Limits) -> dict[str, Described]:
    """What is said about each route, by its name."""
    return {name: one for part in _PARTS for name, one in part.described(limits).items()}


def built(limits: Limits) -> dict[str, Any]:
    """The document."""
    from tandemq.http.routes import ROUTES  # late: it names our handler

    words, paths = described(limits), dict[str, dict[str, Any]]()
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, words[route.name])
    return {
        "openapi": "3.1.0",
        "info": {"title": "tandemq", "version": tandemq.__version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components(limits) | documents_working.components() | documents_operating.components(),
            "responses": problem_responses(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Made by: tandemq token create"}
            },
        },
    }


def statuses(route: Route, words: Described) -> list[int]:
    """Every status that a problem of this route may have."""
    found = {*ANY_STATUSES, *words.problems}
    found |= set(TOKEN_STATUSES) if route.roles is not None else set()
    found |= set(BODY_STATUSES) if words.body else set()
    return sorted(found - set(words.answers))


def _operation(route: Route, words: Described) -> Schema:
    roles = "anybody" if route.roles is None else ", ".join(sorted(route.roles))
    shape: Schema = {
        "operationId": route.name,
        "tags": [words.tag],
        "summary": words.summary,
        "description": f"{words.text}\n\nFor: {roles}.".strip(),
        "security": [] if route.roles is None else [{"bearer": []}],
    }
    parameters = [*_of_path(route.path), *_of_query(words.query)]
    if parameters:
        shape["parameters"] = parameters
    if words.body:
        examples = {name: {"value": value} for name, value in words.examples.items()}
        content = {
            media: {"schema": schema} | ({"examples": examples} if media == "application/json" else {})
            for media, schema in words.body.items()
        }
        shape["requestBody"] = {"required": True, "content": content}
    shape["responses"] = {str(status): one.to_json() for status, one in sorted(words.answers.items())} | {
        str(status): {"$ref": f"#/components/responses/Problem{status}"} for status in statuses(route, words)
    }
    return shape


def _of_path(path: str) -> list[Schema]:
    id_text = {"$ref": "#/components/schemas/IdText"}
    return [
        {"name": name, "in": "path", "required": True, "schema": id_text, "example": "1"}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _of_query(query: Mapping[str, Schema]) -> list[Schema]:
    return [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
