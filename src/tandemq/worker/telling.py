"""Calls the listeners of the application and of one task: what they raise changes nothing, and they never share a lock.

In the slot: ``before_attempt``, before the handler and its time limit; ``on_success``, when the handler has returned
and its success is on its way to the database, which a slow listener does not hold up. In the thread of the hooks, once
the database has accepted it: ``on_retry``, ``on_failure`` (given up), ``on_dead_letter``.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tandemq.core.clock import Clock
from tandemq.core.errors import TaskTimeout, ValidationFailed
from tandemq.core.lifecycle import DeadReason, Invalid, Outcome, Raised, TimedOut
from tandemq.core.retry import MAX_RETRIES, RetryPolicy, policy_of
from tandemq.core.task import Lease, Task
from tandemq.handler import CurrentTask, reset_current, set_current
from tandemq.registry import Registry
from tandemq.service import Throttle
from tandemq.worker.inbox import Held

_log = logging.getLogger("tandemq.listeners")
#: Deaths of tasks that never failed an attempt: nothing was tried, so nothing was given up.
_UNTRIED = frozenset({DeadReason.EXPIRED.value, DeadReason.UNKNOWN_TASK.value})


class Failed(Held):
    """``Held`` with what its attempt raised, on its way to the listeners."""

    exc: BaseException | None = None

    @classmethod
    def of(cls, held: Held, outcome: Outcome) -> Held:
        """``held`` itself where nothing was raised."""
        raised = raised_by(outcome)
        if raised is None:
            return held
        failed = cls(*held)
        failed.exc = raised
        return failed


def raised_by(outcome: Outcome) -> BaseException | None:
    """What a listener is shown: the exception, or one that says what ended the attempt."""
    match outcome:
        case Raised(exc=exc):
            return exc
        case TimedOut(failure):
            return TaskTimeout(failure.message)
        case Invalid(failure):
            return ValidationFailed(failure.message)
        case _:
            return None


def about(lease: Lease) -> dict[str, object]:
    """The fields of a log record about a task."""
    return {
        "task_id": lease.id, "queue": lease.queue, "task_type": lease.task_type, "attempt": lease.attempt,
    }  # fmt: skip


def exception_of(held: Held) -> BaseException | None:
    """What its attempt raised, where this process knows it."""
    return held.exc if isinstance(held, Failed) else None


class Telling:
    """Ask ``Listeners.anybody`` first: it is all that a task costs to which nobody listens."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry, self._say = registry, Throttle(_log, clock)

    def listens(self, task_type: str, event: str) -> bool:
        """Whether anybody listens to this event of this type, which need not be known here."""
        task = self._registry.get(task_type)
        return bool(self._registry.listeners.of(event) or (task is not None and task.listeners.of(event)))

    def tell(self, event: str, about: CurrentTask, options: str, exc: BaseException | None = None) -> None:
        """Call them in this thread, the application's first. ``about`` is the current task meanwhile; never raises."""
        task = self._registry.get(about.task_type)
        called = [*self._registry.listeners.of(event), *(task.listeners.of(event) if task is not None else ())]
        if not called:
            return
        policy = _with_retries(policy_of(options, task.policy if task is not None else None), about.max_retries)
        token = set_current(about)
        try:
            for callback in called:
                try:
                    callback(about.attempt, policy, exc)
                except BaseException as raised:  # a SystemExit of theirs must not end the slot
                    name = getattr(callback, "__qualname__", type(callback).__qualname__)
                    text = f"the listener {name} of {event} raised {type(raised).__name__}"
                    self._say(logging.ERROR, f"{event} {name}", text, exc=raised)
        finally:
            reset_current(token)

    def buried(self, about: CurrentTask, options: str, reason: str, exc: BaseException | None = None) -> None:
        """``on_failure`` (unless it was never tried) and ``on_dead_letter``."""
        if reason not in _UNTRIED:
            self.tell("on_failure", about, options, exc)
        self.tell("on_dead_letter", about, options, exc)


def of_lease(lease: Lease) -> CurrentTask:
    """The task of a lease, for listeners."""
    return CurrentTask(
        lease.id, lease.queue, lease.task_type, lease.attempt, lease.max_retries, lease.fence, lease.token
    )


def of_row(task: Task) -> CurrentTask:
    """The task of a stored row, for listeners."""
    return CurrentTask(task.id, task.queue, task.task_type, task.attempts, task.max_retries, task.fence)


def _with_retries(policy: RetryPolicy, max_retries: int) -> RetryPolicy:
    # The row's number is the one that counts; rows of other SQL may hold any.
    return replace(policy, max_retries=min(max(0, max_retries), MAX_RETRIES))
