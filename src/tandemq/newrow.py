"""NewTask -> NewRow: every check there is happens here, before anything is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tandemq.core import values
from tandemq.core.codec import Encoder, encode, plain_object, write
from tandemq.core.errors import InvalidTask, InvalidType, PayloadTooLarge
from tandemq.core.retry import (
    DEFAULT_MAX_RETRIES,
    QueuePolicy,
    RetryPolicy,
    as_backoff,
    backoff_spec,
    on_the_task_only,
    policy_options,
)
from tandemq.core.task import DEFAULT_QUEUE, UNSET, NewRow, NewTask
from tandemq.registry import RegisteredTask

#: A run_at before this is "now". MySQL's DATETIME starts in the year 1000; nearer instants are the database's to judge.
_LONG_AGO = datetime(1971, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Checks:
    """What a check needs to know beyond the task itself. ``now`` is the caller's clock: good enough to refuse
    contradictions, never used to decide when a task is due.
    """

    now: datetime
    max_payload_bytes: int
    queue_policies: Mapping[str, QueuePolicy]
    encoder: Encoder | None = None

    def row(self, new: NewTask, task: RegisteredTask | None) -> NewRow:
        """The row to insert; ``task`` is the registration of its type, if this process knows it."""
        queue = values.queue_name(new.queue) if new.queue is not None else task.queue if task else DEFAULT_QUEUE
        key, of_queue = new.idempotency_key, self.queue_policies.get(queue)
        if new.retry is not None:
            _of_one_enqueue(new.retry)
        delay_s, run_at = self._start(new)
        expires_s, expires_at = self._end(new, delay_s, run_at)
        return NewRow(
            task_type=values.task_type(new.task_type),
            payload=self._payload(new.payload, task),
            queue=queue,
            priority=values.priority(new.priority) if new.priority is not None else task.priority if task else 0,
            max_retries=self._max_retries(new, task, of_queue),
            options=_options(new, task.policy if task else None, of_queue),
            idempotency_key=None if key is None else values.idempotency_key(key),
            delay_s=delay_s,
            run_at=run_at,
            expires_s=expires_s,
            expires_at=expires_at,
        )

    def _payload(self, payload: Any, task: RegisteredTask | None) -> str:
        if isinstance(payload, Mapping) and type(payload) is not dict:
            payload = dict(payload)
        if task is not None:
            payload = task.lower(payload, self.encoder)
        plain = plain_object(payload, "payload", self.encoder)
        text = write(plain)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self.max_payload_bytes:
            raise PayloadTooLarge(
                f"payload is {size} bytes of JSON; the limit is {self.max_payload_bytes} (TANDEMQ_MAX_PAYLOAD_BYTES)",
                field="payload",
            )
        if task is not None:
            task.check(plain)
        return text

    def _max_retries(self, new: NewTask, task: RegisteredTask | None, of_queue: QueuePolicy | None) -> int:
        if new.max_retries is not None:
            return values.max_retries(new.max_retries)
        if new.retry is not None and new.retry.max_retries is not None:
            return new.retry.max_retries
        if task is not None and task.max_retries is not None:
            return task.max_retries
        return DEFAULT_MAX_RETRIES if of_queue is None or of_queue.max_retries is None else of_queue.max_retries

    def _start(self, new: NewTask) -> tuple[float, datetime | None]:
        if new.delay is not None and new.run_at is not None:
            raise InvalidTask(
                f"delay {new.delay!r} and run_at {str(new.run_at)!r} exclude each other; give one", field="delay"
            )
        if new.delay is not None:
            return self._ahead(new.delay, "delay"), None
        run_at = None if new.run_at is None else values.instant(new.run_at, "run_at")
        return 0.0, None if run_at is None or run_at < _LONG_AGO else run_at

    def _end(self, new: NewTask, delay_s: float, run_at: datetime | None) -> tuple[float | None, datetime | None]:
        if new.expires is None:
            return None, None
        starts = max(self.now, run_at or self.now) + timedelta(seconds=delay_s)
        if isinstance(new.expires, datetime):
            expires_s, expires_at = None, values.instant(new.expires, "expires")
            ends = expires_at
        else:
            expires_s, expires_at = self._ahead(new.expires, "expires"), None
            ends = self.now + timedelta(seconds=expires_s)
        if ends <= starts:
            start = values.rfc3339(starts)
            raise InvalidTask(f"expires {values.rfc3339(ends)} is not after the start at {start}", field="expires")
        return expires_s, expires_at

    def _ahead(self, value: Any, field: str) -> float:
        ahead_s = values.seconds(value, field)
        if ahead_s > (values.LATEST - self.now).total_seconds():
            raise InvalidTask(f"{field} of {value!r} ends after {values.LATEST.date()}", field=field)
        return ahead_s


def _options(new: NewTask, policy: RetryPolicy | None, of_queue: QueuePolicy | None) -> str:
    """JSON of what the columns do not hold. A policy that is not the default travels along, since a lost lease is
    judged by the supervisor or the reconciler, which have no handlers.
    """
    options: dict[str, Any] = {}
    if new.timeout is not UNSET:
        options["timeout"] = values.timeout(new.timeout)
    if new.retry is not None:
        options |= policy_options(new.retry, whole=True)
    else:
        options |= of_queue.options if of_queue is not None else {}
        if policy is not None:
            if backoff_spec(as_backoff(policy.backoff)) is None:
                options.pop("backoff", None)  # the task's own is code, and wins
            options |= policy_options(policy)
    if new.backoff is not None:
        options["backoff"] = _spec(new.backoff)
    return encode(options, "options") if options else ""


def _of_one_enqueue(retry: Any) -> None:
    """A policy that can be written into a row. InvalidTask names what cannot."""
    if not isinstance(retry, RetryPolicy):
        raise InvalidType(f"retry must be a RetryPolicy, not {type(retry).__name__}", field="retry")
    if names := on_the_task_only(retry):
        raise InvalidTask(
            f"retry of one enqueue cannot carry {', '.join(names)}: code does not travel with a row;"
            " set it on the task (@app.task(retry=...))",
            field="retry",
        )


def _spec(backoff: Any) -> dict[str, Any]:
    try:
        spec = backoff_spec(as_backoff(backoff))
    except TypeError as bad:
        raise InvalidType(str(bad), field="backoff") from None
    except ValueError as bad:
        raise InvalidTask(str(bad), field="backoff") from None
    if spec is None:
        raise InvalidType(
            "backoff of one enqueue must be a list of seconds, Exponential, Linear or Constant;"
            " a callable can only be set on the task (retry=RetryPolicy(backoff=...))",
            field="backoff",
        )
    return spec
