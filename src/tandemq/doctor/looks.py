"""Two looks at one level, a moment apart, and what both of them show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tandemq.broker.facts import Sample
from tandemq.broker.keys import parse_id
from tandemq.core.lifecycle import FINAL, Status
from tandemq.core.task import Level
from tandemq.store.facts import Entry

#: A delayed id this long past its time has nobody who moves it.
LATE_S = 10.0
#: Stands in for a row that is not there.
_GONE = Entry(Status.CANCELLED, datetime.min.replace(tzinfo=UTC), False)


@dataclass(slots=True)
class Look:
    """One look at one level."""

    ready: Sample
    delayed: Sample
    due: Sequence[int]
    rows: Mapping[int, Entry]

    @property
    def listed(self) -> frozenset[int]:
        """The ids in the sampled end of the list."""
        return frozenset(i for i in map(parse_id, self.ready.entries) if i is not None)

    def lost(self) -> set[int]:
        """Due and pending, yet not among the next to be popped."""
        listed = self.listed
        return {i for i in self.due if i not in listed and self.rows.get(i, _GONE).status is Status.PENDING}

    def strays(self, sample: Sample) -> set[bytes]:
        """No id, or one whose row is not there or has ended."""
        return {e for e in sample.entries if self._of(e) is None or self._of(e) in FINAL}

    def copies(self) -> int:
        """Ids that are there more than once, or whose row runs."""
        counted = Counter(self.ready.entries)
        return sum(n - 1 for n in counted.values()) + sum(self._of(e) is Status.RUNNING for e in counted)

    def _of(self, entry: bytes) -> Status | None:
        task_id = parse_id(entry)
        row = None if task_id is None else self.rows.get(task_id)
        return None if row is None else row.status


@dataclass(slots=True)
class Agreed:
    """What both looks at a level agree on."""

    level: Level
    length: int = 0
    lost: list[int] = field(default_factory=list)
    oldest: datetime | None = None
    ready: list[bytes] = field(default_factory=list)
    delayed: list[bytes] = field(default_factory=list)
    copies: int = 0
    late: int = 0
    latest_s: float = 0.0


def agreed(level: Level, first: Look, second: Look, now_ms: int) -> Agreed:
    """What both looks show; the oldest lost id first."""
    lost = first.lost() & second.lost()
    late = [now_ms - due for due in second.delayed.due_ms if due < now_ms - LATE_S * 1000]
    found = Agreed(level, second.ready.length)
    found.lost = [i for i in second.due if i in lost]
    found.oldest = second.rows[found.lost[0]].run_at if found.lost else None
    found.ready = sorted(first.strays(first.ready) & second.strays(second.ready))
    found.delayed = sorted(first.strays(first.delayed) & second.strays(second.delayed))
    found.copies = min(first.copies(), second.copies())
    found.late, found.latest_s = len(late), max(late, default=0) / 1000
    return found
