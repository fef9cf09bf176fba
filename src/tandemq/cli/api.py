"""``tandemq api``: the HTTP API."""

from __future__ import annotations

import errno
import logging
import os
import socket
from typing import Any

import click

from tandemq import logs
from tandemq.app import TandemQ
from tandemq.cli import exits, flags
from tandemq.cli.session import Session, pass_session
from tandemq.core.errors import ConfigurationError, StoreUnavailable

_log = logging.getLogger("tandemq.http")


@click.command()
@click.option("--host", default="127.0.0.1", help="The address to listen at; 0.0.0.0 is every network.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, help="0: any free one.")
@click.option("--workers", type=click.IntRange(1, 512), default=1, help="Processes that share the port.")
@click.option(
    "--rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Requests a second that one token may send to each process; 0: any.",
)
@click.option("--cors", "cors_origins", multiple=True, metavar="ORIGIN", help="Let web pages of this origin call it.")
@click.option(
    "--max-wait", "max_wait_s", type=flags.SECONDS, default=30.0, help="The longest that a claim may wait, in seconds."
)
@click.option("--grace", "grace_s", type=flags.SECONDS, default=20.0, help="Seconds that requests get when stopping.")
@click.option(
    "--max-connections", type=click.IntRange(0), default=0, help="Of each process; 0: what its open files allow."
)
@click.option("--tls-cert", default="", metavar="FILE", help="Serve TLS with this certificate (PEM, with its chain).")
@click.option("--tls-key", default="", metavar="FILE", help="Its key, if that is in a file of its own.")
@click.option("--access-log", is_flag=True, help="Log a line for every request (no query strings, no headers).")
@pass_session
def api(session: Session, /, **options: Any) -> int:
    """Serve the HTTP API until TERM or INT (twice: at once).

    With -A the defaults of the registered tasks apply, and payloads are checked against their handlers. A database that
    is away does not keep it from starting: it answers 503 until the database is back.
    """
    # Late: they come with an extra, and every other verb would pay for them.
    try:
        from tandemq.http import server
        from tandemq.http.limits import raise_file_limit
        from tandemq.http.options import ApiOptions
        from tandemq.http.processes import Processes
        from tandemq.http.security import Gate
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"the API needs more: pip install 'tandemq[http]' ({missing})") from None
    given, app = ApiOptions(**options), session.app
    logs.of_settings(app.settings, "api")
    app.import_tasks()
    server.check_tls(given)
    _look_at_servers(app)
    Gate(app, given).check_start()
    raise_file_limit()
    listeners = _listen(given, server)

    def say() -> None:
        several = f" ({given.workers} processes)" if given.workers > 1 else ""
        _log.info("listening on %s%s", ", ".join(server.url_of(given, made) for made in listeners), several)

    if given.workers == 1:
        server.serve(app, given, listeners, say)
        return 0
    app.close()  # the others connect by themselves
    return Processes(session.given_spec, given, listeners, say).run()


def _look_at_servers(app: TandemQ) -> None:
    """What is wrong for good is said now; a server that is only away may come back."""
    try:
        app.store.ping()
        _ = app.broker
    except StoreUnavailable as away:
        if away.denied:
            raise
        _log.warning("answering 503 until the database is back: %s", exits.line_of(away))


def _listen(options: Any, server: Any) -> list[socket.socket]:
    where = f"port {options.port} of {options.host}"
    try:
        made: list[socket.socket] = server.listen(options)
    except socket.gaierror as unknown:
        raise ConfigurationError(f"--host {options.host!r} cannot be resolved: {unknown.strerror}") from None
    except OSError as refused:
        if refused.errno == errno.EADDRINUSE:
            raise exits.Failed(f"{where} is in use by another program; choose another --port") from None
        raise exits.Failed(f"cannot listen on {where}: {os.strerror(refused.errno or 0)}") from None
    return made
