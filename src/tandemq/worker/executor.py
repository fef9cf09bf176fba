"""Runs one leased task and says what is to be done about it: lease -> outcome -> verdict. No IO of its own.

Everything that a handler can raise is caught here and nowhere else, BaseException included: a SystemExit in a task is
a failed attempt, not the end of the worker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from tandemq.core import codec, failure, retryafter
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import (
    InvalidTask,
    LeaseLost,
    Retry,
    Snooze,
    StoreUnavailable,
    StoreUnknown,
    TaskCancelled,
    TaskTimeout,
    ValidationFailed,
)
from tandemq.core.lifecycle import (
    Attempt,
    Cancelled,
    Failure,
    Invalid,
    Lost,
    Outcome,
    Raised,
    Recorded,
    Returned,
    Snoozed,
    TimedOut,
    Verdict,
    decide,
)
from tandemq.core.listening import Listeners
from tandemq.core.masking import Mask
from tandemq.core.retry import MAX_DELAY_S, RetryPolicy, policy_of
from tandemq.core.task import DEFAULT_TIMEOUT_S, Lease
from tandemq.registry import CurrentTask, RegisteredTask, Registry, reset_current, set_current
from tandemq.store.protocol import HandlerTransaction
from tandemq.worker.asyncloop import AsyncLoop, Escaped
from tandemq.worker.forked import leave_if_forked
from tandemq.worker.limits import TimeLimits
from tandemq.worker.telling import Telling

#: A handler that takes tx comes back after this when the database has no connection for it; no attempt is used.
NO_TRANSACTION_S = 1.0
LONGEST_LIMIT_S = 100 * 366 * 86_400.0
_NOT_GIVEN = object()
#: How a handler that was asked to stop says that it does.
_STOPS = (asyncio.CancelledError, TaskCancelled)
#: A handler that returned nothing, and what a success is judged by: one of each, since there is one a task.
_NOTHING = Returned(None)
_ANY, _ANY_POLICY = Attempt(1, 0), RetryPolicy()


def _nobody_asked() -> bool:
    return False


class Executor:
    """Shared by all slots of a process; every method may run in several threads at once."""

    def __init__(
        self,
        registry: Registry,
        *,
        clock: Clock,
        rng: Random,
        max_result_bytes: int,
        transaction: Callable[[float | None], HandlerTransaction],
        encoder: codec.Encoder | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self._mask = Mask(secrets)
        self._registry, self._clock, self._rng, self._transaction = registry, clock, rng, transaction
        self._max_result_bytes, self._encoder = max_result_bytes, encoder
        self._limits = TimeLimits(clock)
        self.telling = Telling(registry, clock)
        self._loop = AsyncLoop()

    def limit_s(self, lease: Lease) -> float | None:
        """The time limit of this attempt: the enqueue's, else the task's, else the default; never raises.

        Options may come from other SQL: what is no limit (or beyond a century) counts as not given.
        """
        task = self._registry.get(lease.task_type)
        limit = task.timeout_s if task is not None else DEFAULT_TIMEOUT_S
        if not lease.options:
            return limit
        given = _options(lease).get("timeout", _NOT_GIVEN)
        if given is None:
            return None
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        return float(given) if is_number and 0 < given <= LONGEST_LIMIT_S else limit

    def run(
        self,
        lease: Lease,
        is_cancelled: Callable[[], bool],
        limit_s: float | None,
        is_unwanted: Callable[[], bool] = _nobody_asked,
    ) -> Outcome:
        """Validate and call the handler in this thread; never raises.

        ``is_cancelled`` is for the handler; ``is_unwanted``: a cancel request is on the row, not only the lease lost.
        """
        task = self._registry.get(lease.task_type)
        if task is None:  # the claim asked for known types only; the module was reloaded under us
            return Invalid(failure.failure("UnknownTask", f"no task {lease.task_type!r} is registered here"))
        started = self._clock.monotonic()

        def current() -> CurrentTask:
            left_s = None if limit_s is None else limit_s - (self._clock.monotonic() - started)
            deadline = None if left_s is None else self._clock.now() + timedelta(seconds=left_s)
            return CurrentTask(
                lease.id, lease.queue, lease.task_type, lease.attempt, lease.max_retries, lease.fence, lease.token,
                deadline, is_cancelled,
            )  # fmt: skip

        reset = set_current(current)
        try:
            if Listeners.anybody:
                self.telling.tell("before_attempt", current(), lease.options)
            if task.takes_tx:
                return self._run_in_transaction(task, lease, limit_s)
            crash_point("run.before_handler")
            value = self._limits.call(self._call, None if task.is_async else limit_s, task, lease, limit_s, is_unwanted)
            crash_point("run.after_handler")
            return _NOTHING if value is None else self._returned(value)
        except BaseException as exc:  # the one place where a handler's exception ends
            return self._judged(exc, limit_s, is_unwanted)
        finally:
            reset_current(reset)

    def _run_in_transaction(self, task: RegisteredTask, lease: Lease, limit_s: float | None) -> Outcome:
        try:
            tx = self._transaction(limit_s)
        except StoreUnavailable:
            return Snoozed(NO_TRANSACTION_S)  # nothing has begun
        broken = True
        try:
            crash_point("run.before_handler")
            value = self._limits.call(self._call, limit_s, task, lease, limit_s, _nobody_asked, tx.connection)
            crash_point("run.after_handler")
            if self._limits.fired:
                raise TaskTimeout  # whatever the handler made of it: the promise is all or nothing
            returned = _NOTHING if value is None else self._returned(value)
            try:
                tx.succeed(lease, returned.result, returned.note)
            except (LeaseLost, StoreUnknown) as lost:
                broken = isinstance(lost, StoreUnknown)
                return Lost(failure.describe(lost, self._mask), doubtful=True)
            broken = False
        except Exception:
            broken = self._limits.fired  # it may have fallen between a statement and its answer
            raise
        finally:
            tx.close(broken=broken)
        return Recorded()

    def stop_unwanted(self) -> None:
        """Cancel the ``async def`` handlers that somebody has asked to stop. Any thread, at any time."""
        self._loop.stop_unwanted()

    def _call(
        self,
        task: RegisteredTask,
        lease: Lease,
        limit_s: float | None,
        is_unwanted: Callable[[], bool],
        tx: Any = None,
    ) -> Any:
        try:
            payload = codec.decode(lease.payload)
        except (ValueError, RecursionError) as bad:
            raise ValidationFailed(f"the stored payload is not JSON: {bad}") from None
        pid = os.getpid()
        try:
            value = task.call(task.validate(payload), tx)
        except BaseException as exc:
            leave_if_forked(pid, exc)
            raise
        leave_if_forked(pid)
        return self._loop.run(value, limit_s, is_unwanted) if task.is_async else value

    def _returned(self, value: Any) -> Returned:
        try:
            text = codec.encode(value, "result", self._encoder)
        except (InvalidTask, RecursionError) as bad:
            return Returned(None, failure.clip(self._mask.known(f"result not storable: {bad}"), 8192))
        except Exception as bad:
            return Returned(
                None, failure.clip(f"result not storable: {failure.describe(bad, self._mask).message}", 8192)
            )
        size = len(text.encode())
        if size > self._max_result_bytes:
            return Returned(None, f"result not storable: {size} bytes, the limit is {self._max_result_bytes}")
        return Returned(text)

    def verdict(self, lease: Lease, outcome: Outcome) -> Verdict:
        """``decide`` with the task's policy; a policy callable that raises is replaced by the default policy."""
        if outcome is _NOTHING:
            return decide(_ANY, outcome, _ANY_POLICY, self._rng)
        attempt = Attempt(lease.attempt, lease.max_retries)
        try:
            return decide(attempt, outcome, self._policy(lease), self._rng)
        except BaseException:  # the policy's callables are user code
            if isinstance(outcome, Raised):
                outcome = replace(outcome, exc=_Opaque())
            return decide(attempt, outcome, RetryPolicy(), self._rng)

    def _policy(self, lease: Lease) -> RetryPolicy:
        task = self._registry.get(lease.task_type)
        return policy_of(lease.options, task.policy if task is not None else None)

    def on_dead_letter(self, task_type: str, task_id: int, payload: str, error: Failure) -> None:
        """Call the handler's hook; what it raises is the caller's to log."""
        task = self._registry.get(task_type)
        if task is not None:
            value, pid = codec.decode(payload), os.getpid()
            try:
                task.on_dead_letter(task_id, value if isinstance(value, dict) else {}, error)
            except BaseException as exc:
                leave_if_forked(pid, exc)
                raise
            leave_if_forked(pid)

    def _judged(
        self, exc: BaseException, limit_s: float | None, is_unwanted: Callable[[], bool] = _nobody_asked
    ) -> Outcome:
        if type(exc) is Escaped:
            exc = exc.exc
        try:
            if isinstance(exc, _STOPS) and is_unwanted():
                return Cancelled(failure.failure("Cancelled", "it stopped on request"))
            return self._outcome_of(exc, limit_s)
        except BaseException:  # raised by the exception's own ``__class__``; a slot must outlive it
            return Raised(_Opaque(), failure.describe(exc, self._mask))

    def _outcome_of(self, exc: BaseException, limit_s: float | None) -> Outcome:
        if isinstance(exc, Snooze):
            return Snoozed(_delay(exc.delay, self._clock) or 0.0)
        told = failure.describe(exc, self._mask)
        match exc:
            case ValidationFailed():
                return Invalid(told)
            case TaskTimeout():
                text = f"still running after its time limit of {limit_s:g} s" if limit_s is not None else told.message
                return TimedOut(Failure("TaskTimeout", text, told.traceback))
            case Retry(delay=delay):
                return Raised(exc, told, _delay(delay, self._clock))
            case _:
                return Raised(exc, told)

    def stop(self) -> None:
        """End the helper threads."""
        self._limits.stop()
        self._loop.stop()


class _Opaque(Exception):
    """Stands for an exception that cannot be looked at: its own code raises when it is compared with a class."""


def _delay(delay: Any, clock: Clock) -> float | None:
    # Looked at once more: handlers may set the attribute, and subclasses need not call ours.
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    elif isinstance(delay, datetime) and delay.tzinfo is not None:
        delay = retryafter.seconds_from(delay, clock.now())
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay != delay:  # noqa: PLR0124 - NaN
        return None
    return min(max(0.0, float(delay)), MAX_DELAY_S)


def _options(lease: Lease) -> dict[str, Any]:
    try:
        value = codec.decode(lease.options)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
