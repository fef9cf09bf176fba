"""A small run of one side with the general log and MONITOR on."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, replace

from benchmarks.drive import BULK
from benchmarks.measure import Round
from benchmarks.registry import Side
from benchmarks.servers import Servers

#: Few single tasks, then calls of 1,000: enough for dozens of batches, small enough for the CSV table of the log.
BEFORE = (("single", 20), ("bulk", 4000))
#: Then single tasks to an idle worker: a claim of few ids may be sent in another way than one of many.
IDLE = ("latency", 10)


@dataclass(frozen=True, slots=True)
class Logged:
    """One line of the general log."""

    thread: int
    command: str
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What arrived at both servers while tasks were enqueued and drained, in ``calls`` calls of the producer."""

    side: str
    calls: int
    sql: list[Logged]
    redis: list[str]


class Monitor:
    """MONITOR on a connection of its own, as raw lines; it is over when QUIT comes by in it."""

    END = "benchmark: end of the recording"

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._port = port
        self._socket.sendall(b"MONITOR\r\n")
        self.lines: list[str] = []
        self._file = self._socket.makefile("r", encoding="utf-8", errors="replace", newline="\r\n")
        assert self._file.readline().startswith("+OK")  # noqa: S101 - the server's greeting
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._file:
            if self.END in line:
                return
            self.lines.append(line.removeprefix("+").rstrip("\r\n"))

    def stop(self) -> list[str]:
        """All lines until now."""
        with socket.create_connection(("127.0.0.1", self._port)) as other:
            other.sendall(f'ECHO "{self.END}"\r\n'.encode())
            other.recv(100)
        self._thread.join(10)
        self._socket.close()
        return self.lines


def record(
    side: Side, servers: Servers, *, driver: str = "pymysql", before: tuple[tuple[str, int], ...] = BEFORE
) -> Recorded:
    """Run the side with these tasks. The general log goes to a table: a file would have to be parsed."""
    mysql = servers.mysql
    with Round(replace(side, before=before), servers, driver=driver) as one:
        mysql.sql("SET GLOBAL log_output = 'TABLE'")
        mysql.sql("TRUNCATE mysql.general_log")
        mysql.sql("SET GLOBAL general_log = ON")
        monitor = Monitor(servers.redis.port)
        try:
            total = sum(line["n"] for line in one.drive(*before))
            with one.worker():
                one.wait(total)
                one.drive(IDLE)
                one.wait(total + IDLE[1])
        finally:
            mysql.sql("SET GLOBAL general_log = OFF")
            lines = monitor.stop()
        rows = mysql.sql("SELECT thread_id, command_type, argument FROM mysql.general_log")
    sql = [Logged(int(t), str(c), a.decode("utf-8", "replace") if isinstance(a, bytes) else str(a)) for t, c, a in rows]
    calls = IDLE[1] + sum(-(-n // BULK) if phase == "bulk" else n for phase, n in before)
    return Recorded(side.name, calls, sql, lines)
