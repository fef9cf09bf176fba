"""What a side of the benchmark is, and tandemq's own two: itself and its ceiling. The others are in ``peers``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: This interpreter's programs: tandemq and the ceiling run in it.
OURS = Path(sys.executable).parent
Phases = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """How a side with a database says what is done, in SQL."""

    #: A row as long as a task is not committed as finished.
    open: str
    #: How many are finished, and the seconds from the first start to the last finish that was committed.
    drained: str


@dataclass(frozen=True, slots=True)
class Side:
    """``workers`` and ``setup`` are command lines; ``{BENCH_...}`` is filled in from the environment of the round.

    ``before``: numbers of tasks before the drain, by phase; ``cpu``: those in the CPU measurement.
    """

    name: str
    module: str
    #: The folder of its programs.
    bin: Path
    workers: tuple[tuple[str, ...], ...]
    before: Phases
    cpu: Phases
    #: Where its tasks are: mysql (and Redis), postgres or redis. The CPU of these servers is counted, no other's.
    servers: tuple[str, ...] = ("redis",)
    setup: tuple[tuple[str, ...], ...] = ()
    rows: Rows | None = None
    #: Another producer program than ``benchmarks.drive``.
    producer: tuple[str, ...] = ()

    def commands(self, env: Mapping[str, str]) -> list[list[str]]:
        """The worker processes to start."""
        return [self._command(line, env) for line in self.workers]

    def preparations(self, env: Mapping[str, str]) -> list[list[str]]:
        """What is run once on an empty database."""
        return [self._command(line, env) for line in self.setup]

    def drive(self, phases: Phases) -> list[str]:
        """The producer for these phases."""
        program = self.producer or ("python", "-m", "benchmarks.drive", self.module)
        return [str(self.bin / program[0]), *program[1:], *(f"{name}:{n}" for name, n in phases)]

    def _command(self, line: tuple[str, ...], env: Mapping[str, str]) -> list[str]:
        program, *args = line
        return [str(self.bin / program), *(arg.format_map(env) if arg.startswith("{") else arg for arg in args)]


MIGRATE = ("tandemq", "migrate")
#: started_at is the time of the claim's statement, completed_at that of the finish: both as the server saw them.
TANDEMQ_ROWS = Rows(
    open="SELECT 1 FROM tandemq_tasks WHERE ended = 0 LIMIT 1",
    drained="SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(started_at), MAX(completed_at)) / 1e6"
    " FROM tandemq_tasks WHERE status = 'succeeded'",
)


def tandemq(bulk: int) -> Side:
    """Two processes of eight slots, everything else as it comes."""
    return Side(
        "tandemq",
        "benchmarks.sides.tandemq_app",
        OURS,
        (("tandemq", "-A", "benchmarks.sides.tandemq_app:app", "worker", "-p", "2", "-c", "8"),),
        (("single", 2000), ("threads", 10_000), ("bulk", bulk)),
        (("single", 2000), ("bulk", bulk)),
        servers=("mysql", "redis"),
        setup=(MIGRATE,),
        rows=TANDEMQ_ROWS,
    )


def ceiling(bulk: int, *, batch: int = 200, processes: int = 2) -> Side:
    """The same statements in a bare loop."""
    return Side(
        "ceiling",
        "benchmarks.ceiling.producing",
        OURS,
        (("python", "-m", "benchmarks.ceiling", str(batch)),) * processes,
        (("single", 2000), ("threads", 10_000), ("bulk", bulk)),
        (("single", 2000), ("bulk", bulk)),
        servers=("mysql", "redis"),
        setup=(MIGRATE,),
        rows=TANDEMQ_ROWS,
    )


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Of packages, as that interpreter sees them; ``none`` for one that it lacks."""
    code = (
        "import sys, importlib.metadata as m\n"
        "for p in sys.argv[1:]:\n"
        "    try: print(p, m.version(p))\n"
        "    except m.PackageNotFoundError: print(p, 'none')"
    )
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
