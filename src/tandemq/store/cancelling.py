"""Cancelling: at once what is pending, by request what runs; and which requests may cost a process."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from tandemq.core.audit import Deed
from tandemq.core.errors import TaskNotFound
from tandemq.core.lifecycle import MOVES, Event, Status
from tandemq.store.auditing import AuditingStore
from tandemq.store.dialects import id_list, micros
from tandemq.store.transaction import Tx

#: A kill is for one lease: after so long nobody asks for it any more.
KEPT_S = 7 * 86_400.0


class CancellingStore(AuditingStore):
    """``cancel`` of ``store.questions.Inspecting`` and ``kills`` of ``store.protocol.Leasing``."""

    def cancel(self, task_id: int, *, kill: bool = False, deed: Deed | None = None) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has; TaskNotFound."""

        def work(tx: Tx) -> str:
            row = tx.one(self.queries.lock_one(), [task_id])
            if row is None:
                raise TaskNotFound(f"no task has the id {task_id}")
            status, queue, task_type, token = Status(row[0]), row[1], row[2], row[3]
            if status in MOVES[Event.CANCEL].sources:
                tx.write(self.sql.cancel(), [task_id])
                self.settler.count(tx, Counter({(queue, task_type, Status.CANCELLED.value): 1}))
                self._note(tx, deed, 1)
                return Status.CANCELLED.value
            if status in MOVES[Event.CANCEL_RUNNING].sources:
                changed = tx.write(self.sql.request_cancel(), [task_id])
                if kill:
                    changed += self._kill(tx, token, task_id)
                self._note(tx, deed, min(1, changed))
                return "requested"
            return status.value

        return self.db.write(work, repeatable=True, crash="cancel.before_commit")

    def _kill(self, tx: Tx, token: int, task_id: int) -> int:
        """Mark it, once: the row of the task is locked, so nobody else marks it meanwhile."""
        d, table = tx.dialect, self.sql.kills
        if tx.one(f"SELECT 1 FROM {table} WHERE lease_token = {d.p} AND task_id = {d.p}", [token, task_id]):
            return 0
        tx.write(f"DELETE FROM {table} WHERE requested_at < {d.before()}", [micros(KEPT_S)])
        columns = "lease_token, task_id, requested_at"
        return tx.write(f"INSERT INTO {table} ({columns}) VALUES ({d.p}, {d.p}, {d.now})", [token, task_id])

    def kills(self, tokens: Collection[int]) -> set[tuple[int, int]]:
        """(token, id) of the tasks of these leases that shall be ended, if need be with their process."""
        if not tokens:
            return set()
        sql = f"SELECT lease_token, task_id FROM {self.sql.kills} WHERE lease_token IN ({id_list(tokens)})"
        return {(int(token), int(task_id)) for token, task_id in self.db.read(lambda tx: tx.rows(sql))}
