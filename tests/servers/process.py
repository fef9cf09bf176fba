"""One server process of the test run: started on a port of its own, stopped, killed, frozen, always cleaned up."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.reaper import Reaper
from tests.servers.programs import environment

START_S = 60.0


def free_port() -> int:
    """A port nobody listens on, below the ephemeral range: no client can take it while its server is down."""
    for port in random.SystemRandom().sample(range(20000, 32000), 200):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 20000 and 32000")


@functools.cache
def _reaper() -> Reaper:
    return Reaper()


@functools.cache
def base_folder() -> Path:
    """The folder of this test run; gone when the run is."""
    base = Path(tempfile.mkdtemp(prefix="tq-", dir="/tmp"))  # short: a socket's path ends at 107 bytes
    _reaper().folder(base)
    return base


class Server:
    """One private server process: start, stop, kill, freeze; the port and the files stay the same over restarts."""

    def __init__(self, name: str, *options: str) -> None:
        self.options = list(options)
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base_folder()))
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The command line that starts it in the foreground."""
        raise NotImplementedError

    def ping(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None, "server is not running"
        return self.process.pid

    def start(self) -> None:
        """Start on the same port and files, and wait until it answers."""
        assert self.process is None, "already started"
        command = self.command()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=environment(Path(command[0])),
                start_new_session=True,
            )
        _reaper().watch(self.process.pid)
        deadline = time.monotonic() + START_S
        while not self.ping():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace")[-3000:]
                self.kill9()
                raise RuntimeError(f"{command[0]} did not start:\n{tail}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut down in order; nothing happens when it is down."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def _end(self, sign: signal.Signals) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGCONT)
        process.send_signal(sign)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _reaper().forget(process.pid)

    def sigstop(self) -> None:
        """Freeze: connections stand, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def sigcont(self) -> None:
        """Thaw."""
        os.kill(self.pid, signal.SIGCONT)

    def discard(self) -> None:
        """Kill it and remove its files."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)
