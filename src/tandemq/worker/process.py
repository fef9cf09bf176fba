"""One child as its supervisor sees it: the process, the pipes, the shared memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tandemq.core.clock import Clock
from tandemq.worker.arena import Arena, Record, Snapshot, State
from tandemq.worker.limits import OVERRUN_S

#: After a cancel request that shall cost the process, if need be: how long its handler may go on.
KILL_AFTER_S = OVERRUN_S
#: A flusher with finished tasks in hand and no answer for this long, although the database answers, must go.
FLUSH_STUCK_S = 30.0


@dataclass(slots=True)
class ChildProcess:
    """A spawned child.

    ``culprits``: ids that made the supervisor kill it, by their time limit or, the ``unwanted`` among them, by request.
    """

    arena: Arena
    popen: subprocess.Popen[bytes]
    report_fd: int
    started: float
    number: int = 1
    queues: tuple[str, ...] = ()
    ready: bool = False
    failed: str = ""
    away: bool = False
    told_to_drain: bool = False
    stopping: bool = False
    culprits: set[int] = field(default_factory=set)
    unwanted: set[int] = field(default_factory=set)
    #: Since when (monotonic) a cancel request is known, by (token, id); and which of these may cost the process.
    _asked: dict[tuple[int, int], float] = field(default_factory=dict)
    _doomed: frozenset[tuple[int, int]] = frozenset()
    _buffer: bytes = b""

    @classmethod
    def spawn(cls, orders: dict[str, Any], clock: Clock, *, armed: bool, number: int = 1) -> ChildProcess:
        """Start ``python -m tandemq.child``: spawned, not forked, so no lock or socket is shared.

        ``number``: its place among the children of this worker, for the metrics.
        ``armed``: a crash point set for this worker counts in the child; one that replaces it would only die again.
        """
        with contextlib.ExitStack() as undo:
            arena = Arena.create()
            undo.callback(arena.close)
            read_fd, write_fd = os.pipe()
            undo.callback(os.close, read_fd)
            try:
                child = cls._spawn(arena, read_fd, write_fd, orders | {"number": number}, clock, armed=armed)
                child.number = number
            finally:
                os.close(write_fd)
            undo.pop_all()
            return child

    @classmethod
    def _spawn(
        cls, arena: Arena, read_fd: int, write_fd: int, orders: dict[str, Any], clock: Clock, *, armed: bool
    ) -> ChildProcess:
        orders = orders | {"arena_fd": arena.fd, "report_fd": write_fd}
        env = {name: value for name, value in os.environ.items() if armed or name != "TANDEMQ_CRASH"}
        popen = subprocess.Popen(
            # -P: the working directory must not shadow the standard library; load_app adds it behind.
            [sys.executable, "-P", "-m", "tandemq.child"],
            stdin=subprocess.PIPE,
            pass_fds=(arena.fd, write_fd),
            env=env,
        )
        os.set_blocking(read_fd, False)
        child = cls(arena, popen, read_fd, clock.monotonic())
        child.tell(json.dumps(orders))
        if popen.stdin is not None:
            os.set_blocking(popen.stdin.fileno(), False)
        return child

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def tell(self, line: str) -> bool:
        """Send a control line; False if it could not take it now: gone, or its pipe is full. Never blocks."""
        if self.popen.stdin is None:
            return False
        try:
            data = line.encode() + b"\n"
            # At most PIPE_BUF bytes are written whole or not at all.
            return os.write(self.popen.stdin.fileno(), data) == len(data)
        except (OSError, ValueError):
            return False

    def hear(self) -> bool:
        """Read what it reports; False when the process is gone, or has closed its pipe and must go.

        A process that a handler forked may hold the pipe open, so the end of file alone would not do.
        """
        gone = self.popen.poll() is not None
        try:
            data = os.read(self.report_fd, 65536)
        except BlockingIOError:
            return not gone
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == "ready":
                self.ready, self.queues = True, tuple(json.loads(rest)["queues"])
            elif word == "failed":
                self.failed = json.loads(rest)
            elif word == "away":
                self.away = True
        return True

    def overdue(self, now: float, *, answering_since: float | None) -> set[int]:
        """Tasks for which this process must go: past their time limit, or finished and never written.

        ``answering_since``: from when on the database has answered without a break (None: it does not now); before
        that nothing could be written.
        """
        late = set()
        flushed_at, may_write = self.arena.flushed_at, answering_since is not None

        def since_flush(record: Record) -> float:
            return max(record.since, flushed_at, answering_since or 0.0)

        for snapshot in self.arena.snapshots():
            for record in snapshot.records:
                if record.state is State.BEGUN and record.limit_s:
                    if now > record.since + record.limit_s + OVERRUN_S:
                        late.add(record.id)
                elif record.state is State.ENDED and now > since_flush(record) + FLUSH_STUCK_S and may_write:
                    late.add(record.id)
        return late

    def asked_to_stop(
        self, asked: Collection[tuple[int, int]], doomed: Collection[tuple[int, int]], now: float
    ) -> None:
        """The tasks (token, id) with a cancel request at this moment, and those that shall end with the process."""
        self._asked = {pair: self._asked.get(pair, now) for pair in asked}
        self._doomed = frozenset(doomed) & self._asked.keys()
        if asked:
            self.tell("cancel")

    def unstoppable(self, now: float) -> set[int]:
        """Tasks for which this process must go: asked to stop in vain, by somebody who wants that."""
        late = {pair for pair in self._doomed if now > self._asked.get(pair, now) + KILL_AFTER_S}
        if not late:
            return set()
        begun = [(s.token, r.id) for s in self.arena.snapshots() for r in s.records if r.state is State.BEGUN]
        return {task_id for token, task_id in begun if (token, task_id) in late}

    def kill(self) -> None:
        """SIGKILL; nothing of it runs once ``reap`` has returned."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)

    def reap(self) -> int:
        """End the process; only then may its leases be given up."""
        self.kill()  # it may have closed its pipe and live on: waiting for that would hold up everything else
        code = self.popen.wait()
        if self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        os.close(self.report_fd)
        return code

    def leases(self) -> list[Snapshot]:
        """What it held, read from the shared memory; valid after its death."""
        return self.arena.snapshots()
