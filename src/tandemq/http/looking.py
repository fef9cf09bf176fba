"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def list_jobs(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def show_job(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def stats(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError


async def list_dead(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
