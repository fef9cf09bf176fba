"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def claim(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def heartbeat(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def complete(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def fail(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
