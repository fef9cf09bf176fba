"""``--fair``: of what a worker takes while higher work keeps coming, one of five is of lower levels.

Strict order (the default) starves: while there is always a higher id a lower one is never taken. Here every id that was
taken from a level earns a quarter of an id for the levels below it. What has been earned is taken by a pop of its own,
for which the keys change places: of the levels below, the one that had nothing for longest comes first. So it is the
same one BRPOP, empty levels cost nothing, and nobody polls.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemq.core.task import Level

#: One of so many tasks is of a lower level, as long as there is one.
ONE_OF = 5
#: What may be earned and not be taken: about half of the biggest pop.
MAX_EARNED = 200.0


class FairTurns:
    """One for each fetcher. Call ``order`` before a pop, and ``took`` after one that took something."""

    def __init__(self) -> None:
        self._earned = 0.0
        self._by_rights: Level | None = None
        self._lower: frozenset[Level] = frozenset()
        self._turns: dict[Level, int] = {}
        self._count = 0

    def order(self, levels: Sequence[Level], limit: int) -> tuple[Sequence[Level], int]:
        """These levels (highest first) in the order for the next pop, and how many ids it may take."""
        self._lower = frozenset()
        if self._earned < 1 or self._by_rights not in levels:
            return levels, limit
        below = levels.index(self._by_rights) + 1
        if below == len(levels):
            return levels, limit
        lower = sorted(levels[below:], key=lambda level: self._turns.get(level, 0))  # of equals the higher one first
        self._lower = frozenset(lower)
        return [*lower, *levels[:below]], min(limit, int(self._earned))

    def strictly(self) -> None:
        """What is taken until the next ``order`` is taken in strict order."""
        self._lower = frozenset()

    def took(self, level: Level, n: int) -> None:
        """So many ids came from this level."""
        self._count += 1
        self._turns[level] = self._count
        if level in self._lower:
            self._earned -= n
        elif self._lower:  # a turn of the lower ones, and none of them had anything
            self._by_rights, self._earned = level, 0.0
        else:
            self._by_rights, self._earned = level, min(MAX_EARNED, self._earned + n / (ONE_OF - 1))
