"""What a type checker makes of a program that uses tandemq."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def _mypy(path: Path, cache: Path) -> str:
    # A cache of its own: a second mypy on the project's may run at the same time.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), str(path)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_public_api_is_typed_down_to_arguments_and_results(tmp_path: Path) -> None:
    assert "Success: no issues found" in _mypy(HERE / "usage.py", ROOT / ".mypy_cache" / "usage")

    # The same program without its ignores: each of them stands for an error of its own line.
    lines = (HERE / "usage.py").read_text().splitlines()
    bare = tmp_path / "usage.py"
    bare.write_text("\n".join(re.sub(r"  # type: ignore\[[a-z-]+\].*", "", line) for line in lines))
    found = _mypy(bare, ROOT / ".mypy_cache" / "usage")
    assert {int(n) for n in re.findall(r"usage\.py:(\d+): error", found)} == {
        n for n, line in enumerate(lines, 1) if "# type: ignore[" in line
    }
