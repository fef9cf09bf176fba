"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def live(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def ready(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def metrics(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
