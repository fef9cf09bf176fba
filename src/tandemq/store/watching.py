"""What a live view asks every second, beyond gauges and counters: bounded reads by primary key."""
# ruff: noqa: S608 - table names are put in, ids are integers

from __future__ import annotations

from collections.abc import Sequence

from tandemq.store.answers import DeadKind
from tandemq.store.base import StoreBase
from tandemq.store.dialects import id_list, instant
from tandemq.store.letters import KIND_COLUMNS, kind_of_row
from tandemq.store.looking import RUNNING
from tandemq.store.transaction import Tx


class WatchingStore(StoreBase):
    """``store.questions.Watching``."""

    def kinds(self, ids: Sequence[int]) -> list[DeadKind]:
        """What grouping needs to know of these rows, in the given order; those that are gone are left out."""
        sql = (
            f"SELECT t.id, {KIND_COLUMNS}, t.completed_at FROM {self.sql.tasks} t {self.db.dialect.primary}"
            f" WHERE t.id IN ({id_list(ids)})"
        )
        rows = {row[0]: kind_of_row(row) for row in self.db.read(lambda tx: tx.rows(sql))} if ids else {}
        return [rows[task_id] for task_id in ids if task_id in rows]

    def waits(self, limit: int) -> list[tuple[str, float]]:
        """(queue, seconds from due to claimed) of up to ``limit`` tasks that are claimed at this moment."""

        def work(tx: Tx) -> list[tuple[str, float]]:
            batches = tx.rows(f"{self.queries.claimed_ids()} LIMIT {tx.dialect.p}", [limit])
            ids = sorted({int(i) for (text,) in batches for i in text.split(",") if i.isdigit()}, reverse=True)
            if not ids:
                return []
            rows = tx.rows(
                f"SELECT queue, run_at, started_at FROM {self.sql.tasks} t {tx.dialect.primary}"
                f" WHERE t.id IN ({id_list(ids[:limit])}) AND {RUNNING}"
            )
            return [(queue, max(0.0, (instant(at) - instant(due)).total_seconds())) for queue, due, at in rows]

        return self.db.read(work)
