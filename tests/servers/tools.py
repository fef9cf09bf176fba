"""The tools that the files of deploy/ are checked with: see dev/provide_tools.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.servers.programs import ROOT, MissingServer

VENV = ROOT / ".venv-tools"


def tool(name: str) -> Path:
    """Where it is, or MissingServer: never a skip."""
    path = VENV / "bin" / name
    if not path.exists():
        raise MissingServer(f"no {name} here: sh dev/provide_tools.sh")
    return path


def run(name: str, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """What it says; away from any cluster or Docker that the machine's user may have settings for."""
    kept = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    command = [tool(name), *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=kept, input=stdin, capture_output=True, text=True, timeout=90, check=False
    )
