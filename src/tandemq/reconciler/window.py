"""The window: finds due rows whose id is nowhere in Redis and puts the id back.

Per level: first the tail of the list (V entries), then the W oldest rows that have been pending and due for 2 s. In
this order, because an id popped and claimed between the two reads is then in the first and no longer in the second;
the other way round a busy queue gets thousands of useless copies. What is missing in two looks in a row and was not
pushed by this process in the last 30 s, or has been seen in the list since then, is pushed to the end that is popped
next, the oldest first of all.

Why this finds every lost id: nothing older than it enters the level but late commits and handed-back rows, and every
pop of the level claims or drops one; so it becomes one of the W oldest, is not in the tail, and is pushed. It holds
only if the window always starts at the oldest row, the status is filtered before the limit, the memory ends, and
every level is looked at, however long its list. Why it does not flood: at most W copies per level and look, at most
one per id and 30 s (or each time that it was seen to arrive); a copy costs the worker one look-up.

Two looks count as such only 0.2 s apart or more: an id that was popped a moment ago and is not claimed yet looks
exactly like a lost one. A level of which more than half a window is missing was wiped: it is looked at again after
those 0.2 s, not a pass later, and once that has confirmed it, every 0.03 s with looks that far apart, as long as
workers empty the list faster than one window per pass would fill it. (50,000 lost ids are back in 6 s where one
window per pass takes 99; no useless copies.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.task import Level
from tandemq.store.protocol import Store

TAIL = 4000
ROWS = 1000
DUE_FOR_S = 2.0
LOOKS_APART_S = 0.2
CHASE_S = 0.03
#: New ids per chasing look, below which the ordinary passes keep up.
CHASE_ENDS = 15
REMEMBER_S = 30.0
MAX_REMEMBERED = 200_000
#: A look this long ago is not "the look before".
STALE_LOOK_S = 30.0


@dataclass(slots=True)
class _Seen:
    """What this process remembers of one level: ids missing in the last look, ids pushed lately (oldest first)."""

    missing_since: dict[int, float] = field(default_factory=dict)
    pushed_at: OrderedDict[int, float] = field(default_factory=OrderedDict)
    looked_at: float = 0.0
    wiped: bool = False

    def forget_old(self, now: float) -> None:
        if now - self.looked_at > STALE_LOOK_S:
            self.missing_since, self.wiped = {}, False
        while self.pushed_at:
            oldest = next(iter(self.pushed_at.values()))
            if now - oldest < REMEMBER_S and len(self.pushed_at) <= MAX_REMEMBERED:
                break
            self.pushed_at.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one level. ``chase_s``: when to look again if most of the window was missing, else None."""

    rows: int
    missing: int
    repushed: int
    chase_s: float | None = None


class Window:
    """Looks at levels one by one and remembers, within bounds, what it saw."""

    def __init__(self, store: Store, broker: Broker, clock: Clock) -> None:
        self._store, self._broker, self._clock = store, broker, clock
        self._seen: dict[Level, _Seen] = {}

    def forget(self, keep: Collection[Level] = ()) -> None:
        """Drop what is remembered of all levels but these (levels come and go; a new leader has not looked before)."""
        self._seen = {level: self._seen[level] for level in keep if level in self._seen}

    def look(self, level: Level) -> Look:
        """Compare one level and push what was missing twice. Dying before the push costs a pass; after it, nothing."""
        tail = self._broker.window(level, TAIL).ids
        rows = self._store.oldest_due(level, limit=ROWS, older_than_s=DUE_FOR_S)
        now = self._clock.monotonic()
        seen = self._seen.setdefault(level, _Seen())
        seen.forget_old(now)
        missing = [task_id for task_id in rows if task_id not in tail]
        since = {task_id: seen.missing_since.get(task_id, now) for task_id in missing}
        apart_s = 0.9 * CHASE_S if seen.wiped else LOOKS_APART_S
        if not seen.wiped:
            # It has arrived: missing from here on it is lost anew. (Chasing looks are too close together for that.)
            for task_id in tail.intersection(seen.pushed_at):
                del seen.pushed_at[task_id]
        unpushed = [task_id for task_id in missing if task_id not in seen.pushed_at]
        lost = [task_id for task_id in unpushed if now - since[task_id] >= apart_s]
        seen.missing_since, seen.looked_at = since, now
        if lost:
            crash_point("repush.before")
            self._broker.push_next(level, lost)
            crash_point("repush.after")
            metrics.repushed(level.queue, len(lost))
            seen.pushed_at.update(dict.fromkeys(lost, now))
        seen.wiped = len(unpushed) >= CHASE_ENDS if seen.wiped else len(lost) > ROWS // 2
        chase_s = CHASE_S if seen.wiped else LOOKS_APART_S if len(unpushed) > ROWS // 2 else None
        return Look(len(rows), len(missing), len(lost), chase_s)
