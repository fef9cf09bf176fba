"""One round of one side: fill, measure the broker's memory, drain, idle latency, CPU; on servers that stay up."""

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

from benchmarks import marks
from benchmarks.figures import percentile
from benchmarks.registry import OURS, ROOT, Side
from tests.servers import MySQLServer, RedisServer

#: Comes first and is not counted: connections are opened and modules imported.
WARM = ("single", 50)
WARM_UP = 20
PATIENCE_S = 120.0


class Round:
    """A fresh database, an empty Redis and a fresh folder for one side."""

    def __init__(self, side: Side, mysql: MySQLServer, redis: RedisServer, samples: int) -> None:
        self.side, self.mysql, self.redis, self.samples = side, mysql, redis, samples
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.started: list[subprocess.Popen[bytes]] = []
        self.redis.flush()
        self.database = mysql.create_database()
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")},
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "BENCH_DIR": str(self.folder),
            "BENCH_REDIS_URL": redis.url(),
            "BENCH_MYSQL_PORT": str(mysql.port),
            "BENCH_DATABASE": self.database,
            "TANDEMQ_DATABASE_URL": mysql.url(self.database),
            "TANDEMQ_REDIS_URL": redis.url(),
        }

    def run(self) -> dict[str, float | None]:
        """All figures of this round."""
        try:
            if self.side.uses_sql:
                self._call([str(OURS / "tandemq"), "migrate"])
            figures: dict[str, float | None] = {}
            lines = self._drive(WARM, *self.side.before)[1:]
            total = WARM[1] + sum(line["n"] for line in lines)
            figures.update({line["phase"]: line["n"] / line["s"] for line in lines})
            figures["bytes"] = self._broker_bytes() / total
            with self._worker() as workers:
                self._wait(total)
                figures["drain"] = self._drain_rate(total)
                total += self._latency(figures, total)
                for phase in self.side.cpu:
                    total += self._cpu(figures, workers, phase, total)
            return figures
        finally:
            self.mysql.drop_database(self.database)
            shutil.rmtree(self.folder, ignore_errors=True)

    # Processes

    def _call(self, command: list[str]) -> str:
        done = subprocess.run(command, env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    def _drive(self, *phases: tuple[str, int]) -> list[dict[str, Any]]:
        python = str(self.side.bin / "python")
        command = [python, "-m", "benchmarks.drive", self.side.module, *(f"{name}:{n}" for name, n in phases)]
        return [json.loads(line) for line in self._call(command).splitlines()]

    @contextlib.contextmanager
    def _worker(self) -> Iterator[list[psutil.Process]]:
        log = (self.folder / "worker.log").open("wb")
        started = [
            subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            for command in self.side.commands()
        ]
        try:
            self.started = started
            yield [psutil.Process(one.pid) for one in started]
        except Exception:
            print((self.folder / "worker.log").read_text(errors="replace")[-3000:])
            raise
        finally:
            for one in started:
                one.send_signal(signal.SIGTERM)
            for one in started:
                try:
                    one.wait(15)
                except subprocess.TimeoutExpired:
                    os.killpg(one.pid, signal.SIGKILL)  # its own session: only what was started here
                    one.wait()
            log.close()

    def _wait(self, total: int) -> None:
        """Until all have run and, where there are rows, are committed as finished."""
        deadline = time.monotonic() + PATIENCE_S
        while marks.read(self.folder)[0] < total - self._stamped() or self._open_rows():
            if time.monotonic() > deadline or any(one.poll() is not None for one in self.started):
                raise RuntimeError(
                    f"{self.side.name}: {marks.read(self.folder)[0]} of {total} ran; too slow, or a worker died"
                )
            time.sleep(0.02)

    def _stamped(self) -> int:
        return len(marks.read_stamps(self.folder))

    def _open_rows(self) -> bool:
        return self.side.uses_sql and bool(self._sql("SELECT 1 FROM tandemq_tasks WHERE ended = 0 LIMIT 1"))

    def _sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.mysql.sql(statement, database=self.database)

    # Figures

    def _broker_bytes(self) -> int:
        """MEMORY USAGE of every key in Redis, with all its elements."""
        with self.redis.client() as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1000))

    def _drain_rate(self, total: int) -> float:
        if not self.side.uses_sql:
            _, first, last = marks.read(self.folder)
            return total / (last - first)
        ((n, seconds),) = self._sql(
            "SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(started_at), MAX(completed_at)) / 1e6"
            " FROM tandemq_tasks WHERE status = 'succeeded'"
        )
        if n != total:
            raise RuntimeError(f"{self.side.name}: {n} of {total} tasks succeeded")
        return total / float(seconds)

    def _latency(self, figures: dict[str, float | None], before: int) -> int:
        time.sleep(1.0)  # idle
        n = WARM_UP + self.samples
        (line,) = self._drive(("latency", n))
        self._wait(before + n)
        stamps = marks.read_stamps(self.folder)
        took = [(stamps[i] - sent) / 1e6 for i, sent in enumerate(line["sent"])][WARM_UP:]
        figures["p50_ms"], figures["p99_ms"] = percentile(took, 50), percentile(took, 99)
        return n

    def _cpu(
        self, figures: dict[str, float | None], workers: list[psutil.Process], phase: tuple[str, int], before: int
    ) -> int:
        name, n = phase
        servers = [psutil.Process(self.mysql.pid), psutil.Process(self.redis.pid)]
        start = _cpu_s(workers) + _cpu_s(servers)
        # The producer's imports and first connections are left out, as they are in the rates.
        _, line = self._drive(WARM, (name, n))
        sent = WARM[1] + n
        self._wait(before + sent)
        time.sleep(0.3)  # acknowledgements that are still under way
        spent = _cpu_s(workers) + _cpu_s(servers) - start
        figures[f"cpu_{name}"] = 1000 * (spent / sent + line["cpu_s"] / n)
        return sent


def _cpu_s(roots: list[psutil.Process]) -> float:
    """CPU seconds so far of these processes and everything below them."""
    total = 0.0
    for root in roots:
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total
