"""The application: what the handlers share, and the way from the table of routes to ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from tandemq.app import TandemQ
from tandemq.http.calls import Call
from tandemq.http.enqueuing import Enqueuer
from tandemq.http.guards import guarded
from tandemq.http.options import ApiOptions
from tandemq.http.problems import Problem, problem_of
from tandemq.http.routes import ROUTES
from tandemq.http.routing import Route
from tandemq.http.security import Gate
from tandemq.http.waiting import WaitingRoom


class Api:
    """Everything that handlers share. ``start`` and ``stop`` are called in the event loop that serves."""

    def __init__(self, app: TandemQ, options: ApiOptions) -> None:
        self.app, self.options = app, options
        self.gate = Gate(app, options)
        self.enqueuer = Enqueuer(app)
        self.waiting_room = WaitingRoom(app, options)

    @property
    def max_body_bytes(self) -> int:
        """Of a request that carries one payload or result: room for one that is written with escapes throughout."""
        settings = self.app.settings
        return 2 * max(settings.max_payload_bytes, settings.max_result_bytes) + 64 * 1024

    async def start(self) -> None:
        """Begin to serve."""
        self.waiting_room.start()

    async def stop(self) -> None:
        """Let go of whoever waits; what was accepted is stored before this returns."""
        await self.waiting_room.stop()
        await self.enqueuer.stop()


def asgi(app: TandemQ, options: ApiOptions | None = None) -> ASGIApp:
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
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    return guarded(application, api.options)


def _endpoint(api: Api, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            caller = await api.gate.admit(request, route.roles)
            return await route.handler(Call(api, request, caller))
        except ClientDisconnect:
            raise
        except Exception as error:
            return problem_of(error).response()

    return answer


def _refused(request: Request, refused: Exception) -> Response:
    """What the router itself refuses."""
    status = refused.status_code if isinstance(refused, HTTPException) else 500
    if status == 405 and isinstance(refused, HTTPException):
        text = f"{request.method} is not allowed here"
        return Problem("method-not-allowed", text, headers=refused.headers or {}).response()
    if status == 404:
        return Problem("not-found", "there is nothing at this path; see /openapi.json").response()
    return Problem("invalid", "the request cannot be understood").response()
