"""The values that the store takes and gives, beside those of ``core.task``: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tandemq.core.lifecycle import Event, Status, Verdict
from tandemq.core.task import Lease, Level, Task
from tandemq.core.values import parse_instant, rfc3339


@dataclass(frozen=True, slots=True)
class NotDue:
    """A pending row that was popped too early, or was moved on: goes to the sorted set at ``due_ms``."""

    id: int
    level: Level
    due_ms: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that a claim or the reconciler ended without a run (``expired``, ``unknown_task``)."""

    id: int
    task_type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer of one claim.

    ``put_back``: not claimable by this worker now (last attempt and no free slot), in order. ``dropped``: locked by
    others, running, final, missing or not yet visible; whatever of it is due is found again by the reconciler.
    """

    leases: tuple[Lease, ...] = ()
    not_due: tuple[NotDue, ...] = ()
    put_back: tuple[tuple[Level, int], ...] = ()
    ended: tuple[Ended, ...] = ()
    dropped: tuple[int, ...] = ()


class Settlement(NamedTuple):
    """A verdict about one leased task, on its way to the database."""

    lease: Lease
    verdict: Verdict


class Moved(NamedTuple):
    """One accepted move. ``due_ms`` is set for RETRY (sorted set), None for RELEASE (front of the list)."""

    id: int
    level: Level
    task_type: str
    event: Event
    status: Status
    due_ms: int | None = None
    dead_reason: str = ""
    attempt: int = 0

    @classmethod
    def of_success(cls, lease: Lease) -> Moved:
        """A task that succeeded."""
        level = Level(lease.queue, lease.priority)
        return cls(lease.id, level, lease.task_type, Event.SUCCEED, Status.SUCCEEDED, None, "", lease.attempt)


class Settled:
    """The answer of ``finish`` and of ``end_lease``.

    ``fenced``: ids whose token no longer matched; their verdicts were refused. ``locked``: rows that another
    transaction held; send these again. Everything else is in ``moved``. ``succeeded`` is given instead of ``moved``
    when all rows succeeded: then nothing follows, and a Move per task would be made for nobody. ``counts`` comes with
    it: how many by (queue, type, outcome), as they were added to ``task_counts``.
    """

    __slots__ = ("_moved", "counts", "fenced", "locked", "succeeded")

    def __init__(
        self,
        moved: tuple[Moved, ...] = (),
        fenced: tuple[int, ...] = (),
        locked: tuple[int, ...] = (),
        *,
        succeeded: tuple[Lease, ...] = (),
        counts: Mapping[tuple[str, str, str], int] | None = None,
    ) -> None:
        self._moved, self.fenced, self.locked = moved, fenced, locked
        self.succeeded, self.counts = succeeded, counts or {}

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The accepted moves."""
        return tuple([Moved.of_success(lease) for lease in self.succeeded]) if self.succeeded else self._moved


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of ``claims``."""

    token: int
    worker_id: str
    expires_at: datetime
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Who holds a task, as a plain read found it. That may be out of date at once: writes are guarded all the same.

    ``lease`` is the last one, without the payload; ``worker_id`` had it, and has it while the status is running.
    ``claimed_by`` and ``expires_at`` are of its claims row, None where that is gone. ``is_alone``: no other task was
    claimed with it. ``outcomes``: what the history says of this lease, once the task runs no more.
    """

    lease: Lease
    status: Status
    worker_id: str
    cancel_requested: bool
    claimed_by: str | None
    expires_at: datetime | None
    is_alone: bool
    outcomes: frozenset[str]


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A pending row as the rebuild reads it."""

    id: int
    level: Level
    due_ms: int
    due: bool


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A process start of a worker. ``busy`` slots of all its processes run a task; ``options``: words like ``fair``.

    ``heartbeat_age_s`` is by the database's clock, at the moment of the look.
    """

    id: str
    name: str
    host: str
    pid: int
    queues: str
    slots: int
    processes: int
    state: str
    started_at: datetime
    heartbeat_at: datetime
    alive: bool
    options: str = ""
    busy: int = 0
    heartbeat_age_s: float = 0.0

    @property
    def shown_state(self) -> str:
        """Its own word, or ``gone`` when it has fallen silent without one."""
        return self.state if self.alive or self.state == "stopped" else "gone"

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI."""
        out = {name: getattr(self, name) for name in self.__slots__}
        return out | {"started_at": rfc3339(self.started_at), "heartbeat_at": rfc3339(self.heartbeat_at)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list is narrowed to; None means any. ``state`` is a derived state or a status.

    ``payload``: dotted paths and the values that must be there, as JSON has them: 42 is not "42", true is not 1, and
    1.0 is 1; a number in a path counts into an array. ``ended_before`` and ``ended_after`` are aware datetimes, and
    leave open tasks out.
    """

    state: str | None = None
    queue: str | None = None
    task_type: str | None = None
    worker_id: str | None = None
    error_type: str | None = None
    reason: str | None = None
    error_text: str | None = None
    ids: tuple[int, ...] | None = None
    key: str | None = None
    payload: Mapping[str, Any] | None = None
    ended_before: datetime | None = None
    ended_after: datetime | None = None

    @property
    def narrows(self) -> bool:
        """Whether it says anything at all."""
        return any(getattr(self, name) is not None for name in self.__slots__)

    def to_json(self) -> dict[str, Any]:
        """What is given, for the audit log and for replay runs; ``from_json`` makes the same filter of it."""
        given = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        out = {n: rfc3339(v) if isinstance(v, datetime) else v for n, v in given.items()}
        return out | {n: list(v) for n, v in given.items() if n == "ids"}

    @classmethod
    def from_json(cls, shape: Mapping[str, Any]) -> Filter:
        """The filter that ``to_json`` was asked of."""
        given = dict(shape)
        for name in ("ended_before", "ended_after"):
            if name in given:
                given[name] = parse_instant(given[name], name)
        if "ids" in given:
            given["ids"] = tuple(given["ids"])
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Page:
    """Keyset page, newest first: ``next`` is the id to pass as ``after``, None when nothing is left to look at.

    A page that took too much looking is handed out as it is, not full or even empty, with ``next`` to go on from.
    """

    items: tuple[Task, ...]
    next: int | None = None


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Which rows retention removes: those of these final statuses that ended before an instant."""

    before: datetime
    statuses: tuple[Status, ...]
    queue: str | None = None
    task_type: str | None = None

    def to_json(self) -> dict[str, Any]:
        """What the audit log keeps of it."""
        statuses = sorted(status.value for status in self.statuses)
        narrowing = {"queue": self.queue, "type": self.task_type}
        return {"statuses": statuses, "ended_before": rfc3339(self.before)} | {k: v for k, v in narrowing.items() if v}


@dataclass(frozen=True, slots=True)
class DeadKind:
    """What grouping needs to know of a task that has ended; ``error`` is the beginning of its last error."""

    id: int
    queue: str
    task_type: str
    error_type: str
    error: str
    reason: str
    worker_id: str
    ended_at: datetime


class PruneCursor(NamedTuple):
    """How far a walk through ended rows has come. Not to be kept: a new one begins at the front."""

    status: Status
    queue: str
    priority: int
    run_at: Any
    task_id: int
