"""The sides: what their worker set-up is, and how many tasks each is given."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".cache" / "bench-venv"
PEER_PACKAGES = ("huey", "dramatiq[redis]", "celery[redis]")


@dataclass(frozen=True, slots=True)
class Side:
    """``workers`` are command lines without their interpreter's folder. Numbers of tasks: before the drain by phase,
    then in the CPU measurement.
    """

    name: str
    module: str
    bin: Path
    workers: tuple[tuple[str, ...], ...]
    before: tuple[tuple[str, int], ...]
    cpu: tuple[tuple[str, int], ...]
    uses_sql: bool = False

    def commands(self) -> list[list[str]]:
        return [[str(self.bin / program), *args] for program, *args in self.workers]


OURS = Path(sys.executable).parent
PEERS = VENV / "bin"


def sides(*, quick: bool) -> list[Side]:
    """tandemq first; the others are measured against it."""
    n = 20_000 if quick else 50_000
    ours = [
        Side(
            "tandemq",
            "benchmarks.sides.tandemq_app",
            OURS,
            (("tandemq", "-A", "benchmarks.sides.tandemq_app:app", "worker", "-p", "2", "-c", "8"),),
            (("single", 2000), ("threads", 10_000), ("bulk", n)),
            (("single", 2000), ("bulk", n)),
            uses_sql=True,
        ),
        Side(
            "ceiling",
            "benchmarks.ceiling",
            OURS,
            (("python", "-m", "benchmarks.ceiling"),) * 2,
            (("single", 2000), ("bulk", n + 10_000)),
            (("single", 2000), ("bulk", n)),
            uses_sql=True,
        ),
    ]
    return ours if quick else [*ours, *_peers()]


def _peers() -> list[Side]:
    before, cpu = (("single", 5000), ("threads", 5000)), (("single", 5000),)
    celery = "-A benchmarks.sides.celery_app worker -P prefork -c 2 -l ERROR"
    celery += " --without-gossip --without-mingle --without-heartbeat"
    return [
        Side(
            "huey",
            "benchmarks.sides.huey_app",
            PEERS,
            (("huey_consumer", "benchmarks.sides.huey_app.huey", "-k", "process", "-w", "2", "-n", "-q"),),
            before,
            cpu,
        ),
        Side(
            "dramatiq",
            "benchmarks.sides.dramatiq_app",
            PEERS,
            (("dramatiq", "benchmarks.sides.dramatiq_app", "-p", "2", "-t", "8"),),
            before,
            cpu,
        ),
        Side(
            "celery",
            "benchmarks.sides.celery_app",
            PEERS,
            (("celery", *celery.split()),),
            (("single", 2000), ("threads", 2000)),
            (("single", 2000),),
        ),
    ]


def install_peers() -> None:
    """Their own virtual environment under .cache, made once."""
    if not (PEERS / "celery").exists():
        print("installing the peers into", VENV, flush=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([PEERS / "pip", "install", "-q", *PEER_PACKAGES], check=True)


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Of installed packages, as that interpreter sees them."""
    code = "import sys, importlib.metadata as m\nfor p in sys.argv[1:]: print(p, m.version(p))"
    done = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True, check=True)
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
