"""Whether the loops of a process turn: for its page, its probes and its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tandemq.core.clock import Clock
from tandemq.monitoring.gauges import Reading
from tandemq.monitoring.installed import Installed
from tandemq.service import Loop

#: So long after a turn was due a loop is late (it does no work now), or hangs (it never will).
LATE_S, HANGS_S = 15.0, 60.0


class Ticks:
    """``Health`` and ``Source`` of a process made of loops: each with the seconds between two of its turns.

    A loop whose turns fail is late, for the server that it needs may be away; only one that turns no more hangs.
    """

    def __init__(self, loops: Mapping[Loop, float], clock: Clock, installed: Installed | None = None) -> None:
        self._loops, self._clock, self._installed = loops, clock, installed
        self._since = clock.monotonic()

    def __call__(self) -> Iterator[Reading]:
        """The ages of the last good turns; of a loop that has had none, since when it is there."""
        now = self._clock.monotonic()
        for loop in self._loops:
            age_s = now - (self._since if loop.last_ok_at is None else loop.last_ok_at)
            yield Reading("tandemq_loop_age_seconds", age_s, (loop.name,))

    def not_live(self) -> list[str]:
        """Loops that hang or whose thread is gone."""
        wrong = [f"the thread of the {loop.name} is gone" for loop in self._loops if not loop.alive]
        return wrong + [
            f"the {loop.name} hangs: its last turn ended {age_s:.0f} s ago"
            for loop, age_s in self._ages(good=False)
            if loop.alive and age_s > HANGS_S
        ]

    def not_ready(self) -> list[str]:
        """Loops that hang or have not had a good turn lately, and servers that do not answer."""
        wrong = self.not_live() or self.late()
        if self._installed is not None:
            wrong += [f"{name} does not answer" for name, is_up in self._installed.is_up().items() if not is_up]
        return wrong

    def late(self) -> list[str]:
        """Loops that have not had a good turn lately: they do nothing now, whyever."""
        late = [(loop, age_s) for loop, age_s in self._ages(good=True) if age_s > LATE_S]
        return [f"the {loop.name} has had no good turn for {age_s:.0f} s" for loop, age_s in late]

    def _ages(self, *, good: bool) -> Iterator[tuple[Loop, float]]:
        now = self._clock.monotonic()
        for loop, every_s in self._loops.items():
            last = loop.last_ok_at if good else loop.last_turn_at
            yield loop, now - (self._since if last is None else last) - 3 * every_s
