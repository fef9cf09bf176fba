"""The embedded default: fakeredis's TCP server in a process of its own, shared by all processes of a data directory.

Files in the data directory: ``redis.lock`` is locked by the server for its life, so there is never a second one, and
holds its pid; ``redis.port`` is written once it listens; ``redis.log`` holds its output; ``redis.start`` is locked by
whoever starts one. The server ends by itself when it has had no client for 30 s. Its ids are lost then, as in any
restart of Redis: the reconciler puts them back.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import redis

from tandemq.broker.client import Connections, Role
from tandemq.broker.commands import ask
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, ConfigurationError

START_TIMEOUT_S = 20.0
PORT_FILE, LOCK_FILE, START_FILE, LOG_FILE = "redis.port", "redis.lock", "redis.start", "redis.log"
_POLL_S = 0.02


def require_fakeredis() -> None:
    """ConfigurationError unless fakeredis and its Lua are installed."""
    if not (importlib.util.find_spec("fakeredis") and importlib.util.find_spec("lupa")):
        raise ConfigurationError(
            "the embedded default needs fakeredis: pip install 'tandemq[embedded]',"
            " or set TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL to real servers"
        )


def mark(data_path: Path) -> str:
    """A Lua script that only the server of this directory knows; unlike a key it survives FLUSHALL."""
    return f"return 'tandemq embedded in {hashlib.sha256(str(data_path.resolve()).encode()).hexdigest()}'"


def try_lock(path: Path) -> IO[bytes] | None:
    """The open file, locked until it is closed or the process dies; None when somebody else holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def ensure_server(data_path: Path, clock: Clock) -> str:
    """The URL of the running server of this directory, started if need be. Safe in many processes at once.

    Raises BrokerUnavailable when none answers within 20 s; the message names the log.
    """
    if url := _running(data_path):
        return url
    require_fakeredis()
    data_path.mkdir(parents=True, exist_ok=True)
    deadline = clock.monotonic() + START_TIMEOUT_S
    with _turn_to_start(data_path, clock, deadline):
        child: subprocess.Popen[bytes] | None = None
        try:
            while clock.monotonic() < deadline and not (child and child.poll()):
                has_ended = child is None or child.poll() == 0  # 0: it listens, or another one held the lock
                if url := _running(data_path):
                    return url
                if has_ended:
                    child = _spawn(data_path)
                clock.sleep(_POLL_S)
        finally:
            _reap(child)
    raise BrokerUnavailable(f"the embedded Redis of {data_path} did not start; see {data_path / LOG_FILE}")


def _running(data_path: Path) -> str | None:
    try:
        port = int((data_path / PORT_FILE).read_text("ascii"))
        url = f"redis://127.0.0.1:{port}/0"
        connections = Connections(f"{url}?socket_timeout=2")
    except (OSError, ValueError):  # no file, or one of another program
        return None
    sha = hashlib.sha1(mark(data_path).encode(), usedforsecurity=False).hexdigest()
    try:
        with connections.use(Role.SERVE) as client:
            ours = ask(client, "SCRIPT EXISTS", sha)
        return url if ours in ([1], [True]) else None
    except BrokerUnavailable:
        return None
    finally:
        connections.close()


@contextmanager
def _turn_to_start(data_path: Path, clock: Clock, deadline: float) -> Iterator[None]:
    while (file := try_lock(data_path / START_FILE)) is None:
        if clock.monotonic() > deadline:
            raise BrokerUnavailable(f"another process is still starting the embedded Redis of {data_path}")
        clock.sleep(_POLL_S)
    with file:
        yield


def _spawn(data_path: Path) -> subprocess.Popen[bytes]:
    """A process that leaves the server behind as a daemon and ends once that listens (or cannot)."""
    command = [sys.executable, "-P", "-m", "tandemq.broker.embedded_server", str(data_path)]
    # The parent may have found tandemq by a sys.path of its own (a test runner, an IDE).
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    with (data_path / LOG_FILE).open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=data_path, env=environ)


def _reap(child: subprocess.Popen[bytes] | None) -> None:
    if child is not None:
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class EmbeddedConnections:
    """Connections to the server of a data directory; after a failure the next command makes sure that one runs."""

    #: fakeredis notices a client that has gone only when its blocking pop ends, and may hand it an id until then.
    max_block_s = 0.25

    def __init__(self, data_path: Path, clock: Clock) -> None:
        require_fakeredis()
        self._data_path = data_path
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Connections | None = None
        self._url = ""
        self._is_suspect = True

    @contextmanager
    def use(self, role: Role) -> Iterator[redis.Redis]:
        """See ``Connections.use``."""
        connections = self._connections()
        try:
            with connections.use(role) as client:
                yield client
        except BrokerUnavailable:
            self._is_suspect = True
            raise

    def close(self) -> None:
        """Drop all connections; the server ends by itself when nobody is left."""
        if self._current is not None:
            self._current.close()

    def _connections(self) -> Connections:
        current = self._current
        if current is not None and not self._is_suspect:
            return current
        with self._lock:
            if self._current is None or self._is_suspect:
                self._reconnect()
                self._is_suspect = False
            assert self._current is not None  # noqa: S101 - for mypy; _reconnect has set it
            return self._current

    def _reconnect(self) -> None:
        try:
            url = ensure_server(self._data_path, self._clock)
        except OSError as error:
            raise BrokerUnavailable(f"TANDEMQ_DATA_DIR {self._data_path}: {error}") from error
        if url != self._url:
            self._current, self._url = Connections(url), url
