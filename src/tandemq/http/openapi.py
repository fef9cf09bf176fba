"""TODO."""

from __future__ import annotations

from starlette.responses import Response

from tandemq.http.calls import Call


async def document(call: Call) -> Response:
    """TODO."""
    raise NotImplementedError
