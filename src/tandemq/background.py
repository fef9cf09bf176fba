"""A daemon thread for work that callers hand over, started when it is needed and anew when it died."""

from __future__ import annotations

import _thread
import queue
from collections.abc import Callable
from contextlib import suppress

from tandemq.core.clock import Clock

#: How long a new thread may take to its first line before another is started.
START_AGAIN_S = 1.0


class Background:
    """Runs ``run`` in a thread of its own; ``ensure`` may be called from any thread and never waits.

    Not threading.Thread, whose start() waits until the new thread runs, and for ever if it dies before. It can: until
    it runs, CPython files it under the ident of its maker (3.11, _PyThreadState_New), so a TaskTimeout that is meant
    for the maker, a handler that enqueues, may hit the newborn instead (seen in tests: every caller hung).
    """

    def __init__(self, run: Callable[[], None], clock: Clock) -> None:
        self._run, self._clock = run, clock
        self._again_at = float("-inf")
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        #: The thread has reached its first line and not its last.
        self.is_running = False

    def ensure(self) -> None:
        """Start it unless it runs, or was started a moment ago. Two at once are possible: ``run`` must bear that."""
        now = self._clock.monotonic()
        if self.is_running or now < self._again_at:
            return
        self._again_at = now + START_AGAIN_S
        _thread.start_new_thread(self._live, ())

    def join(self, timeout_s: float) -> None:
        """Wait for its end, which somebody has asked for."""
        if self.is_running:
            with suppress(queue.Empty):
                self._ended.get(timeout=timeout_s)

    def _live(self) -> None:
        self.is_running = True
        try:
            self._run()
        finally:
            self.is_running, self._again_at = False, float("-inf")
            self._ended.put(None)
