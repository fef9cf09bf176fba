"""A circuit breaker: with Redis away a producer waits for one time-out, not for one per call."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tandemq import metrics
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
#: A failure that took longer was a time-out.
SLOW_S = 0.02


class Breaker:
    """Closed: calls pass. After a failure open: calls fail at once, for 1 s, then 2 s, ... 10 s.

    When the pause is over one call passes as a probe, the others still fail at once; its success closes the breaker.
    Where the last failure was a time-out (a frozen Redis) no call pays for the next one: ``probe`` is called in a
    thread of its own, and all calls fail at once until it has come back well.
    """

    def __init__(self, clock: Clock, probe: Callable[[], None] | None = None) -> None:
        self._clock, self._probe = clock, probe
        self._was_slow = False
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._open_until = 0.0
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether the last call that reached Redis failed."""
        return self._pause_s > 0

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Run the body, or raise BrokerUnavailable at once while the breaker is open."""
        round_ = self._admit()
        started = self._clock.monotonic()
        try:
            yield
        except BrokerUnavailable as error:
            self._fail(round_, str(error), self._clock.monotonic() - started)
            raise
        if self._pause_s:
            self._close()

    def trip(self, reason: str) -> None:
        """Open it because a call that it does not guard has failed; nothing happens when it is open already."""
        self._fail(0.0, reason, float("inf"))

    def _admit(self) -> float:
        if not self._pause_s:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            if not self._pause_s or now >= self._open_until:
                self._open_until = now + max(self._pause_s, FIRST_PAUSE_S)
                if not (self._pause_s and self._was_slow and self._probe):
                    return self._pause_s
                with suppress(RuntimeError):  # no thread to be had: next time
                    # Not threading.Thread: see background.py.
                    _thread.start_new_thread(self._try, (self._probe, self._pause_s))
            raise BrokerUnavailable(f"{self._reason} (not tried again for {self._open_until - now:.1f} s)")

    def _try(self, probe: Callable[[], None], round_: float) -> None:
        started = self._clock.monotonic()
        try:
            probe()
        except BrokerUnavailable as error:
            self._fail(round_, str(error), self._clock.monotonic() - started)
        else:
            self._close()

    def _fail(self, round_: float, reason: str, took_s: float) -> None:
        with self._lock:
            if self._pause_s != round_:
                return  # many calls were on their way when it failed: they count as one failure
            if not self._pause_s:
                metrics.breaker(True)
            self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._open_until = self._clock.monotonic() + self._pause_s
            self._reason, self._was_slow = reason, took_s > SLOW_S

    def _close(self) -> None:
        with self._lock:
            if self._pause_s:
                metrics.breaker(False)
            self._pause_s = 0.0
