"""What a remote worker does with a task that it holds: heartbeat, complete, fail.

Each is judged by a plain read first, so that a client which repeats a wrong token writes nothing; the write that
follows is guarded by (id, token, running) and decides races. A verdict that is sent again because its answer was lost
is found written, and accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any, Final

from tandemq import metrics, redeliver
from tandemq.app import TandemQ
from tandemq.core import codec
from tandemq.core.crash import crash_point
from tandemq.core.errors import (
    LeaseLost,
    NonRetryable,
    Retryable,
    StoreBusy,
    StoreUnavailable,
    StoreUnknown,
    TaskNotFound,
)
from tandemq.core.failure import MAX_MESSAGE_BYTES, MAX_TRACEBACK_BYTES, MAX_TYPE_BYTES, clip
from tandemq.core.ids import new_random
from tandemq.core.lifecycle import Attempt, Bury, Event, Failure, Raised, Returned, Status, Verdict, decide
from tandemq.core.masking import Mask
from tandemq.core.retry import RetryPolicy, policy_of
from tandemq.core.task import Lease, Task
from tandemq.remote.terms import Proof, Token, lease_length
from tandemq.service import Throttle
from tandemq.store.answers import Holding, Settled, Settlement

_log = logging.getLogger("tandemq.remote")
#: Once a row was found locked no lock is waited for (3 s each) for so long: many of them would take all threads.
NO_WAIT_S = 5.0
#: What the history calls an attempt that failed.
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What went wrong, in the worker's words; texts are cut to what is kept.

    ``retry_after_s`` None: the policy says, and always where it may not be retried.
    """

    error: str = ""
    error_type: str = ""
    traceback: str = ""
    retryable: bool = True
    retry_after_s: float | None = None

    def failure(self, mask: Mask) -> Failure:
        """As it is kept: without the secrets of the settings, should a worker have them too."""
        kind = clip(self.error_type, MAX_TYPE_BYTES) or "Error"
        text = clip(mask.known(self.error), MAX_MESSAGE_BYTES) or f"<{kind} without a message>"
        return Failure(kind, text, clip(mask.known(self.traceback), MAX_TRACEBACK_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The answer to a heartbeat."""

    task_id: int
    token: Token
    expires_at: datetime
    cancel_requested: bool


class Work:
    """One per process; every method may be called by several threads at once, and blocks.

    All raise TaskNotFound, LeaseLost (the task is not, or no longer, this worker's) and StoreUnavailable: nothing was
    written, and StoreBusy among them: somebody else has locked the row. StoreUnknown: it may have been written. Sent
    again with the same token it is counted once.
    """

    def __init__(self, app: TandemQ, *, rng: Random | None = None) -> None:
        self._app, self._rng = app, rng or new_random()
        self._say, self._mask = Throttle(_log, app.clock), Mask(app.settings.secrets())
        self._no_wait_until = float("-inf")

    def heartbeat(self, task_id: int, proof: Proof, lease_s: float | None = None) -> Beat:
        """Let the lease end ``lease_s`` from now on: else the length it was claimed for, else that of the settings."""
        found = self._holding(task_id, proof)
        self._check_running(found)
        if found.claimed_by is None:
            raise LeaseLost(f"the lease of task {task_id} has ended")
        token = found.lease.token
        length_s = lease_length(lease_s or proof.lease_s or self._app.settings.lease_s)
        crash_point("renew.before")
        if not self._app.store.renew([token], worker_id=found.claimed_by, lease_s=length_s):
            raise LeaseLost(f"the lease of task {task_id} has ended")
        crash_point("renew.after")
        now = self._holding(task_id, proof)
        self._check_running(now)
        if now.expires_at is None:
            raise LeaseLost(f"the lease of task {task_id} has ended")
        return Beat(
            task_id=task_id,
            token=Token(token, length_s),
            expires_at=now.expires_at,
            cancel_requested=now.cancel_requested,
        )

    def complete(self, task_id: int, proof: Proof, result: Any = None) -> Task:
        """running -> succeeded. A result over the limit is left out and noted: the work is done.

        InvalidTask: the result is nothing that JSON can carry.
        """
        verdict = decide(Attempt(1, 0), self._returned(result), RetryPolicy(), self._rng)
        return self._end(task_id, proof, lambda _: verdict, lambda found: found.status is Status.SUCCEEDED)

    def fail(self, task_id: int, proof: Proof, failed: Failed) -> Task:
        """running -> pending, for later, or dead, as ``decide`` says; cancelled if that has been asked for."""
        return self._end(
            task_id, proof, lambda found: self._failed(found.lease, failed), lambda found: FAILED in found.outcomes
        )

    def _returned(self, result: Any) -> Returned:
        if result is None:
            return Returned(None)
        text, limit = codec.encode(result, "result"), self._app.settings.max_result_bytes
        size = len(text.encode())
        return Returned(text) if size <= limit else Returned(
            None, f"result not storable: {size} bytes, the limit is {limit}"
        )  # fmt: skip

    def _failed(self, lease: Lease, failed: Failed) -> Verdict:
        told = failed.failure(self._mask)
        # The worker's word counts, not the exception classes of the Python task's policy: its errors are none of them.
        raised = Raised(Retryable() if failed.retryable else NonRetryable(), told, failed.retry_after_s)
        attempt, task = Attempt(lease.attempt, lease.max_retries), self._app.registry.get(lease.task_type)
        try:
            verdict = decide(attempt, raised, policy_of(lease.options, task.policy if task else None), self._rng)
        except BaseException:  # a backoff may be a user's callable
            verdict = decide(attempt, raised, policy_of(lease.options), self._rng)
        # The only word a remote worker has for "I have stopped, as I was asked to".
        return replace(verdict, yields=True) if isinstance(verdict, Bury) else verdict

    def _holding(self, task_id: int, proof: Proof) -> Holding:
        found = self._app.store.holding(task_id)
        if found is None:
            raise TaskNotFound(f"no task has the id {task_id}")
        if not proof.fits(found):
            raise LeaseLost(f"task {task_id} is not held under this lease; it is {found.status.value}")
        if not found.is_alone:
            # A worker process has claimed it with others: their lease must not end, or be kept, with this one.
            raise LeaseLost(f"task {task_id} is held by a worker process")
        return found

    def _check_running(self, found: Holding) -> None:
        if found.status is not Status.RUNNING:
            raise LeaseLost(f"task {found.lease.id} is not running any more; it is {found.status.value}")

    def _end(
        self,
        task_id: int,
        proof: Proof,
        judge: Callable[[Holding], Verdict],
        is_repeated: Callable[[Holding], bool],
    ) -> Task:
        try:
            found = self._holding(task_id, proof)
            if not is_repeated(found):
                self._check_running(found)
                self._write(found, judge(found))
        except LeaseLost as lost:
            metrics.fenced(1)
            self._say(logging.WARNING, "fenced", f"{lost}; the late result is refused")
            raise
        try:
            task = self._app.store.get(task_id, attempts=True)
        except StoreUnavailable as away:
            raise StoreUnknown(f"the end of task {task_id} is stored, but it cannot be read: {away}") from away
        if task is None:
            raise TaskNotFound(f"task {task_id} has been removed")
        return task

    def _write(self, found: Holding, verdict: Verdict) -> None:
        started = self._app.clock.monotonic()
        settled = self._finish(Settlement(found.lease, verdict), found.worker_id)
        took_s = self._app.clock.monotonic() - started
        crash_point("finish.after_commit")
        if settled.fenced:
            raise LeaseLost(f"the lease of task {found.lease.id} has ended")
        (move,) = settled.moved
        is_retry = move.event is Event.RETRY
        outcome = "retried" if is_retry else move.status.value
        metrics.finished({(move.level.queue, move.task_type, outcome): 1}, took_s)
        redeliver.count(settled.moved, lost=False)
        if is_retry:
            crash_point("retry.after_commit")
        redeliver.dispatch(self._app.broker, settled.moved)
        if is_retry:
            crash_point("retry.after_push")

    def _finish(self, settlement: Settlement, worker_id: str) -> Settled:
        """An answer that was lost is asked for once more. StoreBusy: the row is locked by somebody else."""
        try:
            return self._finish_once(settlement, worker_id)
        except StoreUnknown as lost:
            try:
                return self._finish_once(settlement, worker_id)
            except StoreUnavailable as away:
                raise StoreUnknown(f"{lost}; asked again: {away}") from away

    def _finish_once(self, settlement: Settlement, worker_id: str) -> Settled:
        now = self._app.clock.monotonic
        settled = self._app.store.finish(
            [settlement],
            closing=[settlement.lease.token],
            worker_id=worker_id,
            again=now() < self._no_wait_until,
        )
        if settled.locked:
            self._no_wait_until = now() + NO_WAIT_S
            raise StoreBusy(f"task {settlement.lease.id} is locked by another connection")
        return settled
