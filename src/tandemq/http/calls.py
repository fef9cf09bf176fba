"""One request in a handler's hands: who sent it, its path, query and body, each checked and refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tandemq.core.body import parse_json
from tandemq.core.codec import write
from tandemq.http.problems import Problem

if TYPE_CHECKING:
    from tandemq.http.api import Api

__all__ = ["Call", "Caller", "answer", "no_content"]
#: Ids are those of a BIGINT; a number above is no id of anything.
MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: ``name`` goes into the audit log, ``roles`` say what it may do."""

    name: str
    roles: frozenset[str]


class Call:
    """One request."""

    __slots__ = ("api", "caller", "request")

    def __init__(self, api: Api, request: Request, caller: Caller) -> None:
        self.api, self.request, self.caller = api, request, caller

    @property
    def task_id(self) -> int:
        """``{id}`` of the path: a decimal number."""
        return parse_id(self.request.path_params["id"], "id")

    def query(self, *names: str) -> Mapping[str, str]:
        """The parameters of the query; one that is not among ``names``, or is given twice, is refused."""
        given: dict[str, str] = {}
        for name, value in self.request.query_params.multi_items():
            if name not in names:
                known = f"; use {', '.join(names)}" if names else ""
                raise Problem("invalid", f"unknown query parameter {name!r}{known}", field=name[:100])
            if name in given:
                raise Problem("invalid", f"{name} is given twice", field=name)
            given[name] = value
        return given

    async def json(self, limit: int | None = None) -> Any:
        """The body, parsed. 415 unless it is declared as JSON, 413 over ``limit`` bytes, 400 if it is not JSON."""
        self.require_media_type("application/json")
        return parse_json(await self.body(limit), "body")

    def require_media_type(self, *allowed: str) -> str:
        """The media type of the body. A browser sends none of these across origins without asking first."""
        given = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given not in allowed:
            raise Problem(
                "unsupported-media-type", f"Content-Type must be {' or '.join(allowed)}, not {given or 'missing'!r}"
            )
        return given

    async def body(self, limit: int | None = None) -> bytes:
        """The whole body, at most ``limit`` bytes (the API's own unless given)."""
        chunks: list[bytes] = []
        async for chunk in self.stream(self.api.max_body_bytes if limit is None else limit):
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def stream(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes. What is declared as longer than ``limit`` is refused before a byte is read."""
        if limit is not None and (declared := self.request.headers.get("content-length", "")).isdigit():
            _check_size(int(declared), limit)
        size = 0
        async for chunk in self.request.stream():
            if chunk:
                size += len(chunk)
                if limit is not None:
                    _check_size(size, limit)
                yield chunk


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise Problem(
            "too-large", f"the body is {size} bytes or more; the limit is {limit}", field="body",
            headers={"Connection": "close"},
        )  # fmt: skip


def parse_id(value: Any, field: str) -> int:
    """A task id, as a number or as decimal text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        value = int(value)
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise Problem("invalid", f"{field} must be a task id, not {str(value)[:40]!r}", field=field)
    return value


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON."""
    return Response(write(value), status, headers=headers, media_type="application/json")


def no_content() -> Response:
    """204."""
    return Response(status_code=204)


#: The client is gone: nobody is left to be answered.
Gone = ClientDisconnect
