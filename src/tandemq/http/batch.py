"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def enqueue_batch(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
