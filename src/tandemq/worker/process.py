"""One child as its supervisor sees it: the process, the pipes, the shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from tandemq.core.clock import Clock
from tandemq.worker.arena import Arena, Snapshot, State
from tandemq.worker.limits import OVERRUN_S

#: A finished task whose verdict does not move for this long, although the database answers, costs its process.
FLUSH_STUCK_S = 30.0


@dataclass(slots=True)
class ChildProcess:
    """A spawned child. ``culprits``: ids whose time limit made the supervisor kill it."""

    arena: Arena
    popen: subprocess.Popen[bytes]
    report_fd: int
    started: float
    queues: tuple[str, ...] = ()
    ready: bool = False
    failed: str = ""
    stopping: bool = False
    culprits: set[int] = field(default_factory=set)
    _buffer: bytes = b""

    @classmethod
    def spawn(cls, orders: dict[str, Any], clock: Clock, *, armed: bool) -> ChildProcess:
        """Start ``python -m tandemq.child``: spawned, not forked, so no lock or socket is shared.

        ``armed``: a crash point set for this worker counts in the child; one that replaces it would only die again.
        """
        arena = Arena.create()
        read_fd, write_fd = os.pipe()
        orders = orders | {"arena_fd": arena.fd, "report_fd": write_fd}
        env = {name: value for name, value in os.environ.items() if armed or name != "TANDEMQ_CRASH"}
        popen = subprocess.Popen(
            [sys.executable, "-m", "tandemq.child"], stdin=subprocess.PIPE, pass_fds=(arena.fd, write_fd), env=env
        )
        os.close(write_fd)
        os.set_blocking(read_fd, False)
        child = cls(arena, popen, read_fd, clock.monotonic())
        child.tell(json.dumps(orders))
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def tell(self, line: str) -> None:
        """Send a control line; a child that is gone does not hear it."""
        with contextlib.suppress(OSError, ValueError):
            if self.popen.stdin is not None:
                self.popen.stdin.write(line.encode() + b"\n")
                self.popen.stdin.flush()

    def hear(self) -> bool:
        """Read what it reports; False at the end of file: the process is gone, or going."""
        try:
            data = os.read(self.report_fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "ready":
                self.ready, self.queues = True, tuple(json.loads(rest)["queues"])
            elif word == "failed":
                self.failed = json.loads(rest)
        return True

    def overdue(self, now: float, *, store_answers: bool) -> set[int]:
        """Tasks for which this process must go: past their time limit, or finished and never written."""
        late = set()
        for snapshot in self.arena.snapshots():
            for record in snapshot.records:
                if record.state is State.BEGUN and record.limit_s:
                    if now > record.since + record.limit_s + OVERRUN_S:
                        late.add(record.id)
                elif record.state is State.ENDED and store_answers and now > record.since + FLUSH_STUCK_S:
                    late.add(record.id)
        return late

    def kill(self) -> None:
        """SIGKILL; nothing of it runs once ``reap`` has returned."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the process; only then may its leases be given up."""
        code = self.popen.wait()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        os.close(self.report_fd)
        return code

    def leases(self) -> list[Snapshot]:
        """What it held, read from the shared memory; valid after its death."""
        return self.arena.snapshots()
