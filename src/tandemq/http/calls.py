"""One request in a handler's hands: who sent it, its path, query and body, each checked and refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tandemq.core.body import parse_json
from tandemq.core.codec import write
from tandemq.core.task import Task
from tandemq.http.problems import Problem

if TYPE_CHECKING:
    from tandemq.http.api import Api

__all__ = ["Call", "Caller", "answer", "no_content"]
#: Ids are those of a BIGINT; a number above is no id of anything.
MAX_ID = 2**63 - 1
#: Characters of JSON that are not written on the event loop, and about how many a failed attempt may have.
BIG, HISTORY = 64 * 1024, 10_000
#: Bytes of JSON that are not parsed on the event loop.
BIG_BODY = 256 * 1024


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
        for name, value in self._query_items():
            if name not in names:
                known = f"; use {', '.join(names)}" if names else ""
                raise Problem("invalid", f"unknown query parameter {name!r}{known}", field=name[:100])
            if name in given:
                raise Problem("invalid", f"{name} is given twice", field=name)
            given[name] = value
        return given

    def _query_items(self) -> list[tuple[str, str]]:
        if not self.request.scope["query_string"]:
            return []
        # Starlette's own would put U+FFFD where the bytes are no UTF-8.
        try:
            return parse_qsl(self.request.scope["query_string"].decode(), keep_blank_values=True, errors="strict")
        except UnicodeError:
            raise Problem("invalid", "the query is not UTF-8", field="query") from None

    async def json(self, limit: int | None = None) -> Any:
        """The body, parsed. 415 unless it is declared as JSON, 413 over ``limit`` bytes, 400 if it is not JSON."""
        self.require_media_type("application/json")
        body = await self.body(limit)
        if len(body) > BIG_BODY:
            return await self.api.app.offload(parse_json, body, "body")
        return parse_json(body, "body")

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
        limit = self.api.max_body_bytes if limit is None else limit
        self._check_declared(limit)
        # Not by way of stream(): its generators would be a tenth of what a small request costs.
        chunks, size, more = [], 0, True
        while more:
            message = await self.request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            _check_size(size, limit)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def stream(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes. What is declared as longer than ``limit`` is refused before a byte is read."""
        if limit is not None:
            self._check_declared(limit)
        size = 0
        async for chunk in self.request.stream():
            if chunk:
                size += len(chunk)
                if limit is not None:
                    _check_size(size, limit)
                yield chunk

    async def answer_task(self, task: Task, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """The task. A big one is written in a thread: meanwhile the event loop serves others."""
        if len(task.payload) + len(task.result or "") + HISTORY * len(task.attempts_log) < BIG:
            return answer(task.to_json(), status, headers)
        return answer_text(await self.api.app.offload(lambda: write(task.to_json())), status, headers)

    def _check_declared(self, limit: int) -> None:
        if (declared := self.request.headers.get("content-length", "")).isdigit():
            _check_size(int(declared), limit)


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        # Not with Connection: close, which cuts the sender off before it reads this; ``connections`` bounds the rest.
        raise Problem("too-large", f"the body is {size} bytes or more; the limit is {limit}", field="body")


def parse_id(value: Any, field: str) -> int:
    """A task id, as a number or as decimal text without leading zeros."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19 and value[0] != "0":
        value = int(value)
    if type(value) is float and value.is_integer():
        value = int(value)  # to JSON 5.0 is an integer
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise Problem("invalid", f"{field} must be a task id, not {str(value)[:40]!r}", field=field)
    return value


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON."""
    return Response(write(value), status, headers=headers, media_type="application/json")


def answer_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that has been written already."""
    return Response(text, status, headers=headers, media_type="application/json")


def no_content() -> Response:
    """204."""
    return Response(status_code=204)


#: The client is gone: nobody is left to be answered.
Gone = ClientDisconnect
