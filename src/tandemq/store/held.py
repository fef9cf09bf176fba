"""A locked row in the hands of a verdict, and whether that verdict has been written before."""

from __future__ import annotations

from typing import Any, NamedTuple

from tandemq.core.lifecycle import (
    Bury,
    DeadReason,
    Event,
    Release,
    RetryIn,
    SnoozeIn,
    Status,
    Succeed,
    Verdict,
)
from tandemq.core.task import Lease


class Held(NamedTuple):
    """A row of ``Queries.held``."""

    id: int
    queue: str
    priority: int
    task_type: str
    status: str
    token: int
    cancel: int
    attempts: int
    max_retries: int
    replays: int
    fence: int
    worker_id: str
    started_at: Any
    dead_reason: str
    run_at: Any
    payload: str
    options: str

    def lease(self) -> Lease:
        """The lease as it was claimed."""
        return Lease(
            id=self.id,
            queue=self.queue,
            priority=self.priority,
            task_type=self.task_type,
            payload=self.payload,
            options=self.options,
            attempt=self.attempts,
            max_retries=self.max_retries,
            replays=self.replays,
            fence=self.fence,
            token=self.token,
        )


class Settling(NamedTuple):
    """A locked row, the lease it was held under, and what is to become of it."""

    row: Held
    lease: Lease
    verdict: Verdict

    @property
    def pair(self) -> tuple[int, int]:
        """What the row is matched by."""
        return self.row.id, self.lease.token

    @property
    def event(self) -> Event:
        """A cancel request turns a way back to pending into a cancellation. Success wins; death unless it yields."""
        match self.verdict:
            case Succeed():
                return Event.SUCCEED
            case Bury(yields=yields):
                return Event.CANCEL_RUNNING if yields and self.row.cancel else Event.BURY
            case RetryIn() | SnoozeIn():
                return Event.CANCEL_RUNNING if self.row.cancel else Event.RETRY
            case Release():
                return Event.CANCEL_RUNNING if self.row.cancel else Event.RELEASE


class Again(NamedTuple):
    """A row whose verdict was written before, and the event it was written as."""

    row: Held
    lease: Lease
    verdict: Verdict
    event: Event


def same_again(row: Held, verdict: Verdict) -> Event | None:
    """As which event this verdict, under the row's own token, has been written before (its answer was lost)."""
    if isinstance(verdict, RetryIn | Bury) and verdict.doubtful and row.status == Status.SUCCEEDED:
        return Event.SUCCEED
    match verdict:
        case Succeed():
            return Event.SUCCEED if row.status == Status.SUCCEEDED else None
        case Bury(yields=True) if row.status == Status.CANCELLED:
            return Event.CANCEL_RUNNING
        case Bury(reason):
            return Event.BURY if row.status == Status.DEAD and row.dead_reason == reason.value else None
        case RetryIn() | SnoozeIn() | Release():
            if row.status == Status.CANCELLED:
                return Event.CANCEL_RUNNING
            if row.status == Status.DEAD and isinstance(verdict, RetryIn) and verdict.max_age_s is not None:
                return Event.BURY if row.dead_reason == DeadReason.RETRIES_EXHAUSTED else None
            if row.status == Status.PENDING:
                return Event.RELEASE if isinstance(verdict, Release) else Event.RETRY
            return None
