"""Claimed tasks on their way to a slot, and how many more may be fetched.

There is no prefetch knob: what may wait here follows from how long the tasks of this process take (about 100 ms of
work), and what waits behind slow tasks for longer than that is handed back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from tandemq.core.clock import Clock
from tandemq.core.task import Lease
from tandemq.worker.arena import MAX_TASKS, Batch

#: How much work may wait for the slots of this process, and how long anything may wait.
AHEAD_S = 0.1
MAX_AHEAD = 400
#: Weight of the newest run in the mean run time.
_WEIGHT = 0.1
#: A run takes at least this long in the arithmetic below: taking and finishing a task is never free.
_FLOOR_S = 0.0002


class Held(NamedTuple):
    """A lease in this process's hands, and its batch."""

    lease: Lease
    batch: Batch


@dataclass(frozen=True, slots=True)
class Room:
    """How many ids to pop now, and how many of them would find a free slot."""

    pop: int
    free: int


class Inbox:
    """``slots`` threads take, one fetcher puts. The path of a task takes no lock of Python's.

    Taking and ending cost a queue operation in C and plain stores; what the fetcher reads of them (who is busy, the
    mean run time) may be a moment old. That is enough: it decides only how much is fetched, never what may run.
    """

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots, self._clock = slots, clock
        self._waiting: SimpleQueue[Held | None] = SimpleQueue()
        self._busy = [False] * slots
        self._taken = [0.0] * slots
        self._runs = [0] * slots
        self._mean_s: float | None = None
        self._last_done = self._last_taken = float("-inf")
        self._freed = threading.Event()
        self._closed = False

    def put(self, held: Sequence[Held]) -> None:
        """Add in order."""
        for one in held:
            self._waiting.put(one)

    def take(self, slot: int) -> Held | None:
        """The next task for a slot, waiting for one; None when closed. The slot counts as busy until ``done``."""
        held = self._waiting.get()
        now = self._clock.monotonic()
        self._last_taken = self._taken[slot] = now  # before busy: else a moment looks like "busy for long"
        self._busy[slot] = held is not None
        return held

    def done(self, slot: int) -> None:
        """The slot is free again."""
        self._busy[slot] = False
        self._runs[slot] += 1
        self._last_done = now = self._clock.monotonic()
        run_s = now - self._taken[slot]
        mean = self._mean_s
        self._mean_s = run_s if mean is None else mean + _WEIGHT * (run_s - mean)
        if not self._freed.is_set():
            self._freed.set()

    def room(self) -> Room:
        """How much may be fetched now."""
        waiting, free = self._waiting.qsize(), self._slots - self.busy
        ahead = self._ahead(free)
        if ahead and waiting > (free + ahead) // 2:
            return Room(0, 0)  # refill by halves: one claim for many tasks
        return Room(max(0, min(free + ahead - waiting, MAX_TASKS)), max(0, free - waiting))

    def _ahead(self, free: int) -> int:
        mean_s = self._mean_s
        if mean_s is None or mean_s >= AHEAD_S:
            return 0
        # Every slot is busy and none has come free lately: the mean speaks of other tasks than those that run now.
        # This also bounds handing back: whatever is fetched ahead was paid for by a task that ended.
        if free <= 0 and self._clock.monotonic() - self._last_done > AHEAD_S:
            return 0
        return min(MAX_AHEAD, int(AHEAD_S / max(mean_s, _FLOOR_S)) * self._slots)

    def wait_for_room(self, timeout_s: float, *, free: bool = False) -> None:
        """Wait until something may be fetched (``free``: for a free slot, not ahead) or the time is up."""
        self._freed.clear()
        room = self.room()  # after the clear: a slot that comes free from here on sets it again
        if (room.free if free else room.pop) <= 0 and not self._closed:
            self._freed.wait(timeout_s)

    def stale(self, after_s: float = AHEAD_S) -> list[Held]:
        """Remove and return everything, if no slot is free for it and none has taken anything for too long."""
        if self._waiting.empty() or self.busy < self._slots:
            return []
        return self.drain() if self._clock.monotonic() - self._last_taken >= after_s else []

    def drain(self) -> list[Held]:
        """Remove and return everything that waits."""
        held: list[Held] = []
        with contextlib.suppress(Empty):
            while True:
                one = self._waiting.get_nowait()
                if one is None:  # a slot's end
                    self._waiting.put(None)
                    return held
                held.append(one)
        return held

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting.qsize()

    @property
    def busy(self) -> int:
        """How many slots run a task."""
        return sum(self._busy)

    @property
    def runs(self) -> int:
        """How many tasks have run."""
        return sum(self._runs)

    def close(self) -> None:
        """Let every slot thread end when nothing waits any more."""
        self._closed = True
        for _ in range(self._slots):
            self._waiting.put(None)
        self._freed.set()
