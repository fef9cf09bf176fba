"""``tandemq api`` as a process of its own, for tests that stop, kill and watch it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tandemq.core.settings import Settings
from tests.waiting import eventually
from tests.workers import ROOT, environment


class ApiProcess:
    """A running ``tandemq api``; its output in ``log``."""

    def __init__(
        self, settings: Settings, log: Path, *flags: str, before: tuple[str, ...] = (), cwd: Path = ROOT, **more: str
    ) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tandemq", *before, "api", "--port", "0", *flags],
                cwd=cwd,
                env=environment(settings, PYTHONPATH=str(ROOT / "src"), TMPDIR=str(log.parent), **more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def url(self) -> str:
        """Where it listens, once it says so."""

        def said() -> str:
            found = re.search(r"listening on (https?://[^ ,\n]+)", self.text())
            if found is None and self.process.poll() is not None:
                raise RuntimeError(f"it has ended:\n{self.text()}")
            return found[1] if found else ""

        return eventually(said, 60, self.text)

    def client(self) -> httpx.Client:
        """A client of it, once it listens."""
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60.0)

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """The processes behind its port, if there are several."""
        try:
            every = psutil.Process(self.process.pid).children()
        except psutil.Error:
            return []
        return [p for p in every if "tandemq.http.process" in _command(p)]

    def wait(self) -> int:
        """Its exit code."""
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text()}") from None
        assert "Traceback" not in self.text(), self.text()
        return code


def _command(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []
    return command


@contextmanager
def running(settings: Settings, folder: Path, *flags: str, **options: Any) -> Iterator[ApiProcess]:
    """Start one, logging into ``folder``; killed at the end with all its processes, if it has not ended."""
    made = ApiProcess(settings, folder / "api.log", *flags, **options)
    try:
        yield made
    finally:
        left = [made.process, *made.children()] if made.process.poll() is None else []
        for one in left:
            one.kill()
        made.process.wait()


def refuses(url: str) -> bool:
    """Whether nobody listens there."""
    where = urlsplit(url)
    try:
        socket.create_connection((where.hostname, where.port), timeout=5).close()
    except OSError:
        return True
    return False
