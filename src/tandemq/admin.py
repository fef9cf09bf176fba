"""What people do with tasks: look, count, cancel, ask why. The edges (CLI, HTTP) translate; this acts."""

from __future__ import annotations

from typing import Any

from tandemq.acting import acting
from tandemq.core.audit import AuditPage
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, TaskNotFound
from tandemq.core.task import Level, Task
from tandemq.deadletters import DeadLetters
from tandemq.explaining import Explanation
from tandemq.links import Links
from tandemq.store.answers import Filter, Page, WorkerRecord

__all__ = ["Admin", "DeadLetters"]

MAX_PAGE = 1000


class Admin:
    """Reads and single moves over the store; nothing here counts a big table."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def get(self, task_id: int) -> Task | None:
        """The task with its newest 100 failed attempts, or None."""
        return self._links.store.get(task_id, attempts=True)

    def show(self, task_id: int) -> Task:
        """As ``get``, but TaskNotFound."""
        task = self.get(task_id)
        if task is None:
            raise TaskNotFound(f"no task has the id {task_id}")
        return task

    def find(self, where: Filter, *, limit: int = 50, after: int | None = None, max_bytes: int | None = None) -> Page:
        """A page of tasks, newest first; ``after`` is the ``next`` of the page before. See ``Page`` for short ones.

        ``max_bytes``: a page ends before its payloads, results and errors are more.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidTask(f"limit must be between 1 and {MAX_PAGE}, not {limit}", field="limit")
        return self._links.store.find(where, limit=limit, after=after, max_bytes=max_bytes)

    def cancel(self, task_id: int, *, kill: bool = False, reason: str = "", who: str | None = None) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has. TaskNotFound."""
        deed = acting("cancel", who, reason, task_id=task_id, details={"kill": True} if kill else None)
        return self._links.store.cancel(task_id, kill=kill, deed=deed)

    def audit(self, *, task_id: int | None = None, limit: int = 50, after: int | None = None) -> AuditPage:
        """The audit log, newest first."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidTask(f"limit must be between 1 and {MAX_PAGE}, not {limit}", field="limit")
        return self._links.store.audit(task_id=task_id, limit=limit, after=after)

    def stats(self) -> dict[str, Any]:
        """Open tasks by queue and state and ended ones by outcome, from the database.

        ``redis`` holds the ids there by queue, or None while Redis is away; ``paused`` what operators have paused.
        """
        counts = dict(self._links.store.counts())
        try:
            counts["redis"] = self._depths()
        except (BrokerUnavailable, ForeignInstall):
            counts["redis"] = None
        counts["paused"] = [pause.to_json() for pause in self._links.store.pauses()]
        return counts

    def workers(self) -> list[WorkerRecord]:
        """Worker processes; ``alive`` if heard of within a lease's time."""
        return self._links.store.workers(alive_s=self._links.settings.lease_s)

    def why(self, task_id: int) -> str:
        """One true sentence: why is this task (not) running? A due task whose id is not in Redis is pushed."""
        return Explanation(self._links, self.workers).of(task_id)

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
