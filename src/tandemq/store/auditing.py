"""The audit log: rows are written in the transaction of the change they tell of, last of all its statements."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

import json
from typing import Any

from tandemq.core.audit import MAX_ACTION, MAX_REASON, MAX_WHO, AuditPage, AuditRecord, Deed
from tandemq.core.codec import decode
from tandemq.store.base import StoreBase
from tandemq.store.dialects import instant
from tandemq.store.transaction import Tx

#: Rows about many tasks that are looked through for one of them, newest first, and how many are read at a time.
BULK_LOOK, BULK_PAGE = 1000, 100
_COLUMNS = "id, at, who, action, task_id, run_id, n, details, reason"


class AuditingStore(StoreBase):
    """``store.questions.Auditing``, and ``_note`` for the other parts."""

    def record(self, deed: Deed, n: int) -> None:
        """Add ``n`` to the deed's row, or write it, in a transaction of its own."""
        entry = self.db.write(lambda tx: self._note(tx, deed, n))
        deed.entry = entry

    def audit(self, *, task_id: int | None = None, limit: int = 50, after: int | None = None) -> AuditPage:
        """A page of the log, newest first; see the protocol for what ``task_id`` finds."""

        def work(tx: Tx) -> list[AuditRecord]:
            below = 2**63 - 1 if after is None else after
            if task_id is None:
                return self._page(tx, "", [], below, limit + 1)
            found = self._page(tx, f" AND task_id = {tx.dialect.p}", [task_id], below, limit + 1)
            found += self._about_many(tx, task_id, below, limit + 1)
            return sorted(found, key=lambda record: -record.id)

        found = self.db.read(work)
        return AuditPage(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)

    def _note(self, tx: Tx, deed: Deed | None, n: int) -> int:
        """The row of a deed, within the transaction of the change; its id, which is the deed's entry once committed."""
        if deed is None or n <= 0:
            return 0 if deed is None else deed.entry
        p = tx.dialect.p
        if deed.entry:
            tx.write(f"UPDATE {self.sql.audit_log} SET n = n + {p} WHERE id = {p}", [n, deed.entry])
            return deed.entry
        values = [
            fit(deed.who, MAX_WHO) or "unknown",
            deed.action[:MAX_ACTION],
            deed.task_id,
            deed.run_id,
            n,
            json.dumps(deed.details, separators=(",", ":")),
            fit(deed.reason, MAX_REASON),
        ]
        columns = "at, who, action, task_id, run_id, n, details, reason"
        marks = ", ".join([p] * len(values))
        return tx.insert(f"INSERT INTO {self.sql.audit_log} ({columns}) VALUES ({tx.dialect.now}, {marks})", values)

    def _page(self, tx: Tx, condition: str, values: list[Any], below: int, limit: int) -> list[AuditRecord]:
        p = tx.dialect.p
        sql = f"SELECT {_COLUMNS} FROM {self.sql.audit_log} WHERE id < {p}{condition} ORDER BY id DESC LIMIT {p}"
        return [_record(row) for row in tx.rows(sql, [below, *values, limit])]

    def _about_many(self, tx: Tx, task_id: int, below: int, limit: int) -> list[AuditRecord]:
        found: list[AuditRecord] = []
        for _ in range(0, BULK_LOOK, BULK_PAGE):
            page = self._page(tx, " AND task_id = 0", [], below, BULK_PAGE)
            found += [record for record in page if task_id in _ids(record)]
            if len(page) < BULK_PAGE or len(found) >= limit:
                break
            below = page[-1].id
        return found


def _record(row: Any) -> AuditRecord:
    entry, at, who, action, task_id, run_id, n, details, reason = row
    try:
        known = decode(details)
    except (ValueError, RecursionError):
        known = details
    shown = known if isinstance(known, dict) else {"text": known}
    return AuditRecord(entry, instant(at), who, action, task_id or None, run_id or None, n, shown, reason)


def _ids(record: AuditRecord) -> list[Any]:
    ids = record.details.get("ids")
    return ids if isinstance(ids, list) else []


def fit(text: str, limit: int) -> str:
    """As much as the column holds, and only what UTF-8 can carry."""
    return text.encode("utf-8", "replace").decode()[:limit]
