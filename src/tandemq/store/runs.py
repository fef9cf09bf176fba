"""Replay runs as the store keeps them: the values, and what may be asked. ``replaying.py`` has the SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from tandemq.core.audit import Deed
from tandemq.store.answers import Moved


class RunState(StrEnum):
    """Where a replay run is. ``paused`` goes on in the state that it was paused in."""

    SELECTING = "selecting"
    CANARY = "canary"
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"


#: States in which there is work to do; all but paused and these are over.
ACTIVE = (RunState.SELECTING, RunState.CANARY, RunState.WAITING, RunState.RUNNING)
OPEN = (*ACTIVE, RunState.PAUSED)


class RunItem(NamedTuple):
    """What became of one task of a run: ``waiting``, ``moved``, ``skipped`` or ``failed``, and why."""

    task_id: int
    outcome: str
    is_canary: bool
    replays: int
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """A row of ``replay_runs``. ``selection`` and ``orders`` are JSON text; ``select_below`` is 0 once all is selected.

    ``is_held``: somebody carries it out just now. ``wait_is_over``: the time to wait for the canary has passed.
    """

    id: int
    state: RunState
    created_by: str
    reason: str
    selection: str
    orders: str
    wave_at: datetime
    select_below: int
    selected: int
    moved: int
    skipped: int
    failed: int
    note: str
    watch_from: datetime
    holder: str
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    is_held: bool
    wait_is_over: bool

    @property
    def left(self) -> int:
        """Selected tasks without an outcome."""
        return self.selected - self.moved - self.skipped - self.failed


class Hold(NamedTuple):
    """The right to carry out a run for ``hold_s`` from each write on; proven by ``holder``, which is a process's."""

    run_id: int
    holder: str
    hold_s: float


class Candidate(NamedTuple):
    """A task whose turn it is, read without a lock. ``note``: why it cannot be replayed, "" if it can."""

    id: int
    task_type: str
    note: str
    payload: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """How tasks are made pending: under which level (None: their own), and with which payloads.

    ``payloads``: id -> (as it was read, as it is to be). A row whose payload is another by now is not touched.
    """

    queue: str | None = None
    priority: int | None = None
    payloads: Mapping[int, tuple[str, str]] = field(default_factory=dict)


class Chunk(NamedTuple):
    """What became of a chunk: ``locked`` ids have no outcome yet, somebody else held their rows."""

    moved: tuple[Moved, ...]
    locked: tuple[int, ...]
    skipped: int = 0
    failed: int = 0


class Ends(NamedTuple):
    """Of ``n`` replayed tasks so many have ended, and so many of these are dead again."""

    n: int
    ended: int
    died: int


class Replaying(Protocol):
    """Replay, task by task and as runs. Every write to a run or its items first locks the run's row."""

    def replay(
        self,
        ids: Sequence[int],
        *,
        ended_before: datetime | None = None,
        revival: Revival = ...,
        deed: Deed | None = None,
    ) -> list[Moved]:
        """dead | cancelled -> pending by compare-and-set; attempts start anew, history stays, ``replays`` + 1.

        One transaction, the deed's row of the audit log in it. Rows that others hold are left out.
        """
        ...

    def replayable(self, ids: Sequence[int], *, ended_before: datetime, payloads: bool = False) -> list[Candidate]:
        """These tasks and why they cannot be replayed (also those that do not exist); no locks."""
        ...

    def kinds_of(self, ids: Sequence[int], *, ended_before: datetime) -> dict[tuple[str, str], int]:
        """How many of these could be replayed, by (type, error type)."""
        ...

    def create_run(
        self, *, created_by: str, reason: str, selection: str, orders: str, holder: str, hold_s: float
    ) -> ReplayRun:
        """Store a run, selecting, its wave beginning now. Killed right after: it is an abandoned run like any other."""
        ...

    def run(self, run_id: int) -> ReplayRun | None:
        """One run."""
        ...

    def runs(
        self, *, limit: int, below: int | None = None, states: Collection[RunState] | None = None
    ) -> list[ReplayRun]:
        """Newest first by id."""
        ...

    def run_notes(self, run_id: int) -> dict[tuple[str, str], int]:
        """How many items of the run have which (outcome, note)."""
        ...

    def run_items(self, run_id: int, *, outcome: str, after: int = 0, limit: int = 100) -> list[RunItem]:
        """Items with this outcome, by task id."""
        ...

    def hold_run(self, hold: Hold, *, take_over: bool = False) -> ReplayRun | None:
        """Take or keep an active run. None: it is not active, or somebody else holds it (unless ``take_over``)."""
        ...

    def release_run(self, hold: Hold) -> None:
        """Leave it to whoever comes next."""
        ...

    def select_items(
        self, hold: Hold, ids: Sequence[int], *, below: int, following: int, any_state: bool
    ) -> ReplayRun | None:
        """Add a page of tasks and move ``select_below`` from ``below`` to ``following``, in one transaction.

        Only what is dead or cancelled and had ended when the wave began, unless ``any_state``. None: the hold is lost,
        or somebody else has selected this page.
        """
        ...

    def waiting_items(self, run_id: int, *, after: int, limit: int) -> list[int]:
        """Ids of items without an outcome, ascending."""
        ...

    def mark_canary(self, hold: Hold, ids: Sequence[int]) -> bool:
        """Make these waiting items part of the sample; again does no harm. False: the hold is lost."""
        ...

    def candidates(
        self, run: ReplayRun, *, canary: bool, limit: int, but: Collection[int] = (), payloads: bool = False
    ) -> list[Candidate]:
        """The next items, oldest first, without locks."""
        ...

    def move_items(
        self,
        hold: Hold,
        ids: Sequence[int],
        *,
        revival: Revival,
        failed: Mapping[int, str],
        give_up: Collection[int] = (),
    ) -> Chunk | None:
        """Replay items and write all that follows in one transaction: outcomes, the run's counters, its audit row.

        Each item is decided once, whoever asks. ``failed`` ones get that outcome with their note; locked ones stay
        waiting unless they are in ``give_up``. None: the hold is lost or the run is paused, nothing was done.
        Killed after the commit: the rows are pending in no list, the reconciler pushes them.
        """
        ...

    def turn_run(
        self,
        run_id: int,
        sources: Collection[RunState],
        target: RunState | None,
        *,
        note: str = "",
        resume: RunState | None = None,
        wait_s: float | None = None,
        watch_anew: bool = False,
        holder: str | None = None,
        deed: Deed | None = None,
    ) -> bool:
        """Compare-and-set of the state; with ``holder`` only by that holder. False: it was in another state.

        ``target`` None: back to where it was paused. ``wait_s`` sets the time to wait for the canary; ``watch_anew``
        lets the fuse forget what was moved so far.
        """
        ...

    def ends_of(self, run: ReplayRun, *, canary: bool, limit: int) -> Ends:
        """How the tasks fare that were moved since ``watch_from``, at most ``limit``, youngest first."""
        ...
