"""Walks through everything that has ended in one way: for groups, exports, purges and counts of many tasks.

A page that is sorted by id reads all dead letters of the index first. A walk goes along the index (by queue, priority
and run_at) instead, in calls that look at a bounded number of rows, so all of it costs each row once.
"""
# ruff: noqa: S608 - SQL is put together here from constants and integers; values are bound parameters

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tandemq.core.lifecycle import ENDED, Status
from tandemq.core.task import FailedAttempt, Task
from tandemq.store import payloads
from tandemq.store.answers import DeadKind, Filter, PruneCursor, PruneRule
from tandemq.store.chunks import by_size
from tandemq.store.dialects import id_list, instant
from tandemq.store.finding import conditions, task_of
from tandemq.store.inspecting import attempt_of
from tandemq.store.pruning import PruningStore
from tandemq.store.transaction import Tx

#: How much of an error is read for grouping.
ERROR_START = 1000
#: Bytes of texts that ``full`` fetches at a time; one task may have more.
FULL_BYTES = 4 * 1024 * 1024
KIND_COLUMNS = f"t.queue, t.task_type, t.error_type, SUBSTR(t.last_error, 1, {ERROR_START}), t.dead_reason, t.worker_id"
_LATEST = datetime.max.replace(tzinfo=UTC)
#: After every run_at that a row can have.
_END = "9999-12-31 23:59:59.999999"


class LettersStore(PruningStore):
    """``ended_ids``, ``ended_kinds`` and ``full`` of ``store.questions.Inspecting``."""

    def ended_ids(
        self, where: Filter, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[int], PruneCursor | None]:
        """Look at the next ``limit`` rows that ended as ``where.state`` says; the ids that fit, and where to go on."""
        rows, following = self._ended(where, cursor, limit, "")
        return [row[0] for row in rows], following

    def ended_kinds(
        self, where: Filter, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[DeadKind], PruneCursor | None]:
        """The same, with what grouping needs to know of them."""
        rows, following = self._ended(where, cursor, limit, f", {KIND_COLUMNS}, t.completed_at")
        return [kind_of_row(row) for row in rows], following

    def full(self, ids: Sequence[int]) -> tuple[list[Task], int]:
        """The first of these with their history, as many as fit into memory, at least one; and how many ids that were.

        In the order of the ids; rows that are gone are left out.
        """

        def work(tx: Tx) -> tuple[list[Task], int]:
            sizes = dict(tx.rows(self.queries.sizes(ids)))
            for task_id, size in tx.rows(self._history_sizes(ids)):
                sizes[task_id] = sizes.get(task_id, 0) + size
            first = by_size(ids, lambda i: int(sizes.get(i, 0)), FULL_BYTES)[0]
            logs: dict[int, list[FailedAttempt]] = {}
            for task_id, *line in tx.rows(self.queries.attempts_of_many(first)):
                logs.setdefault(task_id, []).append(attempt_of(line))
            read = tx.rows(self.queries.page([f"t.id IN ({id_list(first)})"]), [len(first)])
            rows = {row[0]: row for row in read}
            return [task_of(rows[i], tuple(logs.get(i, ()))) for i in first if i in rows], len(first)

        return self.db.read(work) if ids else ([], 0)

    def _history_sizes(self, ids: Sequence[int]) -> str:
        length = "SUM(LENGTH(error) + LENGTH(traceback))"
        return f"SELECT task_id, {length} FROM {self.sql.attempts} WHERE task_id IN ({id_list(ids)}) GROUP BY task_id"

    def _ended(
        self, where: Filter, cursor: PruneCursor | None, limit: int, columns: str
    ) -> tuple[list[Any], PruneCursor | None]:
        """Rows begin with the id; those whose payload does not fit are left out."""
        status = Status(where.state or Status.DEAD)
        rule = PruneRule(_LATEST, (status,), where.queue)
        tests, values = conditions(where, self.db.dialect)
        texts = columns + (", t.payload" if where.payload is not None else "")

        def work(tx: Tx) -> tuple[list[Any], PruneCursor | None]:
            at, left = cursor or self._next_level(tx, rule, None), limit
            found: list[Any] = []
            while at is not None:
                behind = [at.queue, at.priority, at.run_at, at.run_at, at.task_id]
                # Twice along the index: LIMIT beside the tests would count only what meets them.
                end = tx.one(self.queries.end_of_ended_stretch(ENDED[status]), [*behind, left - 1])
                last = (_END, _END, 0) if end is None else (end[0], end[0], end[1])
                sql = self.queries.in_ended_stretch(ENDED[status], texts, tests)
                found += tx.rows(sql, [*behind, *last, *values])
                if end is not None:
                    return found, at._replace(run_at=end[0], task_id=end[1])
                # One may have died between the two statements: not less than one is left.
                left = max(
                    1, left - int(tx.one(self.queries.length_of_ended_stretch(ENDED[status]), [*behind, left])[0])
                )
                at = self._next_level(tx, rule, at)
            return found, None

        rows, following = self.db.read(work)
        if where.payload is not None:
            rows = [row[:-1] for row in rows if payloads.fits(row[-1], where.payload)]
        return rows, following


def kind_of_row(row: Any) -> DeadKind:
    """A row of (id, ``KIND_COLUMNS``, completed_at)."""
    task_id, queue, kind, error_type, error, reason, worker_id, ended_at = row
    text = error.decode("utf-8", "replace") if isinstance(error, bytes) else str(error or "")
    return DeadKind(task_id, queue, kind, error_type, text, reason, worker_id, instant(ended_at))
