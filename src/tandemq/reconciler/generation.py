"""Finds out by one string per queue whether Redis was flushed or set back, and rebuilds such queues from MySQL.

MySQL holds an install id and an epoch. Redis holds ``install:epoch:ready`` or ``install:epoch:building:<cursor>`` per
queue, in the slot of the queue's lists, so that a script can test it and touch the lists at once. Only reconcilers
write it, always by compare-and-set on the value they read in this pass, after they had read the epoch.

**The epoch moves at every pass**, in MySQL first and then in each key. So a key that lags by more than one has been
set back (a snapshot, a failed-over replica), and a missing one was flushed. A flush between reading the key and
writing it makes the write fail, because the value differs: a hole is never declared healed.

**One epoch for all queues.** With one queue the rule is: a key at E or E-1 is healthy; move E to E+1 in MySQL, then
the key to E+1. E-1 is allowed because a reconciler may die between the two. With several queues every pass reads E,
then *all* keys; moves E once; then moves *every* healthy key to E+1 in the same pass, also those of queues that are
being rebuilt. Each key sees exactly the sequence of the one-queue rule, for the compare-and-set in MySQL admits one
reconciler per step of E, and whoever loses it begins and moves nothing in this pass (it still helps with chunks, under
the epoch that it read). Two traps lie here:

- A key that is not moved in a pass in which E was moved falls behind and would be taken for a snapshot two passes
  later. A rebuild outlasts passes. So a building key's epoch moves too: with each chunk it is written as
  ``E+1:building:<next cursor>``, one compare-and-set for both, and every building queue gets at least one chunk per
  pass. (A write that moved only the epoch would make two helpers fail each other's chunks for ever; this way each
  write that wins is progress.)
- The first pass of the next reconciler must find what a killed one left: keys at E (moved), E-1 (not moved yet). Both
  healthy. Killed like that in two passes running leaves E-2: an unneeded rebuild, harmless.

**A rebuild** goes through the pending rows in (priority, run_at, id) order behind the cursor in the key; a cursor is
never by id alone, so rows committed late are not skipped for good: their producers push them, or the window finds
them. Several reconcilers help each other; whoever is killed is replaced at the cursor. Rows that become ready
meanwhile are pushed by their producers as ever.

**A missing key** means a flush, or a queue that no reconciler has met yet, whose lists may be long and whole: emptying
them would hold up every worker while all of it is read and pushed again. So the key is first written as
``building:?``, then the lists are compared with the rows, and it becomes ready only by a compare-and-set on that value:
a flush in between takes it away and the set fails, and whoever finds a ``?`` that a killed reconciler left rebuilds.
Lists count as whole if at least a quarter of the oldest due rows of each level are in its tail (what workers have
popped and not claimed yet is missing from it) and the sorted set is as long as the rows that lie ahead. A flush takes
all of them, and what is pushed after it is younger. What this look cannot see, the window finds at its turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandemq.broker.protocol import Broker
from tandemq.core.crash import crash_point
from tandemq.core.task import Level
from tandemq.reconciler.isolation import isolated
from tandemq.reconciler.report import Tally
from tandemq.reconciler.window import ROWS, TAIL
from tandemq.store.protocol import Store

CHUNK = 1000
CHUNKS_PER_PASS = 50
REBUILDS_RUNNING_ALARM = 3
MAX_EPOCH_DIGITS = 15
BUILDING, READY = "building", "ready"
#: In place of a cursor: the lists are being compared with the rows.
CHECKING = "?"
#: Rows that lie ahead are counted up to here, per level.
LATER_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """A generation key, parsed. ``cursor`` None: ready; else where the rebuild goes on ("" at its start)."""

    install: str
    epoch: int
    cursor: str | None = None

    def __str__(self) -> str:
        state = READY if self.cursor is None else f"{BUILDING}:{self.cursor}"
        return f"{self.install}:{self.epoch}:{state}"

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """None for a missing key and for anything that we cannot have written."""
        install, _, rest = (text or "").partition(":")
        epoch, _, state = rest.partition(":")
        word, colon, cursor = state.partition(":")
        if not (epoch.isascii() and epoch.isdecimal() and len(epoch) <= MAX_EPOCH_DIGITS):
            return None
        if word == READY and not colon:
            return cls(install, int(epoch))
        return cls(install, int(epoch), cursor) if word == BUILDING and colon else None


class Generation:
    """One turn per pass over all queues. Bounded: ``CHUNKS_PER_PASS`` chunks of 1,000 rows, or one per queue."""

    def __init__(self, store: Store, broker: Broker) -> None:
        self._store, self._broker = store, broker
        self._running: dict[str, int] = {}

    def turn(self, install: str, queues: Iterable[str], tally: Tally) -> None:
        """Compare every queue's key with the epoch, move both on, rebuild what is missing, old or newer than MySQL."""
        names = sorted(set(queues))
        if not names:
            return
        epoch = self._store.epoch()
        held = self._read(names, tally)
        marks = {queue: self._own(text, install) for queue, text in held.items()}
        healthy = {
            q: m for q, m in marks.items() if m is not None and epoch - 1 <= m.epoch <= epoch and m.cursor != CHECKING
        }
        new = max([epoch, *(m.epoch for m in marks.values() if m is not None)]) + 1
        building = [q for q, m in healthy.items() if m.cursor is not None]
        if self._store.advance_epoch(epoch, new):
            epoch = new
            self._move_ready(install, epoch, held, healthy, tally)
            begun = self._begin(install, epoch, held, [q for q in held if q not in healthy], tally)
            building += begun
            self._count_running(begun, tally)
        for queue in building:
            with isolated(self._broker, tally, f"rebuild of queue {queue!r}"):
                self._help(queue, install, epoch, max(1, CHUNKS_PER_PASS // len(building)), tally)

    def _read(self, names: list[str], tally: Tally) -> dict[str, str | None]:
        held = {}
        for queue in names:
            with isolated(self._broker, tally, f"generation of queue {queue!r}"):
                held[queue] = self._broker.generation(queue)
        return held

    @staticmethod
    def _own(text: str | None, install: str) -> Mark | None:
        mark = Mark.parse(text)
        return mark if mark is not None and mark.install == install else None

    def _move_ready(
        self, install: str, epoch: int, held: dict[str, str | None], healthy: dict[str, Mark], tally: Tally
    ) -> None:
        for queue, mark in healthy.items():
            if mark.cursor is None:
                with isolated(self._broker, tally, f"generation of queue {queue!r}"):
                    self._broker.advance_generation(queue, old=held[queue], new=str(Mark(install, epoch)))

    def _begin(
        self, install: str, epoch: int, held: dict[str, str | None], stale: list[str], tally: Tally
    ) -> list[str]:
        start, begun = str(Mark(install, epoch, "")), []
        for queue in stale:
            with isolated(self._broker, tally, f"rebuild of queue {queue!r}"):
                old = held[queue]
                if old is None:
                    old = str(Mark(install, epoch, CHECKING))
                    if not self._broker.advance_generation(queue, old=None, new=old):
                        continue
                    ready = str(Mark(install, epoch))
                    if self._is_whole(queue) and self._broker.advance_generation(queue, old=old, new=ready):
                        continue
                if self._broker.begin_rebuild(queue, old=old, new=start):
                    begun.append(queue)
                    crash_point("rebuild.after_begin")
        tally.add(rebuilt=len(begun))
        return begun

    def _is_whole(self, queue: str) -> bool:
        return all(self._is_level_whole(level) for level in self._store.open_levels() if level.queue == queue)

    def _is_level_whole(self, level: Level) -> bool:
        # Redis first: what is popped and claimed between the two reads is then in the tail and no row.
        tail, later = self._broker.window(level, TAIL).ids, self._broker.delayed(level)
        rows = self._store.oldest_due(level, limit=ROWS, older_than_s=0.0)
        missing = sum(1 for task_id in rows if task_id not in tail)
        return missing <= len(rows) * 3 // 4 and later >= self._store.count_later(level, limit=LATER_COUNTED)

    def _count_running(self, begun: list[str], tally: Tally) -> None:
        self._running = {queue: self._running.get(queue, 0) + 1 for queue in begun}
        for queue, times in self._running.items():
            if times >= REBUILDS_RUNNING_ALARM:
                tally.alarm(
                    f"queue {queue!r} was rebuilt in {times} passes running: Redis is flushed again and again, or two"
                    " databases with one install id (a clone) share this namespace"
                )

    def _help(self, queue: str, install: str, epoch: int, chunks: int, tally: Tally) -> None:
        for _ in range(chunks):
            # Read anew each time: another helper may have moved the cursor, a flush may have taken the key away.
            text = self._broker.generation(queue)
            mark = self._own(text, install)
            if text is None or mark is None or not epoch - 1 <= mark.epoch <= epoch:
                return  # the next pass judges it
            if mark.cursor is None or mark.cursor == CHECKING:
                return
            rows, cursor = self._store.pending_after(queue, mark.cursor, CHUNK)
            if self._broker.rebuild_chunk(
                queue,
                old=text,
                new=str(Mark(install, epoch, cursor or None)),
                ready=[(row.level.priority, row.id) for row in rows if row.due],
                delayed=[(row.level.priority, row.id, row.due_ms) for row in rows if not row.due],
                # What is in the lists by now was pushed after they were emptied: it is younger than the oldest rows.
                first=not mark.cursor,
            ):
                tally.add(refilled=len(rows))
                crash_point("rebuild.after_chunk")
                if not cursor:
                    return
        tally.add(building=1)
