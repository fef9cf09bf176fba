"""How slow this machine is just now: a bound in seconds shall judge the product, not the disk or the neighbours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from heapq import nlargest

EVERY_S = 0.1
#: So often may a task on its way wait for the disk or a processor.
WAITS = 10


class Weather:
    """Measures how late it is woken, and how long ``commit`` takes, ten times a second while it is open.

    A test gives what it bounds ``slack_s`` on top: the longest ``WAITS`` waits that were seen, together. That is next
    to nothing on a calm machine, and nothing when the scenarios run at full size; where a commit takes 0.2 s it is 2 s.
    """

    def __init__(self, commit: Callable[[], object] | None = None) -> None:
        self._commit = commit
        self._waits: list[float] = []
        self._due = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="weather", daemon=True)

    @property
    def slack_s(self) -> float:
        """What a bound may be exceeded by, as far as this machine has been seen."""
        if os.environ.get("TANDEMQ_SCENARIOS") == "full":
            return 0.0
        not_over_yet = max(0.0, time.monotonic() - self._due)
        waits = nlargest(WAITS, [*self._waits, not_over_yet])
        return sum(waits) + waits[0] * (WAITS - len(waits))

    def _watch(self) -> None:
        over = False
        while not over:
            self._due = time.monotonic() + EVERY_S
            over = self._over.wait(EVERY_S)
            if self._commit is not None:
                self._commit()
            self._waits.append(max(0.0, time.monotonic() - self._due))

    def __enter__(self) -> Weather:
        self._due = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._due = float("inf")
