"""The HTTP API of the product on a port of its own, served in a thread of the test, and a client for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import httpx

from tandemq import TandemQ
from tandemq.core.settings import Settings
from tandemq.http import ApiOptions
from tandemq.http.server import ApiServer, config_of
from tests.waiting import eventually


def app_of(settings: Settings, **more: Any) -> TandemQ:
    """An application with these settings, whatever the environment says."""
    return TandemQ(**{f.name: getattr(settings, f.name) for f in fields(settings)}, **more)


class ServedApi:
    """A running API."""

    def __init__(self, app: TandemQ, url: str, server: ApiServer) -> None:
        self.app, self.url, self.server, self.api = app, url, server, server.api

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        """A client that does not follow this machine's proxies; close it, or use it as a context manager."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60.0, **options)


@contextmanager
def served(
    settings: Settings, *, app: TandemQ | None = None, send_buffer: int = 0, **options: Any
) -> Iterator[ServedApi]:
    """Serve it on a free port of the loopback, unless told one; ``options`` are those of ApiOptions.

    ``send_buffer``: bytes that the kernel takes of an answer before its reader has to (0: its own choice).
    """
    app = app or app_of(settings)
    with socket.create_server(("127.0.0.1", options.pop("port", 0)), backlog=2048) as listener:
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        port = listener.getsockname()[1]
        server = ApiServer(config_of(app, ApiOptions(port=port, **options)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="api", daemon=True)
        thread.start()
        eventually(lambda: server.started or not thread.is_alive(), 60)
        assert server.started, "the API did not start"
        try:
            yield ServedApi(app, f"http://127.0.0.1:{port}", server)
        finally:
            server.should_exit = True
            thread.join(30)
            app.close()
            assert not thread.is_alive(), "the API does not stop"
