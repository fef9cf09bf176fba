"""The waiting room of claims: requests that wait for a task to come share one pop."""

from __future__ import annotations

from tandemq.app import TandemQ
from tandemq.http.options import ApiOptions


class WaitingRoom:
    """TODO."""

    def __init__(self, app: TandemQ, options: ApiOptions) -> None:
        self._app, self._options = app, options

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""
