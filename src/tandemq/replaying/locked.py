"""Tasks whose rows somebody else held: they are tried again a few times before they are left out."""

from __future__ import annotations

from collections.abc import Collection

from tandemq.core.clock import Clock

#: So often is a locked row tried, so far apart; the rest of the run goes on meanwhile.
TRIES, REST_S = 4, 0.5


class Locked:
    """Remembers tries by task id; what is forgotten with the process is tried a few times more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tries: dict[int, tuple[int, float]] = {}

    def resting(self) -> list[int]:
        """Those that are not to be tried yet."""
        now = self._clock.monotonic()
        return [task_id for task_id, (_, at) in self._tries.items() if at > now]

    @property
    def pause_s(self) -> float | None:
        """Seconds until the next one may be tried; None if there is none."""
        if not self._tries:
            return None
        return max(0.0, min(at for _, at in self._tries.values()) - self._clock.monotonic())

    def tried_enough(self) -> set[int]:
        """Those for which the next try is the last one."""
        return {task_id for task_id, (tries, _) in self._tries.items() if tries >= TRIES - 1}

    def note(self, tried: Collection[int], locked: Collection[int]) -> None:
        """These were tried, and these of them were locked."""
        at = self._clock.monotonic() + REST_S
        for task_id in tried:
            tries, _ = self._tries.pop(task_id, (0, 0.0))
            if task_id in locked:
                self._tries[task_id] = (tries + 1, at)
