"""Carries out one replay run, step by step: select, try a sample, wait for its ends, move the rest at the given pace.

Every step is one or two short transactions and is decided by compare-and-set in the store, so any number of runners
on one run, or a runner that dies at any line, move each task once. What a step needs to know is in the rows; a runner
only remembers what it can do without.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tandemq.core.clock import Clock
from tandemq.core.codec import decode
from tandemq.core.crash import crash_point
from tandemq.core.errors import StoreRefused
from tandemq.registry import Registry
from tandemq.replaying.editing import Editing
from tandemq.replaying.locked import Locked
from tandemq.replaying.orders import Orders
from tandemq.replaying.pace import CHUNK, Pace
from tandemq.store.answers import Filter, Moved
from tandemq.store.protocol import Store
from tandemq.store.runs import Candidate, Chunk, Hold, ReplayRun, Revival, RunState

_log = logging.getLogger("tandemq.replaying")
#: How long a run belongs to a runner that gives no sign of life. The reconciler goes on with it after that.
HOLD_S = 10.0
RENEW_S = HOLD_S / 4
#: Rows of one page of the selection.
PAGE = 500
#: How often the fuse looks, and how many of the tasks moved last it looks at.
WATCH_S, WATCHED = 1.0, 1000
#: Ends before which the fuse does not judge a run without a canary.
MIN_ENDS = 10
#: How often somebody looks whether a run that another one carries out has ended.
FOLLOW_S = 0.5

#: Puts moved ids into Redis, after the commit; what it cannot push is the reconciler's.
Push = Callable[[Sequence[Moved]], object]


class Runner:
    """``step`` until ``over``. ``run`` is the row as it was seen last."""

    def __init__(
        self,
        store: Store,
        push: Push,
        clock: Clock,
        run: ReplayRun,
        holder: str,
        *,
        registry: Registry | None = None,
        max_payload_bytes: int,
        take_over: bool = False,
    ) -> None:
        self._store, self._push, self._clock = store, push, clock
        self.run = run
        self.over = run.state not in _STEPS
        self._hold = Hold(run.id, holder, HOLD_S)
        self._held_until = -math.inf
        self._take_over, self._is_onlooker = take_over, False
        self._orders = Orders.from_text(run.orders)
        self._editing = Editing(self._orders.edit, registry, max_payload_bytes)
        self._pace = Pace(self._orders.rate, clock)
        self._locked = Locked(clock)
        self._selection: tuple[Filter | None, list[int]] | None = None
        self._sampling: tuple[Random, int, int, int] | None = None
        self._watch_at = clock.monotonic() + WATCH_S

    def step(self) -> float:
        """One bounded turn; the seconds until the next one is wanted. Raises StoreUnavailable."""
        if self._clock.monotonic() >= self._held_until:
            held = self._store.hold_run(self._hold, take_over=self._take_over)
            self._take_over = False
            if held is None:
                return self._look_on()
            self.run, self._is_onlooker = held, False
            self._renewed()
        return min(_STEPS[self.run.state](self), RENEW_S)

    @property
    def is_onlooker(self) -> bool:
        """Somebody else carries the run out."""
        return self._is_onlooker

    def release(self) -> None:
        """Leave the run to whoever comes next, at once."""
        if not self.over:
            self._store.release_run(self._hold)
            self._held_until = -math.inf

    def _renewed(self) -> None:
        self._held_until = self._clock.monotonic() + RENEW_S

    def _look_on(self) -> float:
        """Somebody else carries it out, or nobody should."""
        self._held_until = -math.inf
        found = self._store.run(self.run.id)
        self.over = found is None or found.state not in _STEPS
        self.run = found or self.run
        self._is_onlooker = self.run.is_held and self.run.holder != self._hold.holder
        return 0.0 if self.over else FOLLOW_S

    def _turn(self, target: RunState, **how: Any) -> float:
        self._store.turn_run(self.run.id, (self.run.state,), target, holder=self._hold.holder, **how)
        self._held_until = -math.inf  # whoever turned it, look at it anew
        return 0.0

    # selecting

    def _select(self) -> float:
        run, limit = self.run, self._orders.limit
        room = PAGE if limit is None else min(PAGE, limit - run.selected)
        if not run.select_below or room <= 0:
            return self._sample()
        where, wanted = self._what()
        if where is None:
            below = [i for i in wanted if i < run.select_below]
            ids, following = below[:room], below[room - 1] if len(below) > room else 0
        else:
            first = run.selected == 0 and run.select_below >= 2**63 - 1
            found, after = self._store.find_ids(where, limit=room, after=None if first else run.select_below)
            ids, following = list(found), after or 0
        chosen = self._store.select_items(
            self._hold, ids, below=run.select_below, following=following, any_state=where is None
        )
        if chosen is None:
            return self._look_on()
        self.run = chosen
        self._renewed()
        return 0.0

    def _what(self) -> tuple[Filter | None, list[int]]:
        """A filter, or ids, the highest first."""
        if self._selection is None:
            given = decode(self.run.selection)
            ids = sorted(given["ids"], reverse=True) if "ids" in given else []
            self._selection = (None if "ids" in given else Filter.from_json(given["where"]), ids)
        return self._selection

    def _sample(self) -> float:
        """Mark the canary, a page a step: each selection of so many is equally likely (Knuth's algorithm S).

        The seed is the run's id and how often its fuse blew: whoever begins again after a death marks the same ones.
        """
        run = self.run
        if self._sampling is None:
            size = self._orders.sample_size(run.left)
            if not size:
                return self._turn(RunState.RUNNING)
            seed = f"tandemq replay {run.id} {run.watch_from.isoformat()}"
            self._sampling = (Random(seed), size, run.left, 0)  # noqa: S311 - a sample, not a secret
        rng, wanted, left, after = self._sampling
        page = self._store.waiting_items(run.id, after=after, limit=PAGE)
        chosen = []
        for task_id in page:
            if rng.random() * left < wanted:
                chosen.append(task_id)
                wanted -= 1
            left -= 1
        if not self._store.mark_canary(self._hold, chosen):
            self._sampling = None
            return self._look_on()
        self._renewed()
        if wanted > 0 and page:
            self._sampling = (rng, wanted, left, page[-1])
            return 0.0
        self._sampling = None
        return self._turn(RunState.CANARY)

    @property
    def edits(self) -> bool:
        """Whether it changes payloads."""
        return self._orders.edit is not None

    # moving

    def _try_canary(self) -> float:
        return self._move(canary=True)

    def _go_on(self) -> float:
        if self._orders.bound is not None and self._clock.monotonic() >= self._watch_at:
            self._watch_at = self._clock.monotonic() + WATCH_S
            ends = self._store.ends_of(self.run, canary=False, limit=WATCHED)
            if ends.ended >= MIN_ENDS and ends.died > self._orders.bound * ends.ended:
                return self._blow(ends.died, ends.ended, RunState.RUNNING)
        return self._move(canary=False)

    def _move(self, *, canary: bool) -> float:
        granted = self._pace.granted()
        if not granted:
            return self._pace.pause_s
        found = self._store.candidates(
            self.run,
            canary=canary,
            limit=min(granted, CHUNK),
            but=self._locked.resting(),
            payloads=self._editing.is_wanted,
        )
        if not found:
            if self._locked.pause_s is not None:
                return self._locked.pause_s
            if canary:
                return self._turn(RunState.WAITING, wait_s=self._orders.canary_wait_s)
            return self._turn(RunState.DONE)
        return self._move_chunk(found)

    def _move_chunk(self, found: Sequence[Candidate]) -> float:
        payloads, failed = self._editing.of(found)
        ids = [one.id for one in found]
        try:
            chunk = self._send(ids, payloads, failed)
        except StoreRefused as refused:
            if len(found) > 1:  # one bad row must not stop the others: find it by halves
                half = len(found) // 2
                return min(self._move_chunk(found[:half]), self._move_chunk(found[half:]))
            # Notes are read over HTTP too, where the words of a driver have no business.
            _log.warning("replay run %d: task %d: %s", self.run.id, ids[0], refused)
            chunk = self._send(ids, {}, {ids[0]: "the database refused it (see the log)"})
        if chunk is None:
            return self._look_on()
        self._renewed()
        run, n = self.run, len(chunk.moved)
        skipped, lost = run.skipped + chunk.skipped, run.failed + chunk.failed
        self.run = replace(run, moved=run.moved + n, skipped=skipped, failed=lost)
        self._pace.took(n)
        self._locked.note(ids, chunk.locked)
        return 0.0

    def _send(
        self, ids: Sequence[int], payloads: Mapping[int, tuple[str, str]], failed: Mapping[int, str]
    ) -> Chunk | None:
        revival = Revival(queue=self._orders.queue, priority=self._orders.priority, payloads=payloads)
        give_up = self._locked.tried_enough()
        chunk = self._store.move_items(self._hold, ids, revival=revival, failed=failed, give_up=give_up)
        if chunk is not None:
            crash_point("replay.after_commit")
            self._push(chunk.moved)
            crash_point("replay.after_push")
        return chunk

    # the fuse

    def _wait(self) -> float:
        bound = self._orders.bound if self._orders.bound is not None else 1.0
        ends = self._store.ends_of(self.run, canary=True, limit=2**31)
        if ends.died > bound * ends.n:
            # A new sample is drawn if it is told to go on: what was tried says nothing about a mended cause.
            return self._blow(ends.died, ends.n, RunState.SELECTING)
        if ends.n == 0 and self.run.left > 0:
            return self._turn(
                RunState.SELECTING
            )  # none of the sample could be moved: it says nothing, another is drawn
        if ends.ended >= ends.n:
            return self._turn(RunState.RUNNING)
        if self.run.wait_is_over:
            note = (
                f"the ends of the canary did not come within {self._orders.canary_wait_s:g} s: {ends.ended} of"
                f" {ends.n} have ended, {ends.died} of them are dead again"
            )
            return self._turn(RunState.PAUSED, note=note)
        self._held_until = min(self._held_until, self._clock.monotonic() + WATCH_S)  # wait_is_over is the database's
        return WATCH_S

    def _blow(self, died: int, of: int, resume: RunState) -> float:
        share, bound = died / of, self._orders.bound or 0.0
        note = f"{died} of {of} replayed tasks died again ({share:.0%}), more than {bound:.0%}: the cause is not mended"
        return self._turn(RunState.PAUSED, note=note, resume=resume, watch_anew=True)


_STEPS: dict[RunState, Callable[[Runner], float]] = {
    RunState.SELECTING: Runner._select,
    RunState.CANARY: Runner._try_canary,
    RunState.WAITING: Runner._wait,
    RunState.RUNNING: Runner._go_on,
}
