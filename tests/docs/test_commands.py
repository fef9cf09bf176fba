"""The two commands of the README: what they need, and what they say when it is not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _find_python(*path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.pathsep.join(map(str, path))} | environ
    command = ["/bin/sh", str(ROOT / "dev" / "find_python.sh")]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


WORKS = f'exec "{sys.executable}" "$@"'
BROKEN_SHIM = "echo 'pyenv: python: command not found' >&2; exit 127"


def test_the_newest_python_that_really_starts_is_taken(tmp_path: Path) -> None:
    shims, system = tmp_path / "shims", tmp_path / "system"
    for name in ("python3.14", "python3.12", "python3"):
        _program(shims, name, BROKEN_SHIM)
    _program(system, "python3.12", WORKS)
    _program(system, "python3", "exit 3")

    done = _find_python(shims, system)

    assert done.returncode == 0
    assert Path(done.stdout.strip()) == Path(sys.executable)


def test_a_named_python_comes_first(tmp_path: Path) -> None:
    _program(tmp_path, "python3.14", "echo wrong")
    _program(tmp_path / "own", "python", WORKS)

    done = _find_python(tmp_path, PYTHON=str(tmp_path / "own" / "python"))

    assert Path(done.stdout.strip()) == Path(sys.executable)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "needs Python 3.11 or newer and found none"),
        (BROKEN_SHIM, "needs Python 3.11 or newer and found none"),
        ("exit 3", "is older"),
        ("exit 4", "apt-get install python3-venv"),
    ],
    ids=["none", "a broken shim", "an old one", "one without venv"],
)
def test_without_a_python_there_is_one_clear_line(tmp_path: Path, script: str | None, says: str) -> None:
    if script:
        _program(tmp_path, "python3", script)

    done = _find_python(tmp_path)

    assert done.returncode == 1
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def _make(*arguments: str, **environ: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | environ
    done = subprocess.run(
        ["make", "--dry-run", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_demo_takes_servers_from_the_command_line_only() -> None:
    assert "DATABASE_URL" not in _make("demo", DATABASE_URL="postgres://other/program", REDIS_URL="redis://other")

    line = _make("demo", "DATABASE_URL=mysql://u@h/d", "REDIS_URL=redis://h").splitlines()[-1]

    assert line == "TANDEMQ_DATABASE_URL='mysql://u@h/d' TANDEMQ_REDIS_URL='redis://h' .venv/bin/tandemq demo"


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    called = re.compile(r"(?:^|[`'])make ([a-z]+(?:-[a-z]+)*)", re.MULTILINE)
    named = {word for page in pages for word in called.findall(page.read_text())}

    assert {"demo", "test"} <= named
    assert named <= targets


def test_ci_runs_make_test_then_make_chaos_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    lines = [x for x in script.read_text().splitlines() if x and not x.startswith("#")]

    assert os.access(script, os.X_OK)
    assert lines[-2:] == ["make test </dev/null", "exec make chaos </dev/null"]
    assert "set -euo pipefail" in lines
    assert not any(re.search(r"\b(pip|pytest|git)\b", line) for line in lines)


def test_root_installs_the_programs_of_the_examples(tmp_path: Path) -> None:
    """Only the ones that are missing; servers that are named by a URL are not looked for."""
    (bin_, dev) = (tmp_path / "bin", tmp_path / "dev")
    for folder in (bin_, dev):
        folder.mkdir()
    for name in ("dirname", "sh"):
        (bin_ / name).symlink_to(str(shutil.which(name)))
    _program(bin_, "id", "echo 0")
    _program(bin_, "apt-get", "exit 1")
    _program(bin_, "tmux", "exit 0")
    _program(dev, "install_as_root.sh", f'echo "$@" >>{tmp_path}/installed')
    (dev / "provide_servers.sh").write_text((ROOT / "dev" / "provide_servers.sh").read_text())
    environ = {"PATH": str(bin_), "TANDEMQ_TEST_REDIS_URL": "redis://x", "TANDEMQ_TEST_DATABASE_URL": "mysql://x"}

    for present in ("none", "node", "curl"):
        _program(bin_, present, "exit 0")
        subprocess.run(["/bin/sh", str(dev / "provide_servers.sh")], env=environ, check=True)

    assert (tmp_path / "installed").read_text().splitlines() == ["nodejs curl", "curl"]


def test_missing_servers_are_named_with_the_command_that_brings_them(tmp_path: Path) -> None:
    """No server, no apt-get: one line to copy, and a failure."""
    for name in ("dirname", "id", "mkdir"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    environ = {"PATH": str(tmp_path), "TANDEMQ_TEST_UNPACKED_ONLY": "1"}
    script = (ROOT / "dev" / "provide_servers.sh").read_text()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "provide_servers.sh").write_text(script)

    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "dev" / "provide_servers.sh")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("no redis-server mariadb-server tmux")
    assert " here; to run all tests: " in done.stderr
    assert done.stderr.count("\n") == 1
