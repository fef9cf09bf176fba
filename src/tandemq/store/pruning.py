"""Retention: rows that ended long ago are found through the open index without locks and deleted by primary key.

The index is led by how a row ended, then queue, priority, run_at. A row ends after it was due, so those that ended
before an instant are among those due before it: nothing else is read, however many rows are kept. Only a cancelled row
may have been due later than it ended; all rows of that kind are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import ENDED, Status
from tandemq.core.task import Level
from tandemq.store.answers import PruneCursor, PruneRule
from tandemq.store.auditing import AuditingStore
from tandemq.store.dialects import NEVER, micros, stamp
from tandemq.store.surveying import FIRST_ENTRY, SurveyingStore
from tandemq.store.transaction import Tx

KEEP_KEYS_S = 24 * 3600.0
PURGED = "purged"


class PruningStore(SurveyingStore, AuditingStore):
    """``prunable``, ``prune`` and ``purge`` of ``store.questions.Inspecting``."""

    def prunable(
        self, rule: PruneRule, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[int], PruneCursor | None]:
        """Look at the next ``limit`` rows at most; the ids of those that the rule means, and where to go on."""

        def work(tx: Tx) -> tuple[list[int], PruneCursor | None]:
            at = cursor or self._next_level(tx, rule, None)
            ids: list[int] = []
            seen = 0
            while at is not None:
                due = NEVER if at.status is Status.CANCELLED else stamp(rule.before)
                behind = [at.queue, at.priority, at.run_at, at.run_at, at.task_id]
                rows = tx.rows(
                    self.queries.ended_stretch(ENDED[at.status]), [stamp(rule.before), *behind, due, limit - seen]
                )
                ids += [row[0] for row in rows if row[3] and rule.task_type in {None, row[2]}]
                seen += len(rows)
                if seen >= limit:
                    return ids, at._replace(run_at=rows[-1][1], task_id=rows[-1][0])
                at = self._next_level(tx, rule, at)
            return ids, None

        return self.db.read(work)

    def prune(self, ids: Sequence[int], rule: PruneRule, *, deed: Deed | None = None) -> int:
        """Delete what of these the rule still means, with its attempts, in one transaction; how many went.

        Locked rows are left alone, keyed ones keep for 24 h. The removals are counted as ``purged``.
        """

        def work(tx: Tx) -> tuple[int, int]:
            lock = self.queries.lock_for_prune(ids, rule.statuses)
            deleted = len(self._delete(tx, tx.rows(lock, [stamp(rule.before), micros(KEEP_KEYS_S)])))
            return deleted, self._note(tx, deed, deleted)

        if not ids:
            return 0
        deleted, entry = self.db.write(work, repeatable=True, crash="prune.before_commit")
        if deed is not None:
            deed.entry = entry
        return deleted

    def purgeable(self, ids: Sequence[int]) -> list[int]:
        """Which of these ``purge`` would delete now; read without locks."""
        sql = self.queries.purgeable(ids)
        return [row[0] for row in self.db.read(lambda tx: tx.rows(sql, [micros(KEEP_KEYS_S)]))] if ids else []

    def purge(self, ids: Sequence[int], *, ended_before: datetime | None = None, deed: Deed | None = None) -> list[int]:
        """Delete final rows (status tested in the same statement) with their attempts; keyed rows keep for 24 h.

        The ids that went, which are added to the details of the deed.
        """
        params = [*([] if ended_before is None else [stamp(ended_before)]), micros(KEEP_KEYS_S)]

        def work(tx: Tx) -> list[int]:
            rows = tx.rows(self.queries.lock_for_purge(ids, before=ended_before is not None), params)
            gone = self._delete(tx, rows)
            if deed is not None:
                about = gone[0] if len(gone) == 1 else deed.task_id
                self._note(tx, replace(deed, details={**deed.details, "ids": gone}, task_id=about), len(gone))
            return gone

        return self.db.write(work, crash="prune.before_commit") if ids else []

    def _delete(self, tx: Tx, rows: Sequence[Any]) -> list[int]:
        if not rows:
            return []
        ids = [row[0] for row in rows]
        tx.write(self.sql.purge(ids))
        for row in tx.rows(self.queries.with_attempts(ids)):
            tx.write(self.sql.purge_attempts(), [row[0]])
        self.settler.count(tx, Counter((queue, kind, PURGED) for _, queue, kind in rows))
        return ids

    def _next_level(self, tx: Tx, rule: PruneRule, at: PruneCursor | None) -> PruneCursor | None:
        """The level behind this one, by status, queue and priority."""
        for status in sorted(rule.statuses):
            if at is not None and status < at.status:
                continue
            level = self._level_behind(tx, rule, status, at if at is not None and at.status is status else None)
            if level is not None:
                return PruneCursor(status, *level, *FIRST_ENTRY)
        return None

    def _level_behind(self, tx: Tx, rule: PruneRule, status: Status, at: PruneCursor | None) -> Level | None:
        q, ended = self.queries, ENDED[status]
        if at is None and rule.queue is None:
            row = tx.one(q.first_level(ended))
        else:
            queue, priority = (rule.queue, -(2**15) - 1) if at is None else (at.queue, at.priority)
            row = tx.one(q.next_priority(ended), [queue, priority])
            if row is None and rule.queue is None:
                row = tx.one(q.next_queue(ended), [queue])
        return None if row is None else Level(*row)
