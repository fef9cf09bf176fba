"""Kills the test servers and removes their folders when the test run is gone, however it ended.

Runs as a process of its own (its own session, so that Ctrl-C and a kill of the test run's group spare it) and
reads lines from a pipe that only the test run holds: ``+PID``, ``-PID``, ``dir PATH``. End of file means that
the test run is gone, by exit or by ``kill -9``. PR_SET_PDEATHSIG would not do: it fires when the *thread* that
started the server ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Reaper:
    """The test run's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(Path(__file__).absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Kill this process when the test run ends."""
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        """This process has ended and was waited for."""
        self._tell(f"-{pid}")

    def folder(self, path: Path) -> None:
        """Remove this folder when the test run ends."""
        self._tell(f"dir {path}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


def main() -> None:
    """Read until the end of file, then kill and remove what is left."""
    pids: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        word = line.strip()
        if word.startswith("+"):
            pids.add(int(word[1:]))
        elif word.startswith("-"):
            pids.discard(int(word[1:]))
        elif word.startswith("dir "):
            folders.append(word[4:])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
