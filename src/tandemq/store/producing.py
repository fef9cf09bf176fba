"""Inserting tasks: on an own connection (atomic, committed here) or on the caller's (committed there)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import exc

from tandemq.core.errors import EnqueueUnknown, StoreBusy, StoreUnknown, TandemQError
from tandemq.core.task import Inserted, NewRow
from tandemq.store import after_commit, errors
from tandemq.store.base import StoreBase
from tandemq.store.database import LOCK_WAIT_TRIES, LockWait
from tandemq.store.dialects import MYSQL, BareSqlite, Dialect
from tandemq.store.errors import Kind
from tandemq.store.inserting import Inserter, times_of
from tandemq.store.protocol import Transaction
from tandemq.store.queries import Queries
from tandemq.store.statements import Statements
from tandemq.store.transaction import CallerTx, OwnTx

#: How often an insert with keys is sent again when the answer to its COMMIT is lost each time.
UNKNOWN_TRIES = 3


class ProducingStore(StoreBase):
    """``store.protocol.Producing``."""

    def insert(
        self,
        rows: Sequence[NewRow],
        *,
        connection: Transaction | None = None,
        times: bool = False,
        patient: bool = True,
    ) -> list[Inserted]:
        """Store rows; see the protocol. With ``connection`` a deadlock or lock wait is raised as SQLAlchemy raises it.

        (The server has then rolled back the caller's whole transaction, and only the caller can send it again.)
        """
        if not rows:
            return []
        if connection is not None:
            return self._insert_on(connection, rows)
        before_commit: list[Inserted] = []
        is_alone = not times and len(rows) == 1 and _is_plain(rows[0])

        def work(tx: OwnTx) -> list[Inserted]:
            inserter = Inserter(tx, self.sql, self.queries, key_conflict=self.settings.key_conflict)
            if is_alone:
                return inserter.alone(tx, rows[0])
            before_commit[:] = inserter.run(rows)
            return inserter.commit_with_times(tx, rows, before_commit) if times else list(before_commit)

        for _ in range(UNKNOWN_TRIES):
            try:
                return self._write(work, patient)
            except StoreUnknown as unknown:
                if is_alone:  # its id would have come with the answer
                    raise _unknown(unknown) from unknown
                if self._is_stored(rows, before_commit, unknown):
                    return self._with_times(before_commit, unknown) if times else list(before_commit)
                # A key makes the second sending harmless; without one it could make a second task.
                if any(row.idempotency_key is None for row in rows):
                    raise _unknown(unknown) from unknown
        raise EnqueueUnknown("the answer to COMMIT was lost again and again; the tasks may or may not be stored")

    def _write(self, work: Callable[[OwnTx], list[Inserted]], patient: bool) -> list[Inserted]:
        try:
            return self.db.write(work, lock_waits=LOCK_WAIT_TRIES if patient else 0, crash="enqueue.before_commit")
        except LockWait as held:
            raise StoreBusy("rows stayed locked by another transaction") from held

    def visible(self, ids: Sequence[int]) -> set[int]:
        """Which of these ids are committed and pending, read on an own connection."""
        if not ids:
            return set()
        return {row[0] for row in self.db.read(lambda tx: tx.rows(self.queries.visible(ids)))}

    def after_commit(self, connection: Transaction, then: Callable[[], None]) -> None:
        """Call ``then`` once the caller's transaction has committed; on a Connection just before: check ``visible``."""
        after_commit.call_after_commit(connection, then)

    def _is_stored(self, rows: Sequence[NewRow], answers: Sequence[Inserted], unknown: StoreUnknown) -> bool:
        # A plain read would prove nothing. This one waits for the old session's rows, and compares what it finds: an id
        # can be given again to another task when a server loses its counter.
        ids = [a.id for a in answers]
        try:
            found = self.db.write(lambda tx: tx.rows(self.queries.stored(ids)), repeatable=True)
        except TandemQError as cause:
            raise _unknown(unknown) from cause
        stored = {task_id: (task_type, payload) for task_id, task_type, payload in found}
        return all(
            stored.get(a.id) == (row.task_type, row.payload) or (not a.created and a.id in stored)
            for a, row in zip(answers, rows, strict=True)
        )

    def _with_times(self, answers: Sequence[Inserted], unknown: StoreUnknown) -> list[Inserted]:
        ids = [a.id for a in answers if a.created]
        try:
            times = times_of(self.db.read(lambda tx: tx.rows(self.queries.times(ids)))) if ids else {}
        except TandemQError as cause:
            raise _unknown(unknown) from cause
        return [replace(a, times=times.get(a.id)) for a in answers]

    def _insert_on(self, transaction: Transaction, rows: Sequence[NewRow]) -> list[Inserted]:
        connection = after_commit.connection_of(transaction)
        dialect = self._dialect_of(connection.dialect.name)
        prefix = self.settings.table_prefix
        inserter = Inserter(
            CallerTx(connection, dialect),
            Statements(dialect, prefix),
            Queries(dialect, prefix),
            key_conflict=self.settings.key_conflict,
            ascii_text=True,
            committed_owner=self._committed_owner if dialect is MYSQL else None,
        )
        try:
            return inserter.run(rows)
        except TandemQError:
            inserter.undo()
            raise
        except exc.SQLAlchemyError as cause:
            kind = errors.classify(cause)
            if kind in {Kind.CONFLICT, Kind.LOCK_WAIT}:
                raise
            if kind is Kind.REFUSED:
                inserter.undo()
            raise self.db.translate(cause, kind) from cause

    def _committed_owner(self, key: bytes | None) -> Any:
        return self.db.read(lambda tx: tx.one(self.queries.by_key(lock=False), [key]))

    def _dialect_of(self, name: str) -> Dialect:
        return BareSqlite(self.db.clock.now()) if name == "sqlite" else MYSQL


def _is_plain(row: NewRow) -> bool:
    """Due now and without a key: there is nothing to ask the database afterwards."""
    return row.idempotency_key is None and row.run_at is None and row.delay_s <= 0


def _unknown(cause: StoreUnknown) -> EnqueueUnknown:
    return EnqueueUnknown(f"the tasks may or may not be stored: {cause}")
