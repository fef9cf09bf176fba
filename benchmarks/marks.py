"""What every side's task calls: it counts runs into a small shared file, one per process, and notes when they were.

Standard library only: it also runs inside the peers' virtual environment. About 1 us a task, the same for everybody.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

FORMAT = struct.Struct("<Qdd")  # runs, start of the first, end of the last


class Marks:
    """This process's counter file in ``$BENCH_DIR``; opened at the first run, so after every fork."""

    def __init__(self) -> None:
        self._pid = 0

    def _open(self) -> None:
        path = Path(os.environ["BENCH_DIR"], f"{os.getpid()}.marks")
        path.write_bytes(bytes(FORMAT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), FORMAT.size)
        self._lock, self._n, self._first, self._pid = threading.Lock(), 0, time.time(), os.getpid()

    def add(self, n: int = 1) -> None:
        if self._pid != os.getpid():
            with _opening:
                if self._pid != os.getpid():
                    self._open()
        with self._lock:
            self._n += n
            FORMAT.pack_into(self._map, 0, self._n, self._first, time.time())


_opening = threading.Lock()
_marks = Marks()


def noop(n: int = 1) -> None:
    """The no-op task."""
    _marks.add(n)


def stamp(order_id: int) -> None:
    """The task of the latency measurement: notes when it was started."""
    now = time.time_ns()
    file = os.open(Path(os.environ["BENCH_DIR"], "stamps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{order_id} {now}\n".encode())
    os.close(file)


def read(folder: Path) -> tuple[int, float, float]:
    """Runs of all processes, start of the first, end of the last."""
    found = [FORMAT.unpack(path.read_bytes()) for path in folder.glob("*.marks") if path.stat().st_size == FORMAT.size]
    found = [one for one in found if one[0]]
    if not found:
        return 0, 0.0, 0.0
    return sum(n for n, _, _ in found), min(first for _, first, _ in found), max(last for _, _, last in found)


def read_stamps(folder: Path) -> dict[int, int]:
    """Start of each latency task in ns."""
    path = folder / "stamps"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return {int(i): int(ns) for i, ns in (line.split() for line in lines)}
