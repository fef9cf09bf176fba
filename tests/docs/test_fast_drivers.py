"""`make test` and `make test-fast`: the second pair of drivers is tested, or it is said aloud that it was not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT

LACKING = "no gcc here to build mysqlclient with: apt-get install -y --no-remove gcc"


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _run(script: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith(("TANDEMQ_", "MYSQLCLIENT_"))}
    return subprocess.run(
        ["/bin/sh", str(script), *arguments], env=kept | environ, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts whose programs do nothing, and whose test runs leave their arguments in ``ran``."""
    (tmp_path / "dev").mkdir()
    for name in ("run_tests.sh", "find_python.sh", "provide_fast.sh"):
        shutil.copy(ROOT / "dev" / name, tmp_path / "dev")
    for what in ("servers", "prometheus", "tools"):
        _program(tmp_path / "dev" / f"provide_{what}.sh", "exit 0")
    for name in ("python", "ruff", "mypy", "lint-imports"):
        _program(tmp_path / ".venv" / "bin" / name, "exit 0")
    for venv in (".venv", ".venv-fast"):
        line = f'echo "{venv} ${{TANDEMQ_TEST_DRIVER:-}} $*" >>{tmp_path}/ran; exit ${{FAST_CODE:-0}}'
        _program(
            tmp_path / venv / "bin" / "pytest", line if venv == ".venv-fast" else line.replace("FAST_CODE", "CODE")
        )
    return tmp_path


def test_without_a_compiler_there_is_one_clear_line(checkout: Path) -> None:
    path = checkout / "path"
    _program(path / "python3", f'exec "{sys.executable}" "$@"')
    for name in ("dirname", "id", "sh"):
        (path / name).symlink_to(str(shutil.which(name)))

    done = _run(checkout / "dev" / "provide_fast.sh", PATH=str(path), PYTHON="")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("no gcc libc6-dev pkg-config libmariadb-dev ")
    assert "apt-get install -y --no-remove gcc libc6-dev pkg-config libmariadb-dev" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_speaks_to_the_servers_is_tested_on_both_pairs_of_drivers(checkout: Path) -> None:
    _program(checkout / "dev" / "provide_fast.sh", "exit 0")

    done = _run(checkout / "dev" / "run_tests.sh")

    first, second = (checkout / "ran").read_text().splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert first.startswith(".venv  -q ")
    assert second.startswith(".venv-fast mysqldb -q ")
    folders = [word for word in second.split() if word.startswith("tests/")]
    assert {"tests/contract", "tests/crash/test_tx_points.py"} <= set(folders)
    assert all((ROOT / folder).exists() for folder in folders)


def test_a_failure_on_the_fast_drivers_fails_the_whole(checkout: Path) -> None:
    _program(checkout / "dev" / "provide_fast.sh", "exit 0")

    done = _run(checkout / "dev" / "run_tests.sh", FAST_CODE="1")

    assert done.returncode == 1
    assert "FAILED: pytest-fast\n" in done.stderr


@pytest.mark.parametrize(("environ", "code"), [({}, 0), ({"CI": "false"}, 0), ({"CI": "true"}, 1), ({"CI": "1"}, 1)])
def test_drivers_that_cannot_be_installed_are_told_last_and_fail_ci(
    checkout: Path, environ: dict[str, str], code: int
) -> None:
    _program(checkout / "dev" / "provide_fast.sh", f"echo '{LACKING}' >&2; exit 1")

    done = _run(checkout / "dev" / "run_tests.sh", **environ)

    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == f"NOT CHECKED: the tests on tandemq[fast] did not run: {LACKING}"
    assert ("FAILED: pytest-fast" in done.stderr) is bool(code)


@pytest.mark.parametrize(
    ("what", "left_out", "told"),
    [
        ("prometheus", "not prometheus", "the alert rules were not tested"),
        ("tools", "not tools", "the files of deploy/ were not all checked"),
    ],
)
def test_what_cannot_be_provided_leaves_its_tests_out_and_fails_the_whole(
    checkout: Path, what: str, left_out: str, told: str
) -> None:
    _program(checkout / "dev" / "provide_fast.sh", "exit 0")
    _program(checkout / "dev" / f"provide_{what}.sh", "echo 'no way to the registry' >&2; exit 1")

    done = _run(checkout / "dev" / "run_tests.sh")

    assert (done.returncode, done.stderr) == (1, f"FAILED: {told}: no way to the registry\n")
    first, second = (checkout / "ran").read_text().splitlines()
    assert first.endswith(f"-m {left_out}")
    assert second.startswith(".venv-fast ")


def test_make_test_fast_runs_everything_or_fails(checkout: Path) -> None:
    _program(checkout / "dev" / "provide_fast.sh", "exit 0")
    assert _run(checkout / "dev" / "run_tests.sh", "--fast").returncode == 0
    (ran,) = (checkout / "ran").read_text().splitlines()
    assert ran == ".venv-fast mysqldb -q -n 3 --dist loadfile"

    assert _run(checkout / "dev" / "run_tests.sh", "--fast", FAST_CODE="1").returncode == 1
    _program(checkout / "dev" / "provide_fast.sh", f"echo '{LACKING}' >&2; exit 1")
    done = _run(checkout / "dev" / "run_tests.sh", "--fast")
    assert (done.returncode, done.stderr) == (1, LACKING + "\n")
