"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def cancel_job(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def replay_job(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def replay_dead(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
