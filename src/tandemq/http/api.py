"""The application: what the handlers share, and the way from the table of routes to ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute

from tandemq.app import TandemQ
from tandemq.http.calls import Call
from tandemq.http.enqueuing import Enqueuer
from tandemq.http.guards import Guard, not_allowed, refuse_foreign, told_of
from tandemq.http.health import Health
from tandemq.http.limits import admitted
from tandemq.http.options import ApiOptions
from tandemq.http.problems import Problem, problem_of
from tandemq.http.routes import ROUTES
from tandemq.http.routing import Route
from tandemq.http.security import ANYBODY, Gate
from tandemq.http.waiting import WaitingRoom
from tandemq.remote import Claims, Work


class Api:
    """Everything that handlers share. ``start`` and ``stop`` are called in the event loop that serves."""

    def __init__(self, app: TandemQ, options: ApiOptions) -> None:
        self.app, self.options = app, options
        self.gate = Gate(app, options)
        self.enqueuer = Enqueuer(app)
        self.claims, self.work = Claims(app), Work(app)
        self.waiting_room = WaitingRoom(self.claims)
        # Each may wait for a locked row, in one of the app's threads: half of these are kept for everything else.
        self.ending = asyncio.Semaphore(16)
        self.health = Health(app)

    @property
    def max_body_bytes(self) -> int:
        """Of a request that carries one payload or result: room for one that is written with escapes throughout."""
        settings = self.app.settings
        return 2 * max(settings.max_payload_bytes, settings.max_result_bytes) + 64 * 1024

    async def start(self) -> None:
        """Begin to serve."""
        self.waiting_room.start()

    def let_go(self) -> None:
        """The server is about to stop: claims that wait for a task are answered now, later ones do not wait."""
        self.waiting_room.close()

    async def stop(self) -> None:
        """Let go of whoever waits; what was accepted is stored before this returns."""
        await self.waiting_room.stop()
        await self.enqueuer.stop()
        await self.gate.stop()
        await self.health.stop()


def asgi(app: TandemQ, options: ApiOptions | None = None) -> Guard:
    """The ASGI application. It uses the app's connections and does not close the app."""
    api = Api(app, options or ApiOptions())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await api.start()
        try:
            yield
        finally:
            await api.stop()

    application = Starlette(
        routes=[StarletteRoute(r.path, _endpoint(api, r), methods=[r.method], name=r.name) for r in ROUTES],
        exception_handlers={HTTPException: _refused, Exception: _failed},
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    return Guard(application, api, _METHODS)


def _endpoint(api: Api, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        told = told_of(request.scope)
        told.admitted(route)
        try:
            caller = await api.gate.admit(request, route.roles)
            told.caller = caller.name
            refuse_foreign(request, caller, api.options)
            if caller is not ANYBODY:
                admitted(request.scope)
            return await route.handler(Call(api, request, caller))
        except ClientDisconnect:  # Starlette would take it for an error
            told.is_gone = True
            return Response()
        except Exception as error:
            return problem_of(error).response()

    return answer


def _refused(request: Request, refused: Exception) -> Response:
    """What the router itself refuses."""
    status = refused.status_code if isinstance(refused, HTTPException) else 500
    if status == 405:
        matching = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
        return not_allowed(request.method, _allowed(m for r in matching for m in r.methods)).response()
    if status == 404:
        return Problem("not-found", "there is nothing at this path; see /openapi.json").response()
    return Problem("invalid", "the request cannot be understood").response()


def _failed(request: Request, error: Exception) -> Response:
    return problem_of(error).response()


def _allowed(methods: Iterable[str]) -> tuple[str, ...]:
    given = set(methods)
    return tuple(sorted(given | {"HEAD"} if "GET" in given else given))


#: Of paths without a parameter. Looked at before the routes: to them "batch" would be an id that is no number.
_METHODS = {
    path: _allowed(route.method for route in ROUTES if route.path == path)
    for path in {route.path for route in ROUTES if "{" not in route.path}
}
