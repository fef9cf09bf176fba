"""What people do with tasks: look, count, cancel, ask why. The edges (CLI, HTTP) translate; this acts."""

from __future__ import annotations

from typing import Any

from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, TaskNotFound
from tandemq.core.lifecycle import Status
from tandemq.core.task import Level, Task
from tandemq.core.values import rfc3339
from tandemq.deadletters import DeadLetters
from tandemq.links import Links
from tandemq.store.answers import Filter, Page, WorkerRecord

__all__ = ["Admin", "DeadLetters"]

MAX_PAGE = 1000


class Admin:
    """Reads and single moves over the store; nothing here counts a big table."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def get(self, task_id: int) -> Task | None:
        """The task with its failed attempts, or None."""
        return self._links.store.get(task_id, attempts=True)

    def show(self, task_id: int) -> Task:
        """As ``get``, but TaskNotFound."""
        task = self.get(task_id)
        if task is None:
            raise TaskNotFound(f"no task has the id {task_id}")
        return task

    def find(self, where: Filter, *, limit: int = 50, after: int | None = None) -> Page:
        """A page of tasks, newest first; ``after`` is the ``next`` of the page before. See ``Page`` for short ones."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidTask(f"limit must be between 1 and {MAX_PAGE}, not {limit}", field="limit")
        return self._links.store.find(where, limit=limit, after=after)

    def cancel(self, task_id: int) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has. TaskNotFound."""
        return self._links.store.cancel(task_id)

    def stats(self) -> dict[str, Any]:
        """Open tasks by queue and state and ended ones by outcome, from the database.

        ``redis`` holds the ids there by queue, or None while Redis is away.
        """
        counts = dict(self._links.store.counts())
        try:
            counts["redis"] = self._depths()
        except (BrokerUnavailable, ForeignInstall):
            counts["redis"] = None
        return counts

    def workers(self) -> list[WorkerRecord]:
        """Worker processes; ``alive`` if heard of within a lease's time."""
        return self._links.store.workers(alive_s=self._links.settings.lease_s)

    def why(self, task_id: int) -> str:
        """One true sentence: why is this task (not) running?"""
        task = self._links.store.get(task_id)
        if task is None:
            return f"Task {task_id} does not exist: it was never stored, was rolled back, or was purged."
        match task.status:
            case Status.PENDING:
                return f"Task {task_id} {self._waiting(task)}."
            case Status.RUNNING:
                return f"Task {task_id} {_running(task)}."
            case Status.SUCCEEDED:
                return f"Task {task_id} succeeded at {rfc3339(task.completed_at)}, in run {task.attempts}."
            case Status.CANCELLED:
                return f"Task {task_id} was cancelled at {rfc3339(task.completed_at)}."
            case Status.DEAD:
                since = f"since {rfc3339(task.completed_at)}, after {_runs(task)}"
                return f"Task {task_id} is dead ({task.dead_reason}) {since}{_error(task)}."

    def _waiting(self, task: Task) -> str:
        if task.run_at > self._links.store.now():
            if task.error_type == UNKNOWN:
                return f"waits for a worker that knows its type {task.task_type!r}, next look at {rfc3339(task.run_at)}"
            if task.attempts:
                again = f"retry {task.attempts} of {task.max_retries}"
                return f"failed and waits for {again}, due at {rfc3339(task.run_at)}{_error(task)}"
            return f"is not due before {rfc3339(task.run_at)}"
        serving = [w for w in self.workers() if w.alive and _serves(w, task.queue)]
        since = f"is ready since {rfc3339(task.run_at)}"
        if not serving:
            return f"{since}, but no live worker serves the queue {task.queue!r}"
        level = Level(task.queue, task.priority)
        try:
            depth = self._links.broker.depth(level)
        except (BrokerUnavailable, ForeignInstall) as away:
            return f"{since}; Redis cannot tell its place ({away})"
        return f"{since} and waits for a free slot of {len(serving)} live worker(s); ids in its list: {depth}"

    def _depths(self) -> dict[str, dict[str, int]]:
        broker = self._links.broker
        depths = {}
        for queue in sorted(broker.queues()):
            levels = [Level(queue, priority) for priority in broker.levels(queue)]
            depths[queue] = {
                "ready": sum(map(broker.depth, levels)),
                "delayed": sum(map(broker.delayed, levels)),
            }
        return depths


#: error_type of a row that waits for a worker that knows its type (written by the claim).
UNKNOWN = "UnknownTask"


def _running(task: Task) -> str:
    text = f"is running since {rfc3339(task.started_at)} on worker {task.worker_id}, begun {_runs(task)}"
    if task.cancel_requested_at is not None:
        text += f"; it was asked to stop at {rfc3339(task.cancel_requested_at)}"
    if task.lease_expires_at is not None:
        text += f"; its lease ends at {rfc3339(task.lease_expires_at)} unless renewed"
    return text


def _runs(task: Task) -> str:
    return f"{task.attempts} of {task.max_retries + 1} runs"


def _error(task: Task) -> str:
    return f": {task.error_type or 'error'}: {task.last_error.splitlines()[0][:200]}" if task.last_error else ""


def _serves(worker: WorkerRecord, queue: str) -> bool:
    return queue in {name.strip() for name in worker.queues.split(",")}
