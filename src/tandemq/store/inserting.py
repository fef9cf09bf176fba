"""One insert inside one open transaction: keyless rows together, keyed rows one by one in key order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tandemq.core.codec import ascii_only
from tandemq.core.errors import IdempotencyConflict, PayloadTooLarge, StoreUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.task import Inserted, NewRow, Times, epoch_ms
from tandemq.store.chunks import by_size
from tandemq.store.dialects import MYSQL, instant, instant_or_none, micros, stamp
from tandemq.store.queries import Queries
from tandemq.store.statements import Statements
from tandemq.store.transaction import SMALL_PACKET, Duplicate, OwnTx, Step, Tx

#: A statement is cut near this size; one bigger row still goes alone.
MAX_STATEMENT_BYTES = 1024 * 1024
#: How often the owner of a key may vanish between our INSERT and our look.
KEY_TRIES = 5
#: ``run`` and ``expires`` of a row whose times are those of its statement.
PLAIN = ("now", "never")


class Wanted(NamedTuple):
    """A row to insert: its place in the answer, and the kinds of its two times."""

    place: int
    row: NewRow
    key: bytes | None
    run: str
    expires: str

    @classmethod
    def of(cls, place: int, row: NewRow) -> Wanted:
        """Sort out which times are given, and how."""
        run = "at" if row.run_at is not None else "after" if row.delay_s > 0 else "now"
        expires = "at" if row.expires_at is not None else "never" if row.expires_s is None else "after"
        key = None if row.idempotency_key is None else row.idempotency_key.encode()
        return cls(place, row, key, run, expires)

    def params(self, *, ascii_text: bool) -> list[Any]:
        """Bound values, in the order of ``Statements.insert_values``."""
        row = self.row
        texts = [row.payload, row.options]
        if ascii_text:
            texts = [ascii_only(t) for t in texts]
        out: list[Any] = [row.queue, row.task_type, *texts, row.priority, row.max_retries, self.key]
        if row.run_at is not None:
            out.append(stamp(row.run_at))
        elif row.delay_s > 0:
            out.append(micros(row.delay_s))
        if row.expires_at is not None:
            out.append(stamp(row.expires_at))
        elif row.expires_s is not None:
            out.append(micros(row.expires_s))
        return out


class Inserter:
    """One insert in one open transaction; ``ascii_text`` for a connection whose charset is not ours.

    ``committed_owner`` answers ``Queries.by_key`` from outside the transaction, for one whose snapshot may be old.
    """

    def __init__(
        self,
        tx: Tx,
        statements: Statements,
        queries: Queries,
        *,
        key_conflict: str,
        ascii_text: bool = False,
        committed_owner: Callable[[bytes | None], Any] | None = None,
    ) -> None:
        self._tx, self._sql, self._q = tx, statements, queries
        self._key_conflict, self._ascii, self._committed_owner = key_conflict, ascii_text, committed_owner
        #: The ids of each INSERT so far.
        self._statements: list[list[int]] = []

    def run(self, rows: Sequence[NewRow]) -> list[Inserted]:
        """Insert all; answers in input order."""
        wanted = [Wanted.of(index, row) for index, row in enumerate(rows)]
        self._refuse_too_big(wanted)
        answers: dict[int, Inserted] = {}
        # Each keyed row may wait for an uncommitted row of its key, so it takes nobody with it, and comes in key order.
        for one in sorted((w for w in wanted if w.key is not None), key=lambda w: (w.key or b"", w.place)):
            answers[one.place] = self._keyed(one)
        for some in by_size((w for w in wanted if w.key is None), _size, MAX_STATEMENT_BYTES):
            for one, task_id in zip(some, self._together(some), strict=True):
                answers[one.place] = Inserted(task_id, True, one.row.queue, one.row.priority)
        self._add_due_times(answers, [w.place for w in wanted if w.run != "now" and answers[w.place].created])
        return [answers[index] for index in range(len(rows))]

    def alone(self, tx: OwnTx, row: NewRow) -> list[Inserted]:
        """Insert one keyless row that is due now, and commit it: one statement that commits by itself."""
        (done,) = tx.commit(self._statement([Wanted.of(0, row)]))
        return [Inserted(done.last_id, True, row.queue, row.priority)]

    def commit_with_times(self, tx: OwnTx, rows: Sequence[NewRow], answers: Sequence[Inserted]) -> list[Inserted]:
        """Read the times of the new rows in the packet that commits them. ``answers`` are those of ``run``.

        A statement has one "now": of the rows that are due then and never expire one is read, for all of them.
        """
        new = {a.id: Wanted.of(0, row) for row, a in zip(rows, answers, strict=True) if a.created}
        read_at = {i: i for i in new}
        for ids in self._statements:
            alike = [i for i in ids if (new[i].run, new[i].expires) == PLAIN]
            read_at |= dict.fromkeys(alike, min(alike, default=0))
        if not new:
            return list(answers)
        (read,) = tx.commit(Step(self._q.times(sorted(set(read_at.values())))))
        times = times_of(read.rows)
        return [replace(a, times=times[read_at[a.id]]) if a.created else a for a in answers]

    def undo(self) -> None:
        """Take back what was inserted before an error, in a transaction that is not ours to roll back.

        By DELETE: the release of a savepoint that began SQLite's transaction would commit it.
        """
        if self._statements:
            self._tx.write(self._sql.undo_insert([i for ids in self._statements for i in ids]))
            self._statements.clear()

    def _refuse_too_big(self, rows: Sequence[Wanted]) -> None:
        # Before the first is inserted: a caller who goes on with his transaction must not keep half of them.
        for one in rows:
            if 16 * _size(one) >= SMALL_PACKET:
                values = self._sql.insert_values(one.run, one.expires)
                params = one.params(ascii_text=self._ascii)
                self._tx.check_size([Step(self._sql.insert_head() + values, params)])

    def _together(self, rows: Sequence[Wanted]) -> list[int]:
        try:
            return self._insert(rows)
        except PayloadTooLarge:
            if len(rows) == 1:
                raise
            # Each fits, together they do not: escaping made them longer, or the server takes unusually little.
            middle = len(rows) // 2
            return self._together(rows[:middle]) + self._together(rows[middle:])

    def _insert(self, rows: Sequence[Wanted]) -> list[int]:
        insert = self._statement(rows)
        if len(rows) == 1:
            ids = [self._tx.insert(insert.sql, insert.params)]
        elif self._tx.dialect is MYSQL:
            # Asked in the same session: a Galera cluster changes it when a node joins.
            done, asked = self._tx.send(insert, Step("SELECT @@auto_increment_increment"))
            ids = self._tx.dialect.ids_of_insert(done.last_id, len(rows), int(asked.rows[0][0]))
        else:
            ids = self._tx.dialect.ids_of_insert(self._tx.insert(insert.sql, insert.params), len(rows), 1)
        self._statements.append(ids)
        return ids

    def _statement(self, rows: Sequence[Wanted]) -> Step:
        values = ",".join([self._sql.insert_values(w.run, w.expires) for w in rows])
        return Step(self._sql.insert_head() + values, [v for w in rows for v in w.params(ascii_text=self._ascii)])

    def _keyed(self, one: Wanted) -> Inserted:
        for _ in range(KEY_TRIES):
            try:
                (task_id,) = self._insert([one])
                return Inserted(task_id, True, one.row.queue, one.row.priority)
            except Duplicate:
                owner = self._owner(one.key)  # 1062 undoes its statement only
            if owner is not None:
                return self._existing(one.row, owner)
        raise StoreUnavailable(f"the owner of idempotency key {one.row.idempotency_key!r} comes and goes")

    def _owner(self, key: bytes | None) -> Any:
        if self._committed_owner is None:
            # The locking read sees the newest row under any isolation level.
            return self._tx.one(self._q.by_key(), [key])
        # With innodb_snapshot_isolation (MariaDB) a locking read of a row that is newer than the snapshot is refused by
        # 1020, and rolls back all that the caller has done. Our INSERT has waited for its owner: it is committed by
        # now, or this transaction's own.
        return self._committed_owner(key) or self._tx.one(self._q.by_key(lock=False), [key])

    def _existing(self, row: NewRow, owner: Any) -> Inserted:
        task_id, task_type, payload, queue, priority, status, run_at, is_later = owner
        fault = "type" if task_type != row.task_type else "" if _same_json(payload, row.payload) else "payload"
        if fault and self._key_conflict == "error":
            raise IdempotencyConflict(
                f"idempotency key {row.idempotency_key!r} belongs to task {task_id} ({task_type}, {status})"
                f" with another {fault}; nothing was stored",
                task_id=task_id,
            )
        due = epoch_ms(instant(run_at)) if is_later and status == Status.PENDING else None
        return Inserted(task_id, False, queue, priority, due, Status(status))

    def _add_due_times(self, answers: dict[int, Inserted], indexes: Sequence[int]) -> None:
        if not indexes:
            return
        rows = self._tx.rows(self._q.due_times([answers[i].id for i in indexes]))
        due = {task_id: epoch_ms(instant(at)) for task_id, at, is_later in rows if is_later}
        for index in indexes:
            answers[index] = replace(answers[index], due_ms=due.get(answers[index].id))


def times_of(rows: Sequence[Any]) -> dict[int, Times]:
    """What ``Queries.times`` has read, by id."""
    return {
        task_id: Times(instant(created), instant(run), instant_or_none(expires), bool(later))
        for task_id, created, run, expires, later in rows
    }


def _same_json(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        # Compared as texts with sorted keys: in Python 1 == True == 1.0, in JSON they differ.
        return _canonical(one) == _canonical(other)
    except (ValueError, RecursionError):
        return False


def _canonical(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _size(one: Wanted) -> int:
    return len(one.row.payload) + len(one.row.options)
