"""``tandemq`` as operators call it: a process of its own, its exit code, and what it printed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tandemq.core.settings import Settings
from tests.workers import ROOT, environment


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


def tandemq(settings: Settings, *arguments: object, stdin: str = "", code: int = 0, **variables: str) -> Answer:
    """Run a command to its end; it must end with ``code`` and without a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "tandemq", *map(str, arguments)],
        cwd=ROOT,
        env=environment(settings, **variables),
        input=stdin.encode(),
        capture_output=True,
        timeout=90,
        check=False,
    )
    answer = Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert answer.code == code, answer
    assert "Traceback" not in answer.err, answer.err
    return answer
