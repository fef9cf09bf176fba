"""Claimed tasks on their way to a slot, and how many more may be fetched.

There is no prefetch knob: what may wait here follows from how long the tasks of this process take (about 100 ms of
work), and what waits behind slow tasks for longer than that is handed back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Held:
    """A lease in this process's hands, its batch, and when it was claimed (monotonic)."""

    lease: Lease
    batch: Batch
    since: float


@dataclass(frozen=True, slots=True)
class Room:
    """How many ids to pop now, and how many of them would find a free slot."""

    pop: int
    free: int


class Inbox:
    """Thread-safe; ``slots`` threads take, one fetcher puts."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self._slots, self._clock = slots, clock
        self._waiting: deque[Held] = deque()
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._freed = threading.Condition(self._lock)
        self._busy = 0
        self._mean_s: float | None = None
        self._last_done = float("-inf")
        self._closed = False
        self.runs = 0

    def put(self, held: Sequence[Held]) -> None:
        """Add in order."""
        with self._lock:
            self._waiting.extend(held)
            self._filled.notify(len(held))

    def take(self) -> Held | None:
        """The next task for a slot, waiting for one; None when closed. The slot counts as busy until ``done``."""
        with self._lock:
            while not self._waiting:
                if self._closed:
                    return None
                self._filled.wait()
            self._busy += 1
            return self._waiting.popleft()

    def done(self, run_s: float) -> None:
        """The slot is free again; ``run_s`` is how long its task took."""
        with self._lock:
            self._busy -= 1
            self.runs += 1
            self._last_done = self._clock.monotonic()
            mean = self._mean_s
            self._mean_s = run_s if mean is None else mean + _WEIGHT * (run_s - mean)
            room = self._room()
            if room.free > 0 or room.pop > 0:
                self._freed.notify()

    def room(self) -> Room:
        """How much may be fetched now."""
        with self._lock:
            return self._room()

    def _room(self) -> Room:
        waiting, free = len(self._waiting), self._slots - self._busy
        ahead = self._ahead()
        if ahead and waiting > (free + ahead) // 2:
            return Room(0, 0)  # refill by halves: one claim for many tasks
        return Room(max(0, min(free + ahead - waiting, MAX_TASKS)), max(0, free - waiting))

    def _ahead(self) -> int:
        if self._mean_s is None or self._mean_s >= AHEAD_S:
            return 0
        # Every slot is busy and none has come free lately: the mean speaks of other tasks than those that run now.
        # This also bounds handing back: whatever is fetched ahead was paid for by a task that ended.
        if self._busy >= self._slots and self._clock.monotonic() - self._last_done > AHEAD_S:
            return 0
        return min(MAX_AHEAD, int(AHEAD_S / max(self._mean_s, _FLOOR_S)) * self._slots)

    def wait_for_room(self, timeout_s: float, *, free: bool = False) -> None:
        """Wait until something may be fetched (``free``: for a free slot, not ahead) or the time is up."""
        with self._lock:
            room = self._room()
            if (room.free if free else room.pop) <= 0 and not self._closed:
                self._freed.wait(timeout_s)

    def stale(self, after_s: float = AHEAD_S) -> list[Held]:
        """Remove and return everything, if the oldest has waited too long and no slot is free for it."""
        with self._lock:
            if not self._waiting or self._busy < self._slots:
                return []
            if self._clock.monotonic() - self._waiting[0].since < after_s:
                return []
            return self._drain()

    def drain(self) -> list[Held]:
        """Remove and return everything that waits."""
        with self._lock:
            return self._drain()

    def _drain(self) -> list[Held]:
        held = list(self._waiting)
        self._waiting.clear()
        return held

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        """How many slots run a task."""
        return self._busy

    def close(self) -> None:
        """Let every slot thread end when nothing waits any more."""
        with self._lock:
            self._closed = True
            self._filled.notify_all()
            self._freed.notify_all()
