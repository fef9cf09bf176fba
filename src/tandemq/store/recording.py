"""Install, epoch, leadership, workers: the small tables."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from datetime import datetime
from typing import Any

from tandemq.core.errors import NotMigrated
from tandemq.store import migrate
from tandemq.store.answers import WorkerRecord
from tandemq.store.base import StoreBase, holder
from tandemq.store.dialects import instant, micros
from tandemq.store.transaction import Tx


class RecordingStore(StoreBase):
    """``store.protocol.Recording``."""

    def ping(self) -> None:
        """One round trip, or StoreUnavailable."""
        self.db.read(lambda tx: tx.one("SELECT 1"))

    def now(self) -> datetime:
        """The database's clock."""
        return instant(self.db.read(lambda tx: tx.one(f"SELECT {tx.dialect.now}"))[0])

    def check_schema(self) -> None:
        """NotMigrated unless every migration this code needs is applied."""
        rows = self.db.read(lambda tx: tx.rows(f"SELECT name FROM {self.sql.migrations}"))
        missing = [m.name for m in migrate.files(self.db.dialect.name) if m.name not in {row[0] for row in rows}]
        if missing:
            raise NotMigrated(f"migrations not applied: {', '.join(missing)}; run: tandemq migrate")

    def install_id(self) -> str:
        """Made by migrate, never changed."""
        return self._meta("install_id")

    def epoch(self) -> int:
        """The generation epoch."""
        return int(self._meta("epoch"))

    def advance_epoch(self, old: int, new: int) -> bool:
        """Compare-and-set. A lost answer is raised: sent again, it would say False about its own success."""
        p = self.db.dialect.p
        sql = f"UPDATE {self.sql.meta} SET value = {p} WHERE name = 'epoch' AND value = {p}"
        return self.db.write(lambda tx: tx.write(sql, [str(new), str(old)])) == 1

    def lead(self, role: str, holder: str, lease_s: float) -> bool:
        """Take or keep the leadership of a role for ``lease_s``; only saves work, two leaders are harmless."""
        d = self.db.dialect
        take = (
            f"UPDATE {self.sql.leaders} SET holder = {d.p}, expires_at = {d.after()}"
            f" WHERE role = {d.p} AND (holder = {d.p} OR expires_at <= {d.now})"
        )
        create = (
            f"INSERT INTO {self.sql.leaders} (role, holder, expires_at) VALUES ({d.p}, {d.p}, {d.after()})"
            f" {d.do_nothing.format('role')}"
        )

        def work(tx: Tx) -> bool:
            if tx.write(take, [holder, micros(lease_s), role, holder]):
                return True
            # The count of an upsert that changed nothing is 0 or 1, by client flag: ask who it is instead.
            owner = f"SELECT holder FROM {self.sql.leaders} WHERE role = {d.p}"
            if tx.one(owner, [role]) is None:
                tx.write(create, [role, holder, micros(lease_s)])
            row = tx.one(owner, [role])
            return row is not None and row[0] == holder  # None: somebody empties the table

        return self.db.write(work, repeatable=True)

    def worker_started(self, record: WorkerRecord) -> None:
        """Insert the worker's row (its times are the database's)."""
        d = self.db.dialect
        columns = ("name", "host", "pid", "queues", "slots", "processes", "state", "options")
        sql = (
            f"INSERT INTO {self.sql.workers} (id, {', '.join(columns)}, started_at, heartbeat_at)"
            f" VALUES ({', '.join([d.p] * 9)}, {d.now}, {d.now}) {d.overwrite('id', [*columns, 'heartbeat_at'])}"
        )
        values = [holder(record.id), record.name[:255], record.host[:255], *(getattr(record, c) for c in columns[2:])]
        self.db.write(lambda tx: tx.write(sql, values), repeatable=True)

    def worker_beat(self, worker_id: str, state: str, *, busy: int = 0) -> None:
        """Move its heartbeat and state; ``busy``: how many of its slots run a task."""
        d = self.db.dialect
        sql = f"UPDATE {self.sql.workers} SET heartbeat_at = {d.now}, state = {d.p}, busy = {d.p} WHERE id = {d.p}"
        self.db.write(lambda tx: tx.write(sql, [state, busy, holder(worker_id)]), repeatable=True)

    def workers(self, *, alive_s: float) -> list[WorkerRecord]:
        """Worker records, newest first; ``alive``: the heartbeat is at most ``alive_s`` old and it has not stopped."""
        d = self.db.dialect
        sql = (
            "SELECT id, name, host, pid, queues, slots, processes, state, started_at, heartbeat_at,"
            f" heartbeat_at >= {d.before()} AND state <> 'stopped', options, busy, {d.now}"
            f" FROM {self.sql.workers} ORDER BY started_at DESC, id"
        )
        rows = self.db.read(lambda tx: tx.rows(sql, [micros(alive_s)]))
        return [_record(row) for row in rows]

    def forget_workers(self, older_than_s: float) -> int:
        """Delete records of workers whose last sign of life is older than this, stopped or silent."""
        d = self.db.dialect
        find = f"SELECT id FROM {self.sql.workers} WHERE heartbeat_at < {d.before()} ORDER BY id LIMIT 1000"
        delete = f"DELETE FROM {self.sql.workers} WHERE id = {d.p} AND heartbeat_at < {d.before()}"

        def work(tx: Tx) -> int:
            ids = [row[0] for row in tx.rows(find, [micros(older_than_s)])]
            return sum(tx.write(delete, [worker_id, micros(older_than_s)]) for worker_id in ids)

        return self.db.write(work, repeatable=True)

    def _meta(self, name: str) -> str:
        sql = f"SELECT value FROM {self.sql.meta} WHERE name = {self.db.dialect.p}"
        row = self.db.read(lambda tx: tx.one(sql, [name]))
        if row is None:
            raise NotMigrated(f"the database lacks its {name}; run: tandemq migrate")
        return str(row[0])


def _record(row: Any) -> WorkerRecord:
    worker_id, name, host, pid, queues, slots, processes, state, started_at, heartbeat_at, alive, *more = row
    options, busy, now = more
    return WorkerRecord(
        id=worker_id,
        name=name,
        host=host,
        pid=pid,
        queues=queues,
        slots=slots,
        processes=processes,
        state=state,
        started_at=instant(started_at),
        heartbeat_at=instant(heartbeat_at),
        alive=bool(alive),
        options=options,
        busy=busy,
        heartbeat_age_s=max(0.0, (instant(now) - instant(heartbeat_at)).total_seconds()),
    )
