"""The lanes that kill workers: at every crash point, at random, stopped beyond their leases, told to go under load."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.lane import Board, Lane
from tests.chaos.ledger import now
from tests.chaos.site import Process, wait

#: Reached only by a worker that is told to stop.
SIGNALLED = "shutdown."


class WorkerLane(Lane):
    """One worker at a time. ``points`` are shared by all lanes of workers."""

    def __init__(self, board: Board, name: str, rng: Random, points: deque[str], *options: str) -> None:
        super().__init__(board, name, rng)
        self._points, self._options = points, options

    def turn(self) -> None:
        with self.board.lock:
            point = self._points.popleft() if self._points else None
        if point is None:
            self.done = True
            self._at_random()
        else:
            self._at(point)

    def _at(self, point: str) -> None:
        passes = 1 if point.startswith((SIGNALLED, "renew.")) else self.rng.randrange(1, 6)
        worker = self.site.worker(self.name, *self._options, crash=f"{point}:{passes}:kill9")
        if point.startswith(SIGNALLED):
            worker.ready()
            self.is_at_work(worker)
            worker.signal(signal.SIGTERM, group=False)
        if not self.reached([worker], point) and self.again(point):
            with self.board.lock:
                self._points.append(point)
        self.work(self.rng.randrange(60))
        self._kill(worker)

    def _at_random(self) -> None:
        rng, skew = self.rng, {}
        if rng.random() < 0.3:
            skew = {"CHAOS_SKEW_S": str(rng.choice([-3600, 600, 3600])), "PYTHONPATH": _with_skew()}
        worker = self.site.worker(self.name, *self._options, **skew)
        if worker.ready() and skew:
            self.fire("F19 a worker's clock is off", lambda: f"{skew['CHAOS_SKEW_S']} s")
        self.spell()
        match rng.choice(["kill", "kill", "kill", "term", "zombie"]):
            case "kill":
                self._kill(worker)
            case "term":
                self._term(worker)
            case _:
                self.fire("F16 SIGSTOP beyond the lease", lambda: self._zombie(worker))
        worker.kill()

    def _term(self, worker: Process) -> None:
        if not self.is_at_work(worker):
            return
        self.fire("F22 SIGTERM under load", lambda: worker.signal(signal.SIGTERM, group=False))
        if not wait(lambda: not worker.alive, 60) or worker.popen.returncode != 0:
            self.site.ledger.surprise(f"{worker.name}: exit code {worker.popen.poll()} after SIGTERM")

    def _kill(self, worker: Process) -> None:
        def children() -> bool:
            found = worker.children()
            for process in found:
                process.kill()
            return bool(found)

        how = self.rng.choice(["group", "group", "supervisor", "child"])
        act = {
            "group": worker.kill,
            "supervisor": lambda: worker.signal(signal.SIGKILL, group=False),
            "child": children,
        }[how]
        if worker.alive:
            self.fire(f"F1 kill -9 of a worker's {how}", act, kill=True)
        if how != "group":
            self.work(self.rng.randrange(100), 5.0)
        worker.kill()

    def _zombie(self, worker: Process) -> str:
        """Stopped while a slow handler is between its beginning and its effect; wakes up when it has been overtaken."""
        pids = {child.pid for child in worker.children()}
        found: set[str] = set()

        def has_slow_one() -> bool:
            found.update(inside(self.tail(), pids))
            return bool(found) or self.board.over.is_set()

        def effects(mine: bool) -> list[str]:
            events = [event for event in self.events(since, found) if event["e"] == "effect"]
            return [event["r"] for event in events if (event["pid"] in pids) is mine]

        if not wait(has_slow_one, 15.0, every_s=0.05) or not found:
            return ""
        since = self.written
        worker.signal(signal.SIGSTOP)
        wait(lambda: effects(mine=False) or self.board.over.is_set(), 30.0, every_s=0.1)
        for pid in pids:  # the handler first, before its supervisor hears that the lease is gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        worker.signal(signal.SIGCONT)
        wait(lambda: len(effects(mine=True)) == len(found), 5.0, every_s=0.1)
        late = effects(mine=True).count("refused")
        return f"{late} late effects refused" if late else ""


def inside(events: Iterable[dict[str, Any]], pids: set[int]) -> set[str]:
    """Which slow handlers of these processes are between their beginning and their effect."""
    begun: dict[str, float] = {}
    for event in events:
        if event["pid"] in pids:
            if event.get("slow"):
                begun[event["ref"]] = event["t"]
            else:
                begun.pop(event["ref"], None)
    return {ref for ref, at in begun.items() if now() - at > 0.05}


def _with_skew() -> str:
    """PYTHONPATH with a sitecustomize in front that moves the wall clock of the product."""
    return os.pathsep.join([str(Path(__file__).parent / "skew"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
