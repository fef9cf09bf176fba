"""Carries out runs that nobody does: detached ones, and those whose process has died. Called by the reconciler."""

from __future__ import annotations

from collections.abc import Callable

from tandemq.core.clock import Clock
from tandemq.core.errors import StoreRefused, Unavailable
from tandemq.replaying.runner import Push, Runner
from tandemq.store.protocol import Store
from tandemq.store.runs import ACTIVE, RunState

#: Work of one turn, and how many runs are carried out side by side; the others wait for their turn.
TURN_S, AT_ONCE = 0.25, 20
#: How often somebody looks for runs that nobody carries out.
LOOK_S = 2.0
#: Said of a run that edits payloads and has lost its process.
EDITS = (
    "its process is gone, and only one that knows the handlers may edit: continue it where the application is loaded"
)


class Keeper:
    """``turn`` is bounded in time. It knows no handlers, so it leaves runs that edit payloads to ``continue``."""

    def __init__(self, store: Store, push: Push, clock: Clock, holder: str, max_payload_bytes: int) -> None:
        self._store, self._push, self._clock, self._holder = store, push, clock, holder
        self._max_bytes = max_payload_bytes
        self._runners: dict[int, Runner] = {}
        self._due: dict[int, float] = {}
        self._look_at = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether there are runs to carry out, and so a reason to come back before the next pass."""
        return bool(self._runners)

    def turn(self, alarm: Callable[[str], object]) -> float:
        """Some steps of each run; the seconds until the next turn is wanted. Raises StoreUnavailable.

        What one run raises is an ``alarm`` and pauses that run; it stops neither the others nor the healing.
        """
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._adopt(alarm)
            self._look_at = now + LOOK_S
        end = now + TURN_S
        while (ready := self._ready()) and self._clock.monotonic() < end:
            for run_id in ready:
                self._step(run_id, alarm)
        waits = [self._look_at, *self._due.values()]
        return max(0.0, min(waits) - self._clock.monotonic())

    def _adopt(self, alarm: Callable[[str], object]) -> None:
        for run in self._store.runs(limit=AT_ONCE, states=ACTIVE):
            if run.id in self._runners or run.is_held:
                continue
            try:
                runner = Runner(
                    self._store, self._push, self._clock, run, self._holder, max_payload_bytes=self._max_bytes
                )
            except Exception as error:  # orders of another release, or another program's
                self._give_up(run.id, error, alarm)
            else:
                if runner.edits:
                    # Nobody here knows the handlers, whose validation decides what may be edited.
                    self._store.turn_run(run.id, ACTIVE, RunState.PAUSED, note=EDITS)
                    continue
                self._runners[run.id], self._due[run.id] = runner, self._clock.monotonic()

    def _ready(self) -> list[int]:
        now = self._clock.monotonic()
        return [run_id for run_id, at in self._due.items() if at <= now]

    def _step(self, run_id: int, alarm: Callable[[str], object]) -> None:
        runner = self._runners[run_id]
        try:
            pause_s = runner.step()
        except Unavailable:
            raise
        except Exception as error:
            self._give_up(run_id, error, alarm)
            del self._runners[run_id], self._due[run_id]
            return
        if runner.over or runner.is_onlooker:
            del self._runners[run_id], self._due[run_id]
        else:
            self._due[run_id] = self._clock.monotonic() + pause_s

    def _give_up(self, run_id: int, error: Exception, alarm: Callable[[str], object]) -> None:
        said = f"{type(error).__name__}: {error}"[:1000]
        alarm(f"replay run {run_id} is paused: {said}")
        if isinstance(error, StoreRefused):  # notes are read over HTTP too
            said = "the database refused a statement (see the log)"
        self._store.turn_run(run_id, ACTIVE, RunState.PAUSED, note=f"stopped by an error: {said}")
