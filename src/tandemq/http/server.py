"""Serving with uvicorn: one process, from the open port to the last answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn

from tandemq.app import TandemQ
from tandemq.core.collecting import calm_collector
from tandemq.core.errors import ConfigurationError
from tandemq.http.api import asgi
from tandemq.http.connections import protocol_class
from tandemq.http.guards import Guard
from tandemq.http.limits import MAX_HEAD_BYTES, Limits
from tandemq.http.options import ApiOptions

_log = logging.getLogger("tandemq.http")
BACKLOG = 2048
#: ``localhost`` is ::1 too, also on a machine without IPv6.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
#: Exit code of a second TERM: requests were dropped.
AT_ONCE = 1
HANDSHAKE_S = 10.0
#: How long a client may take to agree on the end of TLS; after that its connection is closed all the same.
GOODBYE_S = 1.0


def config_of(app: TandemQ, options: ApiOptions) -> uvicorn.Config:
    """How uvicorn is to serve the API."""
    return uvicorn.Config(
        asgi(app, options),
        host=options.host,
        port=options.port,
        http=protocol_class(Limits(options)),
        ws="none",
        lifespan="on",
        # A line for every malformed request would let anybody fill the log.
        log_level="error",
        log_config=None,
        access_log=False,
        server_header=False,
        # Whoever sends X-Forwarded-For would choose the address that failed logins are counted for.
        proxy_headers=False,
        backlog=BACKLOG,
        # Ours comes first; uvicorn's own timer is only to stay out of the way.
        timeout_keep_alive=math.ceil(options.idle_s) + 60,
        timeout_graceful_shutdown=math.ceil(options.grace_s),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        loop=f"{__name__}:new_loop",
        ssl_certfile=options.tls_cert or None,
        ssl_keyfile=options.tls_key or None,
    )


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed. With time-outs of TLS, which uvicorn does not set."""
    try:
        import uvloop
    except ImportError:
        loop: Any = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    plain = loop.create_server

    def create_server(*args: Any, ssl: Any = None, **options: Any) -> Any:
        if ssl is not None:
            options |= {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": GOODBYE_S}
        return plain(*args, ssl=ssl, **options)

    loop.create_server = create_server
    made: asyncio.AbstractEventLoop = loop
    return made


class ApiServer(uvicorn.Server):
    """uvicorn's server, which ends well: whoever waits is answered, and a TERM is exit code 0.

    ``then`` is called once it listens. ``may_hurry``: a second signal ends the process at once; else only KILL does.
    """

    def __init__(self, config: uvicorn.Config, then: Callable[[], None] | None = None, *, may_hurry: bool = True):
        super().__init__(config)
        if not isinstance(config.app, Guard):
            raise TypeError("the application must be one that asgi() made")
        self.api, self._then, self._may_hurry = config.app.api, then, may_hurry

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        if self.started and self._then is not None:
            self._then()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing any more, close what is idle, and see the rest through."""
        self.api.let_go()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """TERM or INT. Not uvicorn's own, which dies of the signal once it has ended well."""
        if self.should_exit and self._may_hurry:
            os._exit(AT_ONCE)
        self.should_exit = True


def serve(
    app: TandemQ,
    options: ApiOptions,
    listeners: Sequence[socket.socket],
    then: Callable[[], None] | None = None,
    *,
    may_hurry: bool = True,
) -> None:
    """Serve on these sockets until TERM or INT: what has been accepted is answered, at most ``grace_s`` long."""
    server = ApiServer(config_of(app, options), then, may_hurry=may_hurry)
    calm_collector()
    server.run(sockets=list(listeners))


def check_tls(options: ApiOptions) -> None:
    """ConfigurationError if the certificate and the key cannot be used."""
    if not options.tls_cert:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.tls_cert, options.tls_key or None)
    except (ssl.SSLError, OSError) as error:
        given = " and ".join(filter(None, (options.tls_cert, options.tls_key)))
        raise ConfigurationError(f"TLS cannot be served with {given}: {error}") from None


def listen(options: ApiOptions) -> list[socket.socket]:
    """Open the port at every address that the host stands for and this machine has. OSError says why not."""
    found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    port = options.port
    missing: OSError | None = None
    try:
        for family, address in dict.fromkeys((family, where[:2]) for family, _, _, _, where in found):
            try:
                made = socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
            except OSError as refused:
                if refused.errno not in _NOT_HERE:
                    raise
                missing = refused
            else:
                listeners.append(made)
                port = made.getsockname()[1]
        if missing is not None and not listeners:
            raise missing
    except OSError:
        for opened in listeners:
            opened.close()
        raise
    return listeners


def url_of(options: ApiOptions, listener: socket.socket) -> str:
    """Where it can be reached."""
    host, port = listener.getsockname()[:2]
    return f"{options.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
