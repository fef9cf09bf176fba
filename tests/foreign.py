"""Workers and producers in other languages, as processes of a test: the examples, run by node, sh and curl."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import ROOT
from tests.waiting import eventually

EXAMPLES = ROOT / "examples" / "http"
HANDLERS = ROOT / "tests" / "apps" / "handlers.mjs"


def program(name: str) -> str:
    """The path of a program that the examples need. Without it the test fails, and says what to type."""
    if found := shutil.which(name):
        return found
    pytest.fail(f"no {name} here; to check the examples in other languages: apt-get install -y {_PACKAGES[name]}")


_PACKAGES = {"node": "nodejs", "curl": "curl"}


def environment(url: str, **more: str) -> dict[str, str]:
    """Nothing of this process's settings or proxies, and where the API is."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_") and not k.lower().endswith("_proxy")}
    return kept | {"TANDEMQ_API_URL": url} | more


def said_by(*command: str, url: str, code: int = 0, **more: str) -> str:
    """What a program that ends by itself prints; AssertionError for another exit code."""
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environment(url, **more), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stdout + done.stderr


class Foreign:
    """A worker that goes on until it is told to stop; what it prints is in ``log``."""

    def __init__(self, log: Path, *command: str, url: str, **more: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=EXAMPLES, env=environment(url, **more), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, text: str, timeout_s: float = 60.0) -> None:
        """Wait until it has printed that."""
        eventually(lambda: text in self.text(), timeout_s, self.text)

    def stop(self, timeout_s: float = 60.0) -> int:
        """TERM to the worker alone, as a service manager does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 60.0) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.text()[-4000:]}") from None

    def kill(self) -> None:
        """SIGKILL to it and whatever it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def worker(log: Path, *command: str, url: str, **more: str) -> Iterator[Foreign]:
    """Start one; it is gone in the end."""
    made = Foreign(log, *command, url=url, **more)
    try:
        yield made
    finally:
        try:
            os.killpg(made.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        made.process.wait()
