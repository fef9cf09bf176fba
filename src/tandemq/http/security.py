"""Who may do what: bearer tokens, roles, the rate of each token."""

from __future__ import annotations

from starlette.requests import Request

from tandemq.app import TandemQ
from tandemq.http.calls import Caller
from tandemq.http.options import ApiOptions
from tandemq.http.routing import Role


class Gate:
    """Lets a request in, or raises the Problem that says why not (401, 403, 429)."""

    def __init__(self, app: TandemQ, options: ApiOptions) -> None:
        self._app, self._options = app, options

    async def admit(self, request: Request, roles: frozenset[Role] | None) -> Caller:
        """Who sends this. ``roles``: it must have one of them; None: anybody may."""
        return Caller("local", frozenset(Role))
