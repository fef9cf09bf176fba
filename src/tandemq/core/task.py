"""The values that travel: NewTask (what a caller asks for) -> NewRow -> Lease; and Task, a row as people see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tandemq.core import values
from tandemq.core.codec import decode, is_plain
from tandemq.core.lifecycle import Status
from tandemq.core.retry import Backoff, RetryPolicy
from tandemq.core.values import Priority, Seconds


class Unset:
    """Marks "not given" where None has a meaning of its own (a timeout of None means no limit)."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()
DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_QUEUE = "default"


class Level(NamedTuple):
    """One ready list: a queue and a priority."""

    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to enqueue; all but type and payload is optional, and all of it is checked before anything is stored.

    ``delay`` (seconds or timedelta) and ``run_at`` (aware datetime) exclude each other; ``expires`` is seconds from
    now, a timedelta or an aware datetime: not started by then, it ends dead (``expired``). ``timeout`` in seconds
    limits one attempt; None means no limit. ``retry`` replaces the task's policy but for what only code can say (its
    exceptions and callables); ``backoff`` replaces the delays alone.
    """

    task_type: str
    payload: Mapping[str, Any]
    queue: str | None = None
    priority: Priority | None = None
    delay: Seconds | None = None
    run_at: datetime | None = None
    expires: Seconds | datetime | None = None
    max_retries: int | None = None
    idempotency_key: str | None = None
    timeout: float | Unset | None = UNSET
    backoff: Backoff | Sequence[float] | float | None = None
    retry: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class NewRow:
    """A checked task, ready to be inserted. ``options`` is JSON text ("" for none)."""

    task_type: str
    payload: str
    queue: str
    priority: int
    max_retries: int
    options: str = ""
    idempotency_key: str | None = None
    delay_s: float = 0.0
    run_at: datetime | None = None
    expires_s: float | None = None
    expires_at: datetime | None = None


class Times(NamedTuple):
    """The times of a row as its INSERT left them; ``is_later``: ``run_at`` lay ahead then."""

    created_at: datetime
    run_at: datetime
    expires_at: datetime | None
    is_later: bool


@dataclass(frozen=True, slots=True)
class Inserted:
    """The answer of an insert, in input order. ``due_ms``: None when ready now, else its due time (epoch ms).

    ``times`` are there if they were asked for and the row is new.
    """

    id: int
    created: bool
    queue: str
    priority: int
    due_ms: int | None = None
    status: Status = Status.PENDING
    times: Times | None = None


class Lease(NamedTuple):
    """The right to run one task until its claim's deadline, proven by ``token``. Made by ``store.claim`` alone.

    A tuple, because one is made per task: a frozen dataclass takes four times as long. ``attempt`` counts from 1;
    ``payload`` and ``options`` are JSON text as stored. ``waited_us``: for how long it had been due at the claim.
    """

    id: int
    queue: str
    priority: int
    task_type: str
    payload: str
    options: str
    attempt: int
    max_retries: int
    replays: int
    fence: int
    token: int
    waited_us: int = 0


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that did not succeed: a row of ``task_attempts``."""

    attempt: int
    replays: int
    fence: int
    outcome: str
    worker_id: str
    started_at: datetime | None
    ended_at: datetime
    error_type: str
    error: str
    traceback: str

    def to_json(self) -> dict[str, Any]:
        """The JSON shape used by CLI, HTTP and exports."""
        return {
            "attempt": self.attempt,
            "replays": self.replays,
            "outcome": self.outcome,
            "worker_id": self.worker_id or None,
            "started_at": values.rfc3339(self.started_at),
            "ended_at": values.rfc3339(self.ended_at),
            "error_type": self.error_type or None,
            "error": self.error or None,
            "traceback": self.traceback or None,
        }


@dataclass(frozen=True, slots=True)
class Task:
    """A task as stored, sentinels turned into None. ``payload`` and ``result`` are the texts that were stored."""

    id: int
    task_type: str
    queue: str
    payload: str
    options: str
    priority: int
    status: Status
    state: str
    attempts: int
    max_retries: int
    replays: int
    fence: int
    worker_id: str | None
    idempotency_key: str | None
    run_at: datetime
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    updated_at: datetime
    lease_expires_at: datetime | None
    result: str | None
    last_error: str | None
    error_type: str | None
    dead_reason: str | None
    attempts_log: tuple[FailedAttempt, ...] = field(default=())

    @classmethod
    def just_inserted(cls, row: NewRow, task_id: int, times: Times) -> Task:
        """The task as its INSERT left it, made of what was sent and of the times that the database gave it."""
        return cls(
            id=task_id,
            task_type=row.task_type,
            queue=row.queue,
            payload=row.payload,
            options=row.options,
            priority=row.priority,
            status=Status.PENDING,
            state="scheduled" if times.is_later else "ready",
            attempts=0,
            max_retries=row.max_retries,
            replays=0,
            fence=0,
            worker_id=None,
            idempotency_key=row.idempotency_key,
            run_at=times.run_at,
            expires_at=times.expires_at,
            cancel_requested_at=None,
            started_at=None,
            completed_at=None,
            created_at=times.created_at,
            updated_at=times.created_at,
            lease_expires_at=None,
            result=None,
            last_error=None,
            error_type=None,
            dead_reason=None,
        )

    @property
    def retry_count(self) -> int:
        """Runs begun beyond the first."""
        return max(0, self.attempts - 1)

    def to_json(self) -> dict[str, Any]:
        """The one JSON shape of a task for CLI, HTTP and exports; times RFC 3339 with ``Z`` and 6 digits."""
        open_later = self.status is Status.PENDING
        return {
            "id": self.id,
            "id_str": str(self.id),
            "type": self.task_type,
            "queue": self.queue,
            "payload": _parsed(self.payload),
            "priority": self.priority,
            "priority_label": values.LABEL_OF.get(self.priority),
            "status": self.status.value,
            "state": self.state,
            "attempts": self.attempts,
            "retry_count": self.retry_count,
            "max_retries": self.max_retries,
            "replays": self.replays,
            "idempotency_key": self.idempotency_key,
            "run_at": values.rfc3339(self.run_at),
            "next_attempt_at": values.rfc3339(self.run_at) if open_later else None,
            "claimed_at": values.rfc3339(self.started_at) if self.status is Status.RUNNING else None,
            "started_at": values.rfc3339(self.started_at),
            "completed_at": values.rfc3339(self.completed_at),
            "created_at": values.rfc3339(self.created_at),
            "worker_id": self.worker_id,
            "error": self.last_error,
            "error_type": self.error_type,
            "dead_reason": self.dead_reason,
            "result": None if self.result is None else _parsed(self.result),
            "attempts_log": [a.to_json() for a in self.attempts_log],
        }


def _parsed(text: str) -> Any:
    """Rows come from other SQL too: text that is no JSON, or not ours, is shown as it is, to be looked at."""
    try:
        value = decode(text)
    except (ValueError, RecursionError):
        return text
    return value if is_plain(value) else text


def epoch_ms(instant: datetime) -> int:
    """Milliseconds since 1970, rounded up: an id in the sorted set is never due before its row."""
    delta = instant - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return -(-micros // 1000)
