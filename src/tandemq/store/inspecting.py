"""One task as people see it, and what operators do with it. Lists, counts and retention have files of their own."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tandemq.core.audit import Deed
from tandemq.core.errors import TaskNotFound
from tandemq.core.lifecycle import MOVES, Event, Status
from tandemq.core.task import FailedAttempt, Task
from tandemq.store.counting import CountingStore
from tandemq.store.dialects import instant, instant_or_none
from tandemq.store.finding import FindingStore, task_of
from tandemq.store.pruning import PruningStore
from tandemq.store.transaction import Tx


class InspectingStore(FindingStore, CountingStore, PruningStore):
    """``store.questions.Inspecting``."""

    def get(self, task_id: int, *, attempts: bool = False) -> Task | None:
        """One row, with its newest failed attempts if asked for."""

        def work(tx: Tx) -> Task | None:
            row = tx.one(self.queries.task(), [task_id])
            if row is None:
                return None
            log = tx.rows(self.queries.attempts_of(), [task_id]) if attempts else ()
            return task_of(row, tuple(attempt_of(a) for a in log))

        return self.db.read(work)

    def ending(self, task_id: int) -> tuple[Status, str | None, str | None, str | None] | None:
        """(status, result, last_error, dead_reason) by primary key, for waiting callers."""
        row = self.db.read(lambda tx: tx.one(self.queries.ending(), [task_id]))
        return None if row is None else (Status(row[0]), row[1], row[2], row[3] or None)

    def cancel(self, task_id: int, *, deed: Deed | None = None) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has; TaskNotFound."""

        def work(tx: Tx) -> str:
            row = tx.one(self.queries.lock_one(), [task_id])
            if row is None:
                raise TaskNotFound(f"no task has the id {task_id}")
            status, queue, task_type = Status(row[0]), row[1], row[2]
            if status in MOVES[Event.CANCEL].sources:
                tx.write(self.sql.cancel(), [task_id])
                self.settler.count(tx, Counter({(queue, task_type, Status.CANCELLED.value): 1}))
                self._note(tx, deed, 1)
                return Status.CANCELLED.value
            if status in MOVES[Event.CANCEL_RUNNING].sources:
                self._note(tx, deed, tx.write(self.sql.request_cancel(), [task_id]))
                return "requested"
            return status.value

        return self.db.write(work, repeatable=True, crash="cancel.before_commit")


def attempt_of(row: Any) -> FailedAttempt:
    """A row of ``Looks.attempts_of``."""
    attempt, replays, fence, outcome, worker_id, started_at, ended_at, error_type, error, traceback = row
    return FailedAttempt(
        attempt=attempt,
        replays=replays,
        fence=fence,
        outcome=outcome,
        worker_id=worker_id,
        started_at=instant_or_none(started_at),
        ended_at=instant(ended_at),
        error_type=error_type,
        error=error,
        traceback=traceback,
    )
