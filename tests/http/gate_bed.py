"""A gate asked without a server around it, over a store that can be held or fail; time is set by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request

from tandemq import TandemQ
from tandemq.http.calls import Caller
from tandemq.http.options import ApiOptions
from tandemq.http.problems import Problem, problem_of
from tandemq.http.routing import Role
from tandemq.http.security import Gate
from tandemq.testing import tandemq_app, tandemq_clock

__all__ = ["ANY", "Door", "Store", "door", "play", "settled", "store", "tandemq_app", "tandemq_clock"]
ANY = frozenset(Role)


class Door:
    """A gate, asked without a server around it."""

    def __init__(self, app: TandemQ, **options: Any) -> None:
        self.app = app
        self.gate = Gate(app, ApiOptions(**options))

    async def ask(
        self,
        token: str | None = None,
        roles: frozenset[Role] | None = ANY,
        *,
        client: str | None = "127.0.0.1",
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Caller | Problem:
        given = [("host", "localhost"), *headers, *([("authorization", f"Bearer {token}")] if token else [])]
        raw = [(name.encode(), value.encode("latin-1")) for name, value in given]
        scope = {"type": "http", "headers": raw, "client": (client, 4711) if client is not None else None}
        try:
            return await self.gate.admit(Request(scope), roles)
        except Exception as error:
            return problem_of(error)

    async def status(self, token: str | None = None, roles: frozenset[Role] | None = ANY, **more: Any) -> int:
        answer = await self.ask(token, roles, **more)
        return 200 if isinstance(answer, Caller) else answer.status


async def settled() -> None:
    """Until what requests have begun in the background is done."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


def play(scenario: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        await scenario()
        await settled()

    asyncio.run(run())


class Store:
    """Counts the readings of the real store, fails or holds them, and remembers the uses noted."""

    def __init__(self, app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
        self.readings, self.noted = 0, []
        self.error: Exception | None = None
        self.note_error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        read, note = app.store.live_tokens, app.store.note_tokens_used

        def live_tokens() -> Any:
            self.readings += 1
            assert self.open.wait(60)
            if self.error is not None:
                raise self.error
            return read()

        def note_tokens_used(used: set[str]) -> None:
            self.noted.append(set(used))
            if self.note_error is not None:
                raise self.note_error
            note(used)

        monkeypatch.setattr(app._links, "_given_store", app.store)  # the gate has no other one of its own then
        monkeypatch.setattr(app.store, "live_tokens", live_tokens)
        monkeypatch.setattr(app.store, "note_tokens_used", note_tokens_used)


@pytest.fixture
def store(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(tandemq_app, monkeypatch)
    yield made
    made.open.set()


@pytest.fixture
def door(tandemq_app: TandemQ) -> Door:
    return Door(tandemq_app)
