"""One round of one side: fill, measure the broker's size, drain, idle latency, CPU; on servers that stay up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks import cpu, marks
from benchmarks.figures import percentile
from benchmarks.peers import NODE
from benchmarks.registry import ROOT, Side
from benchmarks.servers import Servers

#: Comes first and is not counted: connections are opened and modules imported.
WARM = ("single", 50)
WARM_UP = 20
PATIENCE_S = 120.0
Figures = dict[str, float | None]


class Round:
    """A fresh database, an empty Redis and a fresh folder for one side; used as a context manager."""

    def __init__(
        self,
        side: Side,
        servers: Servers,
        *,
        samples: int = 120,
        driver: str = "pymysql",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.side, self.servers, self.samples, self.driver = side, servers, samples, driver
        self.patience_s = patience_s
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Round:
        servers = self.servers
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        servers.redis.flush()
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "BENCH_DIR": str(self.folder),
            "BENCH_NODE": str(NODE),
            "BENCH_REDIS_URL": servers.redis.url(),
        }
        self.database = ""
        if "mysql" in self.side.servers:
            self.database = servers.mysql.create_database()
            url = servers.mysql.url(self.database).replace("+pymysql", f"+{self.driver}")
            self.env |= {"TANDEMQ_DATABASE_URL": url, "TANDEMQ_REDIS_URL": servers.redis.url()}
            self.env |= {"BENCH_MYSQL_PORT": str(servers.mysql.port), "BENCH_DATABASE": self.database}
            self.env |= {"BENCH_DRIVER": self.driver}
        elif "postgres" in self.side.servers:
            self.database = servers.postgres.create_database()
            self.env["BENCH_POSTGRES_URL"] = servers.postgres.url(self.database)
        for command in self.side.preparations(self.env):
            self.call(command)
        return self

    def __exit__(self, *error: object) -> None:
        if self.database:
            server = self.servers.mysql if "mysql" in self.side.servers else self.servers.postgres
            server.drop_database(self.database)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self) -> Figures:
        """All figures of this round, and in ``ways`` which interface of the side was the faster one."""
        empty = self._disk_bytes()
        figures: Figures = {}
        lines = self.drive(WARM, *self.side.before)
        total = sum(line["n"] for line in lines)
        best = fastest([line for line in lines if (line["phase"], line["n"]) != WARM])
        figures.update({phase: line["n"] / line["s"] for phase, line in best.items()})
        figures["redis_bytes"] = self._redis_bytes() / total if "redis" in self.side.servers else None
        figures["disk_bytes"] = (self._disk_bytes() - empty) / total if self.side.rows else None
        with self.worker() as workers:
            self.wait(total)
            figures["drain"] = self._drain_rate(total)
            total += self._latency(figures, total)
            for phase, n in self.side.cpu:
                way = best[phase]["way"]
                total += self._cpu(figures, workers, phase, way, n, total)
        return figures

    def drain(self) -> float:
        """The drain alone."""
        total = sum(line["n"] for line in self.drive(*self.side.before))
        with self.worker():
            self.wait(total)
        return self._drain_rate(total)

    # Processes

    def call(self, command: list[str]) -> str:
        """Run it to its end in the environment of this round; its standard output."""
        done = subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    def drive(self, *phases: tuple[str, int]) -> list[dict[str, Any]]:
        """Run the producer; one line for each phase and way."""
        return [json.loads(line) for line in self.call(self.side.drive(phases)).splitlines()]

    @contextlib.contextmanager
    def worker(self) -> Iterator[list[psutil.Process]]:
        """The side's worker processes; stopped in order at the end."""
        with (self.folder / "worker.log").open("wb") as log:
            started = self.started = [
                subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
                for command in self.side.commands(self.env)
            ]
            try:
                yield [psutil.Process(one.pid) for one in started]
            except Exception:
                print((self.folder / "worker.log").read_text(errors="replace")[-3000:])
                raise
            finally:
                for one in started:
                    one.send_signal(signal.SIGTERM)
                for one in started:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        one.wait(15)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(one.pid, signal.SIGKILL)  # its own session: only what was started here
                    one.wait()

    def wait(self, total: int) -> None:
        """Until all have run and, where there are rows, are committed as finished."""
        deadline = time.monotonic() + self.patience_s
        while (ran := marks.read(self.folder)[0]) < total - self._stamped() or self._open_rows():
            if time.monotonic() > deadline or any(one.poll() is not None for one in self.started):
                raise RuntimeError(f"{self.side.name}: {ran} of {total} ran; too slow, or a worker died")
            time.sleep(0.02)

    def _stamped(self) -> int:
        return len(marks.read_stamps(self.folder))

    def _open_rows(self) -> bool:
        return self.side.rows is not None and bool(self.sql(self.side.rows.open))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the side's database."""
        if "mysql" in self.side.servers:
            return self.servers.mysql.sql(f"/* benchmark */ {statement}", database=self.database)
        return self.servers.postgres.sql(statement, self.database)

    # Figures

    def _redis_bytes(self) -> int:
        """MEMORY USAGE of every key in Redis, with all its elements."""
        with self.servers.redis.client() as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1000))

    def _disk_bytes(self) -> int:
        """Size of the tables and indexes of the side's database, as the server gives it."""
        if "mysql" in self.side.servers:
            folder = self.servers.mysql.data / self.database
            return sum(path.stat().st_size for path in folder.glob("*.ibd"))
        if "postgres" in self.side.servers:
            ((size,),) = self.sql(
                "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public'"
            )
            return int(size)
        return 0

    def _drain_rate(self, total: int) -> float:
        if self.side.rows is None:
            _, first, last = marks.read(self.folder)
            return total / (last - first)
        ((n, seconds),) = self.sql(self.side.rows.drained)
        if int(n) != total:
            raise RuntimeError(f"{self.side.name}: {n} of {total} tasks succeeded")
        return total / float(seconds)

    def _latency(self, figures: Figures, before: int) -> int:
        time.sleep(1.0)  # idle
        n = WARM_UP + self.samples
        (line,) = self.drive(("latency", n))
        self.wait(before + n)
        stamps = marks.read_stamps(self.folder)
        took = [(stamps[i] - sent) / 1e6 for i, sent in enumerate(line["sent"])][WARM_UP:]
        figures["p50_ms"], figures["p99_ms"] = percentile(took, 50), percentile(took, 99)
        return n

    def _cpu(self, figures: Figures, workers: list[psutil.Process], phase: str, way: str, n: int, before: int) -> int:
        pids = [getattr(self.servers, name).pid for name in self.side.servers]
        counted = [*workers, *(psutil.Process(pid) for pid in pids)]
        start = cpu.seconds(counted)
        # The producer's imports and first connections are left out, as they are in the rates.
        at = f"@{way}" if way else ""
        *warm, line = self.drive((f"single{at}", WARM[1]), (f"{phase}{at}", n))
        sent: int = sum(one["n"] for one in warm) + n
        self.wait(before + sent)
        time.sleep(0.3)  # acknowledgements that are still under way
        spent = cpu.seconds(counted) - start
        figures[f"cpu_{phase}"] = 1000 * (spent / sent + line["cpu_s"] / n)
        return sent


def fastest(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By phase, the line of the way that sent most a second."""
    best: dict[str, dict[str, Any]] = {}
    for line in lines:
        phase = line["phase"]
        if phase not in best or line["n"] / line["s"] > best[phase]["n"] / best[phase]["s"]:
            best[phase] = line
    return best
