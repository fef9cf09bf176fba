"""One task as people see it, and what operators do with it. Lists, counts and retention have files of their own."""

from __future__ import annotations

from typing import Any

from tandemq.core.lifecycle import Status
from tandemq.core.task import FailedAttempt, Task
from tandemq.store.cancelling import CancellingStore
from tandemq.store.counting import CountingStore
from tandemq.store.dialects import instant, instant_or_none
from tandemq.store.finding import FindingStore, task_of
from tandemq.store.pruning import PruningStore
from tandemq.store.transaction import Tx


class InspectingStore(FindingStore, CountingStore, CancellingStore, PruningStore):
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
