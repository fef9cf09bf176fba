"""PROBE: the only judge of "ran", "ran twice" and "never ran", whatever the rows say.

Handlers under test, in whatever process, call ``start``/``end`` (or use ``running``): each appends one line
``id attempt pid start|end time`` with O_APPEND in one write, so lines of many processes never mix and survive
``kill -9``. The test reads the same file through ``Probe``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TANDEMQ_TEST_PROBE"


def note(what: str, task_id: int, attempt: int, path: str | os.PathLike[str] | None = None) -> None:
    """Append one line; the path comes from TANDEMQ_TEST_PROBE unless given."""
    now = time.clock_gettime(time.CLOCK_REALTIME)  # true also where a scenario shifts time.time
    line = f"{task_id} {attempt} {os.getpid()} {what} {now:.6f}\n"
    fd = os.open(path or os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def start(path: str | os.PathLike[str] | None = None) -> None:
    """Note that the current task's handler has begun."""
    from tandemq import current_task

    task = current_task()
    note("start", task.id, task.attempt, path)


def end(path: str | os.PathLike[str] | None = None) -> None:
    """Note that the current task's handler is about to return."""
    from tandemq import current_task

    task = current_task()
    note("end", task.id, task.attempt, path)


@contextlib.contextmanager
def running(path: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """``start`` now and ``end`` when the body has ended without an exception."""
    start(path)
    yield
    end(path)


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the file; ``at`` is seconds since the epoch."""

    task_id: int
    attempt: int
    pid: int
    what: str
    at: float


class Probe:
    """The reader's side."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def environ(self) -> dict[str, str]:
        """What to add to a subprocess's environment."""
        return {VARIABLE: str(self.path)}

    def marks(self, what: str | None = None, task_id: int | None = None) -> list[Mark]:
        """All whole lines in order, of one kind or one task if asked."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = (line.split(" ") for line in text.splitlines(keepends=True) if line.endswith("\n"))
        marks = (Mark(int(i), int(a), int(p), w, float(t)) for i, a, p, w, t in rows)
        return [m for m in marks if what in (None, m.what) and task_id in (None, m.task_id)]

    def starts(self) -> Counter[int]:
        """How often each task's handler began."""
        return Counter(m.task_id for m in self.marks("start"))

    def ends(self) -> Counter[int]:
        """How often each task's handler came to its end."""
        return Counter(m.task_id for m in self.marks("end"))

    def order(self) -> list[int]:
        """Task ids in the order in which they began."""
        return [m.task_id for m in self.marks("start")]

    def pids(self) -> set[int]:
        """Every process that ran something."""
        return {m.pid for m in self.marks()}

    def assert_once(self, ids: Iterable[int]) -> None:
        """Each of these began exactly once and ended, and nothing else ran."""
        wanted, starts, ends = set(ids), self.starts(), self.ends()
        never, twice = sorted(wanted - set(starts)), sorted(i for i, n in starts.items() if n > 1)
        strange, unended = sorted(set(starts) - wanted), sorted(set(starts) - set(ends))
        faults = {"never ran": never, "ran twice": twice, "not asked for": strange, "did not end": unended}
        said = [f"{len(found)} {fault}: {found[:10]}" for fault, found in faults.items() if found]
        assert not said, "; ".join(said)

    def assert_never_twice_at_once(self) -> None:
        """No two runs of one task overlap in time (a run without an end counts as ended where the next begins)."""
        open_runs: dict[int, Mark] = {}
        for mark in self.marks():
            before = open_runs.pop(mark.task_id, None)
            if mark.what == "start":
                alive = before is not None and any(
                    m.what == "end" and m.pid == before.pid and m.attempt == before.attempt and m.at > mark.at
                    for m in self.marks(task_id=mark.task_id)
                )
                assert not alive, f"task {mark.task_id} ran twice at once: {before} and {mark}"
                open_runs[mark.task_id] = mark
