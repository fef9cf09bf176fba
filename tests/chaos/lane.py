"""A lane of the nemesis: a thread with seeded dice of its own that does one kind of harm, and writes it down."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pymysql
import redis

from tests.chaos.ledger import now
from tests.chaos.site import Process, Site, wait

#: A start, some passes and a claim on a busy machine; then a point is tried again in another process, so many times.
REACH_S, TRIES = 20.0, 6
#: Of the handlers' file: what a task adds to it, and what is read to see what happens just now.
BYTES_A_TASK, TAIL_BYTES = 300, 150_000


@dataclass(frozen=True, slots=True)
class Fired:
    """One fault: when, its evidence ("" = it did not come about), how many tasks were open, whether it was a kill."""

    fault: str
    began: float
    ended: float
    evidence: str
    open_rows: int | None
    kill: bool


@dataclass(slots=True)
class Board:
    """What the lanes share. ``over`` is set when no new fault may begin.

    ``spell``: how many tasks are to run between two kills of a lane that has done its part.
    """

    site: Site
    long: bool
    spell: int
    over: threading.Event = field(default_factory=threading.Event)
    fired: list[Fired] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, one: Fired) -> None:
        """Write it down."""
        with self.lock:
            self.fired.append(one)


class Lane:
    """``run`` in a thread until ``board.over``; ``done`` once everything has been done that every run does."""

    def __init__(self, board: Board, name: str, rng: Random) -> None:
        self.board, self.site, self.name, self.rng = board, board.site, name, rng
        self.done, self.broken = False, ""
        self.tries: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def turn(self) -> None:
        """Do harm once."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the turn under way."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.broken = self.broken or "does not end"

    def _guarded(self) -> None:
        try:
            while not self.board.over.is_set():
                self.turn()
        except Exception as broken:
            self.broken = f"{type(broken).__name__}: {broken}"
            raise

    def fire(self, fault: str, act: Callable[[], object], *, kill: bool = False) -> str:
        """Do it and write it down; its evidence: its own words, or whether it answered something true."""
        open_rows, began = self.site.open_rows(), now()
        try:
            evidence = act()
        except (redis.RedisError, pymysql.MySQLError, psutil.Error, OSError):
            evidence = ""  # another lane has that server down just now: this fault did not come about
        said = evidence if isinstance(evidence, str) else "done" if evidence else ""
        self.board.note(Fired(fault, began, now(), said, open_rows, kill and bool(said)))
        return said

    def reached(self, processes: Iterable[Process], point: str, timeout_s: float = REACH_S) -> bool:
        """Whether one of them (or a child of it) dies at the point in time; one kill for each that does."""
        some, began, open_rows = list(processes), now(), self.site.open_rows()
        wait(lambda: any(point in p.hits() for p in some) or self.board.over.is_set(), timeout_s)
        if len(some) > 1:
            self.pause(0.2, 0.3)
        hits = sum(point in process.hits() for process in some)
        for _ in range(max(1, hits)):
            said = "kill9" if hits else ""
            self.board.note(Fired(f"F3 {point}", began, now(), said, self.site.open_rows() or open_rows, bool(hits)))
        return hits > 0

    def again(self, what: str) -> bool:
        """Whether it is worth another try."""
        self.tries[what] += 1
        return self.tries[what] < TRIES

    def pause(self, low_s: float, high_s: float) -> None:
        """Some time, or less when all is over."""
        self.board.over.wait(self.rng.uniform(low_s, high_s))

    def work(self, tasks: int, most_s: float = 30.0) -> None:
        """Let so many handlers run, however slow the machine is."""
        until = self.written + BYTES_A_TASK * tasks
        wait(lambda: self.board.over.is_set() or self.written >= until, most_s, every_s=0.05)

    def spell(self) -> None:
        """A stretch of work in peace, as far as this lane is concerned."""
        self.work(int(self.board.spell * self.rng.uniform(0.5, 1.5)), 60.0)

    def is_at_work(self, worker: Process) -> bool:
        """Wait until a handler has run in it."""

        def has_run() -> bool:
            pids = {child.pid for child in worker.children()}
            return any(event["pid"] in pids for event in self.tail())

        return wait(lambda: has_run() or self.board.over.is_set(), REACH_S, every_s=0.1) and has_run()

    @property
    def handlers(self) -> Path:
        """The handlers' file of the ledger."""
        return self.site.ledger_folder / "handlers.jsonl"

    @property
    def written(self) -> int:
        """Its size: where the next event will be."""
        return self.handlers.stat().st_size if self.handlers.exists() else 0

    def tail(self) -> list[dict[str, Any]]:
        """Its last events."""
        return [json.loads(line) for line in self._lines(max(0, self.written - TAIL_BYTES))[1:]]

    def events(self, since: int, refs: Iterable[str]) -> list[dict[str, Any]]:
        """Those of these tasks from there on."""
        wanted = [f'"ref":"{ref}"'.encode() for ref in refs]
        return [json.loads(line) for line in self._lines(since) if any(ref in line for ref in wanted)]

    def _lines(self, since: int) -> list[bytes]:
        if not self.handlers.exists():
            return []
        with self.handlers.open("rb") as lines:
            lines.seek(since)
            return lines.read().split(b"\n")[:-1]
