"""The nemesis: lanes of faults that run side by side until all have done their part.

workers    every crash point of a worker by kill9, and after each the rest of the worker too: group, supervisor, child
           (F1, F3); SIGTERM under load (F22); SIGSTOP beyond the lease, then SIGCONT (F16); a clock an hour off (F19)
healers    three movers and reconcilers that all lead (F18), killed at crash points (F3), killed, stopped (F2, F17)
producers  killed at their crash points and at random (F2, F3)
operators  cancel, replay, prune, purge, killed at their crash points (F3)
servers    ``faults.Faults`` (F4 to F14, F17)
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from random import Random

from tandemq.core.crash import POINTS
from tests.chaos.faults import Faults
from tests.chaos.lane import Board, Fired, Lane
from tests.chaos.site import Process, Site, wait
from tests.chaos.workers import WorkerLane

HEALERS = ("promote.", "expire.", "repush.", "rebuild.")
PRODUCERS = ("enqueue.",)
OPERATORS = ("cancel.", "replay.", "prune.", "purge.")
TOGETHER = "F18 movers and reconcilers without a leader"
#: What no table of ``Faults`` names and every run does.
ALWAYS = (
    TOGETHER,
    "F2 kill -9 of tandemq mover",
    "F2 kill -9 of tandemq reconcile",
    "F16 SIGSTOP beyond the lease",
    "F17 SIGSTOP of a mover and reconciler",
    "F19 a worker's clock is off",
    "F22 SIGTERM under load",
)


def points_of(prefixes: Iterable[str]) -> list[str]:
    """The crash points whose names begin so."""
    return sorted(point for point in POINTS if point.startswith(tuple(prefixes)))


class HealerLane(Lane):
    """Three processes that heal and ask nobody whether they lead."""

    def __init__(self, board: Board, name: str, rng: Random) -> None:
        super().__init__(board, name, rng)
        points = points_of(HEALERS)
        self._left = deque(rng.sample(points, len(points)))
        self._faults = Faults(board.site, rng, long=board.long)

    def turn(self) -> None:
        point = self._left.popleft() if self._left else ""
        passes = self.rng.randrange(1, 3) if point.startswith("promote") else 1
        crash = f"{point}:{passes}:kill9" if point else ""
        healers = [self.site.start("healer", module="tests.chaos.healers", crash=crash) for _ in range(3)]
        alive = sum(healer.ready() for healer in healers)
        self.fire(TOGETHER, lambda: "three at once" if alive == 3 else "")
        if point.startswith("rebuild."):
            self.fire("F4 FLUSHALL for a rebuild", self._faults.flushed)
        elif point.startswith("repush."):
            self.fire("F4 the delayed ids are gone", self._faults.delayed_lost)
        elif point.startswith("expire."):
            self._lose_a_lease()
        if not point:
            self._at_random(healers)
            self.done = True
        elif not self.reached(healers, point) and self.again(point):
            self._left.append(point)
        for healer in healers:
            if healer.alive:
                self.fire("F2 kill -9 of a healer", healer.kill, kill=True)

    def _lose_a_lease(self) -> None:
        victim = self.site.worker("victim", "--no-mover", "--no-reconcile")
        victim.ready()
        self.is_at_work(victim)
        self.fire("F1 kill -9 of a worker's group", victim.kill, kill=True)

    def _at_random(self, healers: list[Process]) -> None:
        services = {verb: self.site.start(verb, verb) for verb in ("mover", "reconcile")}
        for verb, service in services.items():
            wait(lambda service=service: service.says(b" runs") or not service.alive, 30)
            self.spell()
            if service.alive:
                self.fire(f"F2 kill -9 of tandemq {verb}", service.kill, kill=True)
        victim = self.rng.choice(healers)
        if self.fire("F17 SIGSTOP of a mover and reconciler", lambda: victim.signal(signal.SIGSTOP)):
            self.pause(4.0, 5.0)
            victim.signal(signal.SIGCONT)
            self.pause(0.5, 1.0)


class ProducerLane(Lane):
    """One producer at a time, replaced when it dies."""

    def __init__(self, board: Board, name: str, rng: Random, points: list[str]) -> None:
        super().__init__(board, name, rng)
        self._left = deque(points)

    def turn(self) -> None:
        point = self._left.popleft() if self._left else ""
        self.done = self.done or not point
        crash = f"{point}:{self.rng.randrange(1, 30)}:kill9" if point else ""
        producer = self.site.producer(self.name, str(self.rng.random()), crash=crash)
        if point:
            if not self.reached([producer], point, 60.0):
                self._left.append(point)
                producer.kill()
            return
        self.spell()
        self.spell()
        if not self.board.over.is_set():  # the last ones end by themselves
            self.fire("F2 kill -9 of a producer", producer.kill, kill=True)


class OperatorLane(Lane):
    """One short process after the other, each killed where it acts."""

    def __init__(self, board: Board, name: str, rng: Random) -> None:
        super().__init__(board, name, rng)
        self._left = deque(points_of(OPERATORS))

    def turn(self) -> None:
        point = self._left.popleft() if self._left else self.rng.choice(points_of(OPERATORS))
        verb, ref = point.split(".")[0], f"operator-{self.rng.getrandbits(40):x}"
        operator = self.site.start(verb, verb, ref, module="tests.chaos.operators", crash=f"{point}:1:kill9")
        wait(lambda: not operator.alive, 30)
        if not self.reached([operator], point, 0.0) and not self.done:
            self._left.append(point)
        operator.kill()
        self.done = self.done or not self._left
        if self.done:
            self.spell()


class ServerLane(Lane):
    """The servers and the network, one fault at a time."""

    def __init__(self, board: Board, name: str, rng: Random) -> None:
        super().__init__(board, name, rng)
        self._table = Faults(board.site, rng, long=board.long).table()
        self._left = deque(rng.sample(sorted(self._table), len(self._table)))

    def turn(self) -> None:
        self.work(self.rng.randrange(20, 200), 5.0)
        if self.done:
            self.spell()
        fault = self._left.popleft() if self._left else self.rng.choice(sorted(self._table))
        if not self.fire(fault, self._table[fault], kill="kill -9" in fault) and not self.done and self.again(fault):
            self._left.append(fault)
        self.done = self.done or not self._left


class Nemesis:
    """``start`` the lanes; ``busy`` while one has still to do what every run does; ``stop`` ends them all."""

    def __init__(self, site: Site, seed: str, *, spell: int, long: bool = False) -> None:
        self._board, self._seed = Board(site, long, spell), seed
        board, dice = self._board, self._dice
        workers = sorted(POINTS - set(points_of((*HEALERS, *PRODUCERS, *OPERATORS))))
        points = deque(dice("points").sample(workers, len(workers)))
        enqueue = points_of(PRODUCERS)
        self._lanes: list[Lane] = [
            ServerLane(board, "servers", dice("servers")),
            HealerLane(board, "healers", dice("healers")),
            OperatorLane(board, "operators", dice("operators")),
            *(ProducerLane(board, f"producer{i}", dice(f"producer{i}"), enqueue[i::2]) for i in range(2)),
            # Killed at random only: between two starts of the others somebody works. Its mover and reconciler are the
            # healers' lane.
            WorkerLane(board, "worker0", dice("worker0"), deque(), "--no-mover", "--no-reconcile"),
            *(WorkerLane(board, f"worker{i}", dice(f"worker{i}"), points) for i in (1, 2)),
        ]

    def _dice(self, lane: str) -> Random:
        return Random(f"{self._seed}:{lane}")

    def start(self) -> None:
        """All lanes."""
        for lane in self._lanes:
            lane.start()

    def stop(self) -> None:
        """No new fault; waits for those under way to end."""
        self._board.over.set()
        for lane in self._lanes:
            lane.join(120)

    @property
    def fired(self) -> list[Fired]:
        """All faults so far."""
        with self._board.lock:
            return list(self._board.fired)

    @property
    def busy(self) -> list[str]:
        """What has still to be done: lanes, and faults that every run does."""
        lanes = [lane.name for lane in self._lanes if not lane.done and not lane.broken]
        return lanes or [name for name in ALWAYS if name in self.idle()]

    @property
    def broken(self) -> list[str]:
        """Lanes that ended by an error of their own."""
        return [f"{lane.name}: {lane.broken}" for lane in self._lanes if lane.broken]

    @property
    def kills(self) -> int:
        """Processes killed so far, servers included."""
        return sum(one.kill for one in self.fired)

    def idle(self) -> list[str]:
        """What did nothing so far: faults that never came about, points that nobody died at while tasks were open."""
        names = {*Faults(self._board.site, Random()).table(), *(f"F3 {point}" for point in POINTS), *ALWAYS}
        return sorted(names - {one.fault for one in self.fired if one.evidence and one.open_rows})

    def save(self, path: Path) -> None:
        """One line a fault."""
        path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.fired))
