"""Resident memory of every process of a worker while it runs a million tasks."""

from __future__ import annotations

import threading
from collections import defaultdict

import psutil

from benchmarks import marks
from benchmarks.measure import Round
from benchmarks.scale.trend import Trend, trend

SAMPLE_S = 0.25


class Sampler:
    """A thread that notes (tasks done, bytes) of each process until it is stopped."""

    def __init__(self, one: Round, roots: list[psutil.Process], servers: dict[str, psutil.Process]) -> None:
        self._one, self._roots, self._servers = one, roots, servers
        self.points: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._names: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more samples."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            done = marks.read(self._one.folder)[0]
            for name, process in self._processes():
                try:
                    self.points[name].append((done, process.memory_info().rss))
                except psutil.NoSuchProcess:
                    continue

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        found = list(self._servers.items())
        for root in self._roots:
            found.append(("supervisor", root))
            for child in root.children(recursive=True):
                name = self._names.setdefault(child.pid, f"child {len(self._names) + 1}")
                found.append((name, child))
        return found


def memory(one: Round, tasks: int) -> list[Trend]:
    """Queue so many tasks, drain them, and fit a line to the memory of each process."""
    one.drive(("bulk", tasks))
    servers = {
        "mariadbd": psutil.Process(one.servers.mysql.pid),
        "redis-server": psutil.Process(one.servers.redis.pid),
    }
    with one.worker() as roots:
        sampler = Sampler(one, roots, servers)
        try:
            one.wait(tasks)
        finally:
            sampler.stop()
    found = [trend(name, points, tasks) for name, points in sampler.points.items()]
    return [one_trend for one_trend in found if one_trend is not None]
