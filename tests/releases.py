"""The release before this one, as it was: its code out of git, to be run beside ours."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tandemq.core.settings import Settings
from tests.servers import ROOT
from tests.workers import APP, Worker, environment

#: The commit that the current release is upgraded from; moved forward with each release.
PREVIOUS = "cac6352e01185a42fb8ccd77683d44d9725b7ef1"
_PARTS = ("src", "sql", "tests/__init__.py", "tests/apps", "tests/probe.py", "tests/waiting.py", "pyproject.toml")


class MissingRelease(RuntimeError):
    """The commit cannot be had here."""


def unpack(folder: Path, commit: str = PREVIOUS) -> Path:
    """The commit's code and test tasks under this folder."""
    listed = _git("ls-tree", "-r", "--name-only", commit, *_PARTS).decode().splitlines()
    parts = [part for part in _PARTS if any(name == part or name.startswith(f"{part}/") for name in listed)]
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit, *parts))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode().strip() or "no reason given"
        raise MissingRelease(
            f"commit {PREVIOUS[:7]}, the release before this one, cannot be read from git here ({why});"
            " a shallow clone lacks it: git fetch --unshallow"
        )
    return done.stdout


class OldWorker(Worker):
    """``Worker`` of an unpacked release."""

    def __init__(self, release: Path, settings: Settings, log: Path, *arguments: str, **extra: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tandemq", "-A", APP, "worker", *arguments],
                cwd=release,
                env=old_environment(release, settings, **extra),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


def old_environment(release: Path, settings: Settings, **extra: str) -> dict[str, str]:
    """Where the old code is found first, and nothing of ours."""
    return environment(settings, **extra) | {"PYTHONPATH": os.pathsep.join([str(release / "src"), str(release)])}


def old_tandemq(release: Path, settings: Settings, *arguments: object, code: int = 0, stdin: str = "") -> str:
    """Run a command of the old release; what it printed."""
    given: dict[str, Any] = {"cwd": release, "env": old_environment(release, settings), "input": stdin, "text": True}
    done = subprocess.run(
        [sys.executable, "-m", "tandemq", *map(str, arguments)], capture_output=True, timeout=90, check=False, **given
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout
