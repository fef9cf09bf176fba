"""JSON lines on the disk: exports, and what is purged, which is written here first."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tandemq.core.task import Task

_TAIL = 1 << 16


def line_of(task: Task) -> str:
    """A task with its failed attempts as one line of JSON, ASCII only."""
    return json.dumps(task.to_json(), separators=(",", ":"), allow_nan=False) + "\n"


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[str]]:
    """A text file, readable by its owner alone, that takes this name when all of it is on the disk. OSError as usual.

    Killed before, a file with ``.part`` at its end is left, and what had the name keeps it.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():  # a pipe or a terminal
        with target.open("w", encoding="ascii") as stream:
            yield stream
        return
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)  # of a killed export, or somebody's link: what is opened is ours and new
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        _sync_folder(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class Archive:
    """A file that lines are added to, readable by its owner alone, used by one at a time. OSError as usual.

    A line that a killed process has begun is removed when the file is opened again: its task was not deleted.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # Another purge that is writing a line just now must not lose it.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(self._fd, self._end_of_lines())
            if is_new:
                _sync_folder(path.absolute().parent)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def write(self, tasks: Iterable[Task]) -> None:
        """Add lines; they are on the disk when ``sync`` has returned."""
        for task in tasks:
            rest = memoryview(line_of(task).encode())
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        """Wait for the disk."""
        os.fsync(self._fd)

    def _end_of_lines(self) -> int:
        """Where the last whole line ends."""
        end = os.lseek(self._fd, 0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _TAIL)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
