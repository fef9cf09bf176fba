"""The work of one demo task: read a Python file as Python reads it, parse it, measure it."""

from __future__ import annotations

import ast
import io
import threading
import tokenize
import zlib
from dataclasses import dataclass
from pathlib import Path

#: Share of the files, in percent, whose first attempt fails as a flaky disk would.
FLAKY_PERCENT = 5
#: CPython 3.11 counts the depth of the tree it builds per interpreter, not per thread: two threads that build at once
#: get a SystemError, or a RecursionError for a file that is fine.
_PARSING = threading.Lock()


class DoesNotParse(Exception):
    """The file is not Python: unknown or wrong encoding, bad syntax. Trying again would not help."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Sums over parsed files."""

    files: int = 0
    lines: int = 0
    bytes: int = 0
    functions: int = 0

    def __add__(self, other: Measure) -> Measure:
        return Measure(
            self.files + other.files,
            self.lines + other.lines,
            self.bytes + other.bytes,
            self.functions + other.functions,
        )


def measure(path: Path) -> Measure:
    """Lines, bytes and functions of one file, read in its declared encoding. Raises DoesNotParse, or OSError."""
    raw = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        source = io.TextIOWrapper(io.BytesIO(raw), encoding).read()
        with _PARSING:
            tree = ast.parse(source, path.name)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as bad:
        # ValueError: bytes that the declared encoding lacks, or a null byte; MemoryError: nested too deeply.
        raise DoesNotParse(f"{type(bad).__name__}: {bad}") from None
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
    lines = source.count("\n") + (not source.endswith("\n") and source != "")
    return Measure(1, lines, len(raw), functions)


def is_flaky(name: str) -> bool:
    """Whether the first attempt at this file fails: decided by its name, so every run fails the same ones."""
    return zlib.crc32(f"flaky disk:{name}".encode()) % 100 < FLAKY_PERCENT
