"""The other queues: how each is set up at its best, and where it is installed. Why so: docs/benchmarks.md."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

from benchmarks.registry import ROOT, Phases, Rows, Side, versions
from benchmarks.servers import INSTALL_POSTGRES, MissingPostgres, postgres_bin

VENV = ROOT / ".cache" / "bench-venv"
NODE = ROOT / ".cache" / "bench-node"
BIN = VENV / "bin"
#: What a peer is installed as. hiredis and uvloop make several of them faster, so all get them.
PACKAGES = {
    "pgqueuer": ("pgqueuer", "asyncpg", "psycopg[binary]"),
    "huey": ("huey",),
    "dramatiq": ("dramatiq[redis]",),
    "celery": ("celery[redis]",),
    "rq": ("rq",),
    "saq": ("saq",),
    "taskiq": ("taskiq", "taskiq-redis"),
    "procrastinate": ("procrastinate", "psycopg[binary,pool]"),
}
COMMON = ("redis", "hiredis", "uvloop", "pygal")
ALWAYS = ("pgqueuer", "huey", "dramatiq", "celery")
ON_REQUEST = ("rq", "saq", "taskiq", "procrastinate", "bullmq")

CELERY = "-A benchmarks.sides.celery_app worker -P solo -l ERROR --without-gossip --without-mingle --without-heartbeat"
TASKIQ = "worker benchmarks.sides.taskiq_app:broker -w 2 --max-async-tasks 100 --max-prefetch 100"
TASKIQ += " --ack-type when_received --log-level ERROR"
PGQ = ("pgq", "--pg-dsn", "{BENCH_POSTGRES_URL}")
PROCRASTINATE = ("procrastinate", "--app", "benchmarks.sides.procrastinate_app.app")
BULLMQ = "benchmarks/sides/bullmq.mjs"

# Both databases note the time of a change as the start of its transaction or statement, as tandemq's tables do.
PGQUEUER_ROWS = Rows(
    open="SELECT 1 FROM pgqueuer LIMIT 1",
    drained="SELECT COUNT(*) FILTER (WHERE status = 'successful'), EXTRACT(EPOCH FROM MAX(created) FILTER"
    " (WHERE status = 'successful') - MIN(created) FILTER (WHERE status = 'picked')) FROM pgqueuer_log",
)
PROCRASTINATE_ROWS = Rows(
    open="SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1",
    drained="SELECT COUNT(*) FILTER (WHERE type = 'succeeded'), EXTRACT(EPOCH FROM MAX(at) FILTER"
    " (WHERE type = 'succeeded') - MIN(at) FILTER (WHERE type = 'started')) FROM procrastinate_events",
)


def _sizes(single: int, threads: int, bulk: int = 0) -> tuple[Phases, Phases]:
    """Before the drain, and in the CPU measurement; small for a slow peer, so that it does not take half of the run."""
    many = (("bulk", bulk),) if bulk else ()
    return (("single", single), ("threads", threads), *many), (("single", single), *many)


def _side(name: str, workers: tuple[tuple[str, ...], ...], sizes: tuple[Phases, Phases], **more: Any) -> Side:
    return Side(name, f"benchmarks.sides.{name}_app", BIN, workers, *sizes, **more)


_PGQ_RUN = ("python", "-m", "benchmarks.sides.pgqueuer_app")
_RQ_POOL = ("rq", "worker-pool", "-q", "-n", "2", "-w", "rq.worker.SimpleWorker", "-u", "{BENCH_REDIS_URL}", "bench")
_HUEY = ("huey_consumer", "benchmarks.sides.huey_app.huey", "-k", "thread", "-w", "4", "-n", "-q")
_NODE = shutil.which("node") or "node"
SIDES = {
    side.name: side
    for side in (
        _side(
            "pgqueuer",
            (_PGQ_RUN,) * 2,
            _sizes(2000, 4000, 100_000),
            servers=("postgres",),
            setup=((*PGQ, "install"), (*PGQ, "autovac")),
            rows=PGQUEUER_ROWS,
        ),
        _side("huey", (_HUEY,) * 2, _sizes(5000, 5000)),
        _side("dramatiq", (("dramatiq", "benchmarks.sides.dramatiq_app", "-p", "2", "-t", "8"),), _sizes(5000, 5000)),
        _side("celery", tuple(("celery", *CELERY.split(), "-n", f"{name}@%h") for name in "ab"), _sizes(2000, 2000)),
        _side("rq", (_RQ_POOL,), _sizes(1000, 1000, 2000)),
        _side("saq", (("saq", "benchmarks.sides.saq_app.settings", "-q"),) * 2, _sizes(3000, 3000)),
        _side("taskiq", (("taskiq", *TASKIQ.split()),), _sizes(4000, 4000)),
        _side(
            "procrastinate",
            ((*PROCRASTINATE, "worker", "--concurrency", "30"),) * 2,
            _sizes(500, 500, 2000),
            servers=("postgres",),
            setup=((*PROCRASTINATE, "schema", "--apply"),),
            rows=PROCRASTINATE_ROWS,
        ),
        _side("bullmq", ((_NODE, BULLMQ, "worker"),), _sizes(4000, 4000, 10_000), producer=(_NODE, BULLMQ, "drive")),
    )
}


def peer(name: str, scale: float = 1.0) -> Side:
    """The side of this name; ``scale`` multiplies its numbers of tasks."""

    def scaled(phases: Phases) -> Phases:
        return tuple((phase, max(64, round(n * scale))) for phase, n in phases)

    side = SIDES[name]
    return replace(side, before=scaled(side.before), cpu=scaled(side.cpu))


def missing(name: str) -> str:
    """Why this peer cannot be measured on this machine, and the command that changes it; empty if it can."""
    if name == "bullmq" and not (shutil.which("node") and shutil.which("npm")):
        return "no node and npm here: apt-get install -y --no-remove nodejs npm"
    if name in {"pgqueuer", "procrastinate"}:
        try:
            postgres_bin()
        except MissingPostgres as missing_postgres:
            return str(missing_postgres)
        if not shutil.which("setpriv") and sys.platform == "linux":
            return f"no setpriv (util-linux) here: {INSTALL_POSTGRES} util-linux"
    return ""


def install(names: tuple[str, ...]) -> None:
    """Into their own virtual environment and node folder under .cache, never the project's; kept between runs."""
    if not (BIN / "python").exists():
        print("making", VENV, flush=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    wanted = [*COMMON, *(package for name in names for package in PACKAGES.get(name, ()))]
    have = versions(BIN / "python", tuple(package.partition("[")[0] for package in wanted))
    if lacking := [package for package in wanted if have[package.partition("[")[0]] == "none"]:
        print("installing", *lacking, "into", VENV, flush=True)
        subprocess.run([BIN / "pip", "install", "-q", "--disable-pip-version-check", *lacking], check=True)
    if "bullmq" in names and not (NODE / "node_modules" / "bullmq").exists():
        print("installing bullmq into", NODE, flush=True)
        NODE.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "install", "--prefix", NODE, "--no-audit", "--no-fund", "--silent", "bullmq", "ioredis"], check=True
        )


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of these peers and of what they run on."""
    packages = tuple(package.partition("[")[0] for name in names for package in PACKAGES.get(name, ()))
    found = versions(BIN / "python", tuple(dict.fromkeys((*packages, *COMMON))))
    if "bullmq" in names:
        for name in ("bullmq", "ioredis"):
            package = json.loads((NODE / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
            found[name] = package["version"]
        found["node"] = subprocess.run([_NODE, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {f"peer {name}": version for name, version in found.items()}
