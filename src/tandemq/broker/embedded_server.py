"""The process behind the embedded default: ``python -m tandemq.broker.embedded_server DATA_DIR``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from tandemq.broker.embedded import LOCK_FILE, PORT_FILE, mark, require_fakeredis, try_lock
from tandemq.core.clock import Clock, SystemClock

IDLE_S = 30.0
_LOOK_S = 0.5
#: Small: fakeredis copies what it has not yet parsed once per argument.
_READ_BYTES = 4096


class IdleWatch:
    """Says when there has been no client for ``IDLE_S``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_used = clock.monotonic()

    def is_over(self, clients: int) -> bool:
        """Call at every look with the number of clients connected now."""
        if clients:
            self._last_used = self._clock.monotonic()
        return self._clock.monotonic() - self._last_used >= IDLE_S


def make_server() -> Any:
    """fakeredis's TCP server on a free loopback port, listening."""
    from fakeredis import TcpFakeServer

    class Server(TcpFakeServer):
        # With the library's 5 the sixth client of an instant waits a second until its SYN is sent again.
        request_queue_size = 128
        block_on_close = False

    server = Server(("127.0.0.1", 0))
    server.daemon_threads = True
    given: Any = server.RequestHandlerClass

    class Handler(given):  # type: ignore[misc]
        # Replies are written one by one: with Nagle's algorithm a pipeline waits 40 ms for the client's delayed ACK.
        disable_nagle_algorithm = True

        def handle(self) -> None:
            _converse(self)

    server.RequestHandlerClass = Handler
    return server


def _converse(handler: Any) -> None:
    """Answer one client until it goes.

    In place of the library's loop, which wakes 100 times a second for every idle client, and whose socket, being
    non-blocking, breaks off an answer that is larger than the socket's buffer.
    """
    client, connection = handler.current_client, handler.connection
    connection.setblocking(True)
    try:
        while data := connection.recv(_READ_BYTES):
            client.get_socket().sendall(data)
            while client.can_read():
                try:
                    answer = client.read_response()
                except redis.RedisError as error:
                    answer = error
                handler.writer.dump(answer)
    except ConnectionError:
        return


def serve(data_path: Path, clock: Clock, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> bool:
    """Serve until ``stop`` or until idle; False at once when another server holds the directory.

    ``on_ready`` is called when clients can find it.
    """
    lock = try_lock(data_path / LOCK_FILE)
    if lock is None:
        return False
    port_file = data_path / PORT_FILE
    with lock:
        port_file.unlink(missing_ok=True)
        lock.truncate(0)
        lock.write(b"%d" % os.getpid())
        lock.flush()
        server = make_server()
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        _load_mark(server, data_path)
        _write(port_file, str(server.server_address[1]))
        on_ready()
        watch = IdleWatch(clock)
        while not stop.wait(_LOOK_S) and port_file.exists() and not watch.is_over(len(server.clients)):
            _load_mark(server, data_path)
        port_file.unlink(missing_ok=True)
        server.shutdown()
        server.server_close()
    return True


def _load_mark(server: Any, data_path: Path) -> None:
    """Load the mark that tells clients whose server this is (again: SCRIPT FLUSH removes it)."""
    from fakeredis import FakeRedis

    FakeRedis(server=server.fake_server).script_load(mark(data_path))


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, "ascii")
    temporary.replace(path)


def main(argv: list[str]) -> int:
    """Leave a server of the data directory behind as a daemon: it outlives its starter and is nobody's child.

    Returns once it listens (or another one holds the directory): 0; 1 when it could not start.
    """
    require_fakeredis()
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return 0 if os.read(reading, 1) else 1
    os.close(reading)
    os.setsid()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def report() -> None:
        os.write(writing, b".")

    if not serve(Path(argv[1]), SystemClock(), stop, report):
        report()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
