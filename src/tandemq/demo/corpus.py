"""The files the demo works on: the running Python's standard library, and a few that do not parse."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tandemq

_ELSEWHERE = frozenset({"site-packages", "dist-packages", "__pycache__"})
#: Written where no source checkout with ``examples/broken`` is at hand (an installed wheel).
_BROKEN = {
    "unclosed_bracket.py": b"PRICES = [1, 2\n",
    "python2_print.py": b'print "hello"\n',
    "wrong_encoding.py": b'# -*- coding: utf-8 -*-\nCITY = "Z\xfcrich"\n',
}


@dataclass(frozen=True, slots=True, order=True)
class SourceFile:
    """``name`` does not depend on where Python is installed."""

    name: str
    path: str


def standard_library(root: Path | None = None) -> list[SourceFile]:
    """Every ``.py`` file of the standard library, without installed packages, in a fixed order."""
    folder = root or Path(sysconfig.get_path("stdlib"))
    return sorted(SourceFile(f"stdlib/{path.relative_to(folder).as_posix()}", str(path)) for path in _walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _ELSEWHERE]
        paths = [Path(here, name) for name in files if name.endswith(".py")]
        yield from (path for path in paths if path.is_file() and os.access(path, os.R_OK))


def broken_files(scratch: Path) -> list[SourceFile]:
    """Three or more files that do not parse: those of the source checkout, else made in ``scratch``."""
    folder = Path(tandemq.__file__).parents[2] / "examples" / "broken"
    if not any(folder.glob("*.py")):
        folder = scratch / "broken"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _BROKEN.items():
            (folder / name).write_bytes(content)
    return sorted(SourceFile(f"broken/{path.name}", str(path)) for path in folder.glob("*.py"))
