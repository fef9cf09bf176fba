"""Serving with uvicorn."""

from __future__ import annotations

import uvicorn

from tandemq.app import TandemQ
from tandemq.http.api import asgi
from tandemq.http.options import ApiOptions


def config_of(app: TandemQ, options: ApiOptions) -> uvicorn.Config:
    """How uvicorn is to serve the API."""
    return uvicorn.Config(
        asgi(app, options), host=options.host, port=options.port, lifespan="on", ws="none", server_header=False,
        access_log=False, log_config=None, proxy_headers=False,
    )  # fmt: skip
