"""What every verb starts from: the application named by ``-A``, or one made of the ``TANDEMQ_*`` variables alone."""

from __future__ import annotations

import click

from tandemq.app import TandemQ, load_app


class Session:
    """One run of the command line: makes the application when a verb asks for it, closes it afterwards."""

    def __init__(self, spec: str | None) -> None:
        self._spec = spec
        self._app: TandemQ | None = None

    @property
    def app(self) -> TandemQ:
        """The application; without ``-A`` it has the settings of the variables and knows no tasks."""
        if self._app is None:
            self._app = load_app(self._spec) if self._spec else TandemQ()
        return self._app

    @property
    def spec(self) -> str:
        """What ``-A`` named, for verbs that run tasks."""
        if not self._spec:
            raise click.UsageError("a worker needs to know the tasks: give -A module:attribute, or set TANDEMQ_APP")
        return self._spec

    @property
    def given_spec(self) -> str | None:
        """What ``-A`` named, if it was given."""
        return self._spec

    def close(self) -> None:
        """Drop the connections."""
        if self._app is not None:
            self._app.close()


pass_session = click.make_pass_decorator(Session)
