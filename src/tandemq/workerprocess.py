"""A worker in a process of its own, for programs that measure or show one: the demo and the bench."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tandemq.core.settings import PREFIX, Settings

#: After TERM, before KILL.
STOP_S = 15.0


class WorkerProcess:
    """``tandemq -A SPEC worker FLAGS`` with exactly these settings, its output in ``log``; gone when the block is left.

    It has a session of its own: a Ctrl-C in the terminal reaches whoever started it, and that one stops it.
    """

    def __init__(self, spec: str, settings: Settings, environ: Mapping[str, str], log: Path, *flags: str) -> None:
        self._command = [sys.executable, "-m", "tandemq", "-A", spec, "worker", *flags]
        self._environ, self._log = _environ(settings, environ), log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._environ,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._running
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None if it still runs after this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._running.wait(timeout_s)
        return None

    def tail(self) -> str:
        """The end of what it logged, in one line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "nothing was logged"

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the worker has not been started")
        return self._process


def _environ(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    # Neither the caller's settings nor his flags (TANDEMQ_WORKER_QUEUES) are this worker's.
    others = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    # It must find this very package, also when that runs from a source tree.
    path = [str(Path(__file__).parents[1]), environ.get("PYTHONPATH", "")]
    return {**others, **settings.environ(), "PYTHONPATH": os.pathsep.join(p for p in path if p)}
