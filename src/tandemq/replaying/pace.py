"""How many tasks a second a replay may move: steady, never in bursts."""

from __future__ import annotations

from tandemq.core.clock import Clock

#: Tasks of one tick are moved in one transaction: at 2,000 a second 200 of them, below 10 a second one by one.
TICK_S = 0.1
#: How much of what a stall held up is made good: more would be a burst. 5 % of 5 s.
CATCH_UP_S = 0.25
#: Tasks of one transaction: 20 to 40 ms. Without a rate this is the only limit.
CHUNK = 200
_ROUNDING_S = 1e-6


class Pace:
    """Grants turns on a grid of 1/rate seconds, beginning empty, so that a run that goes on begins without a burst.

    Over any 5 s it grants at most 7 % more than the rate (one tick and one catching up). ``rate`` None: no limit.
    """

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._at_once = CHUNK if rate is None else max(1, min(CHUNK, round(rate * TICK_S)))
        self._next = clock.monotonic()

    def granted(self) -> int:
        """How many may be moved now; 0: see ``pause_s``."""
        if self._rate is None:
            return CHUNK
        now = self._clock.monotonic()
        self._next = max(self._next, now - CATCH_UP_S)
        due = int((now - self._next) * self._rate + _ROUNDING_S) + 1
        return 0 if now + _ROUNDING_S < self._full_at else min(due, CHUNK)

    @property
    def pause_s(self) -> float:
        """Seconds until the next ones are granted."""
        return 0.0 if self._rate is None else max(0.0, self._full_at - self._clock.monotonic())

    def took(self, count: int) -> None:
        """So many have been moved."""
        if self._rate is not None:
            self._next += count / self._rate

    @property
    def _full_at(self) -> float:
        """When the last turn of a tick is due."""
        return self._next + (self._at_once - 1) / (self._rate or 1.0)
