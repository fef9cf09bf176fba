"""Plain reads for workers that are no processes of ours: who holds a task, and of which type tasks are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandemq.core.lifecycle import Status
from tandemq.core.task import Lease
from tandemq.store.answers import Holding
from tandemq.store.base import StoreBase
from tandemq.store.dialects import instant
from tandemq.store.transaction import Tx


class RemoteStore(StoreBase):
    """``store.questions.Holdings``."""

    def holding(self, task_id: int) -> Holding | None:
        """Who holds a task, without its payload; None if there is none."""

        def work(tx: Tx) -> Holding | None:
            row = tx.one(self.queries.holding(), [task_id])
            if row is None:
                return None
            is_running = row[1] == Status.RUNNING
            log = () if is_running else tx.rows(self.queries.outcomes_of([task_id]))
            return _holding(row, log)

        return self.db.read(work)

    def types_of(self, ids: Sequence[int]) -> dict[int, str]:
        """The types of those tasks that exist."""
        return dict(map(tuple, self.db.read(lambda tx: tx.rows(self.queries.types_of(ids))))) if ids else {}


def _holding(row: Sequence[Any], log: Sequence[Any]) -> Holding:
    (task_id, status, worker_id, cancel, queue, priority, task_type, options, attempts, max_retries, replays, fence,
     token, claimed_by, expires_at, ids) = row  # fmt: skip
    lease = Lease(task_id, queue, priority, task_type, "", options, attempts, max_retries, replays, fence, token)
    return Holding(
        lease=lease,
        status=Status(status),
        worker_id=worker_id.strip(),
        cancel_requested=bool(cancel),
        claimed_by=None if claimed_by is None else claimed_by.strip(),
        expires_at=None if expires_at is None else instant(expires_at),
        is_alone=ids is None or ids == str(task_id),
        outcomes=frozenset(outcome for _, of_fence, outcome in log if of_fence == fence),
    )
