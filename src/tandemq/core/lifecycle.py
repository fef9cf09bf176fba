"""The one state machine: which status may follow which, and the only code that says retry or bury.

``MOVES`` is data: the WHERE clauses of the store and the diagram in ARCHITECTURE.md are derived from it.
Five values travel, each made in one place: NewTask (producer) -> id -> Lease (claim) -> Outcome (executor; ``Lost``
by whoever ends a lease) -> Verdict (``decide``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import assert_never

from tandemq.core.retry import MAX_DELAY_S, RetryPolicy


class Status(StrEnum):
    """What is stored; there are no others."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


#: Value of the index-leading column ``ended``: 0 while the row is open, set once at the end.
ENDED: dict[Status, int] = {
    Status.PENDING: 0,
    Status.RUNNING: 0,
    Status.SUCCEEDED: 1,
    Status.DEAD: 2,
    Status.CANCELLED: 3,
}
FINAL = frozenset(s for s, code in ENDED.items() if code)


class DeadReason(StrEnum):
    """Why a task is dead."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    NON_RETRYABLE = "non_retryable"
    TIMEOUT = "timeout"
    LEASE_LOST = "lease_lost"
    INTERRUPTED = "interrupted"
    VALIDATION = "validation"
    UNKNOWN_TASK = "unknown_task"
    EXPIRED = "expired"


class Event(StrEnum):
    """Everything that can move a task."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    RETRY = "retry"
    RELEASE = "release"
    BURY = "bury"
    CANCEL_RUNNING = "cancel_running"
    CANCEL = "cancel"
    DISCARD = "discard"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Move:
    """From which statuses an event may start, and where it leads."""

    sources: frozenset[Status]
    target: Status


MOVES: dict[Event, Move] = {
    Event.CLAIM: Move(frozenset({Status.PENDING}), Status.RUNNING),
    Event.SUCCEED: Move(frozenset({Status.RUNNING}), Status.SUCCEEDED),
    Event.RETRY: Move(frozenset({Status.RUNNING}), Status.PENDING),
    Event.RELEASE: Move(frozenset({Status.RUNNING}), Status.PENDING),
    Event.BURY: Move(frozenset({Status.RUNNING}), Status.DEAD),
    Event.CANCEL_RUNNING: Move(frozenset({Status.RUNNING}), Status.CANCELLED),
    Event.CANCEL: Move(frozenset({Status.PENDING}), Status.CANCELLED),
    Event.DISCARD: Move(frozenset({Status.PENDING}), Status.DEAD),
    Event.REPLAY: Move(frozenset({Status.DEAD, Status.CANCELLED}), Status.PENDING),
}


def diagram() -> str:
    """The moves as a Mermaid state diagram; ARCHITECTURE.md holds it and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> pending: enqueue"]
    for event, move in MOVES.items():
        lines += [f"    {source} --> {move.target}: {event}" for source in sorted(move.sources)]
    lines += [f"    {status} --> [*]" for status in Status if status in FINAL]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, as bounded valid text (see ``core.failure``)."""

    error_type: str
    message: str
    traceback: str = ""


# Outcomes: what happened to one attempt.


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned. ``result`` is JSON text or None; ``note`` says why a result could not be kept."""

    result: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The handler's own transaction has recorded its success."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised ``exc``; ``retry_delay_s`` is what ``Retry(delay)`` asked for."""

    exc: BaseException
    failure: Failure
    retry_delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to come back later without using an attempt."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Invalid:
    """The handler's ``validate`` (or its signature) refused the payload."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time limit ended the attempt."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease ran out or the process died: the run may have happened, wholly or in part.

    ``doubtful``: its own transaction may have recorded its success.
    """

    failure: Failure
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Stopped by a deploy or a neighbour's end. ``begun``: its handler had been entered."""

    begun: bool
    failure: Failure


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was stopped while it ran, because somebody had asked for that."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Expired:
    """Its ``expires`` had passed before it could start."""

    failure: Failure


Outcome = Returned | Recorded | Raised | Snoozed | Invalid | TimedOut | Lost | Interrupted | Cancelled | Expired


# Verdicts: what is done about it.


@dataclass(frozen=True, slots=True)
class Succeed:
    """running -> succeeded. ``recorded``: that is committed already, the lease and the counters are left to do."""

    result: str | None = None
    note: str = ""
    recorded: bool = False


#: The most frequent verdict: there is one a task.
_SUCCEED, _RECORDED = Succeed(), Succeed(recorded=True)


@dataclass(frozen=True, slots=True)
class RetryIn:
    """running -> pending, due in ``delay_s`` seconds of database time; the attempt stays used.

    ``doubtful``, here and in ``Bury``: unless the row turns out to have succeeded under the same token.
    ``max_age_s``: if it would begin later than this in the task's life it becomes a death instead.
    """

    delay_s: float
    failure: Failure
    outcome: str = "failed"
    doubtful: bool = False
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class SnoozeIn:
    """running -> pending, due in ``delay_s`` seconds; the attempt is given back."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """running -> pending, due as before; the attempt is given back. ``failure`` is history for a begun run."""

    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Bury:
    """running -> dead. ``yields``: a cancel request on the row makes it cancelled instead."""

    reason: DeadReason
    failure: Failure
    outcome: str = "failed"
    doubtful: bool = False
    yields: bool = False


Verdict = Succeed | RetryIn | SnoozeIn | Release | Bury


@dataclass(frozen=True, slots=True)
class Attempt:
    """What ``decide`` needs of a row: the attempt that was running (from 1) and the retries allowed."""

    number: int
    max_retries: int

    @property
    def is_last(self) -> bool:
        """No further run is allowed after this one."""
        return self.number > self.max_retries


def decide(attempt: Attempt, outcome: Outcome, policy: RetryPolicy, rng: Random) -> Verdict:  # noqa: C901, PLR0912 - one match
    """The only code that says retry or bury. Pure; a raising ``when`` or backoff callable is the caller's to catch."""
    match outcome:
        case Returned(result, note):
            return _SUCCEED if result is None and not note else Succeed(result, note)
        case Recorded():
            return _RECORDED
        case Snoozed(delay_s):
            return SnoozeIn(_bounded(delay_s))
        case Invalid(failure):
            return Bury(DeadReason.VALIDATION, failure, "invalid")
        case Expired(failure):
            return Bury(DeadReason.EXPIRED, failure, "expired")
        case Interrupted(begun, failure):
            # A run of a max_retries=0 task that has begun is never begun again, whoever stopped it.
            if begun and attempt.max_retries == 0:
                return Bury(DeadReason.INTERRUPTED, failure, "interrupted")
            return Release(failure if begun else None)
        case Cancelled(failure):  # a row without a request is nobody's to give back: its run has begun and is cut off
            return Bury(DeadReason.INTERRUPTED, failure, "cancelled", yields=True)
        case TimedOut(failure):
            return _again(attempt, failure, policy, rng, DeadReason.TIMEOUT, "timeout")
        case Lost(failure, doubtful):
            verdict = _again(attempt, failure, policy, rng, DeadReason.LEASE_LOST, "lease_lost")
            return replace(verdict, doubtful=doubtful) if doubtful else verdict
        case Raised(exc, failure, delay_s):
            if policy.decision(exc, attempt.number) == "give_up":
                return Bury(DeadReason.NON_RETRYABLE, failure)
            reason = DeadReason.RETRIES_EXHAUSTED
            if delay_s is not None and not attempt.is_last:
                return RetryIn(_bounded(delay_s), failure, max_age_s=policy.max_age_s)
            return _again(attempt, failure, policy, rng, reason, "failed")
        case _:
            assert_never(outcome)


def _bounded(delay_s: float) -> float:
    """What a handler asked for, as something the database can add to a time."""
    return min(delay_s, MAX_DELAY_S) if delay_s > 0 else 0.0


def _again(
    attempt: Attempt, failure: Failure, policy: RetryPolicy, rng: Random, reason: DeadReason, outcome: str
) -> RetryIn | Bury:
    if attempt.is_last:
        return Bury(reason, failure, outcome)
    return RetryIn(policy.delay(attempt.number, rng), failure, outcome, max_age_s=policy.max_age_s)
