"""Asks the database for its settings and for the rows behind ids; judges nothing."""
# ruff: noqa: S608 - names of variables and tables are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from tandemq.core.errors import NotMigrated, StoreRefused, StoreUnavailable
from tandemq.core.lifecycle import Status
from tandemq.store import errors, migrate
from tandemq.store.base import StoreBase
from tandemq.store.database import Abandon, LockWait
from tandemq.store.dialects import MYSQL, id_list, instant
from tandemq.store.errors import Kind
from tandemq.store.facts import DatabaseFacts, Entry
from tandemq.store.transaction import Tx

#: Ids in one look-up.
CHUNK = 1000
SERVER = (
    "version", "innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "binlog_format", "read_only",
    "super_read_only", "innodb_read_only", "max_connections", "max_allowed_packet", "init_connect",
)  # fmt: skip
SESSION = (
    "transaction_isolation", "tx_isolation", "autocommit", "innodb_lock_wait_timeout", "time_zone",
    "character_set_client", "character_set_connection", "idle_transaction_timeout", "wait_timeout",
    "max_allowed_packet", "sql_mode",
)  # fmt: skip
STATUS = ("Threads_connected", "Max_used_connections")


class DiagnosingStore(StoreBase):
    """``store.facts.Diagnosing``."""

    def server_settings(self) -> Mapping[str, str] | None:
        """See the protocol."""
        return {} if self.db.dialect is not MYSQL else self._variables("GLOBAL VARIABLES", SERVER)

    def database_facts(self) -> DatabaseFacts:
        """See the protocol."""
        missing, unknown = self._migrations()
        if self.db.dialect is not MYSQL:
            return DatabaseFacts(
                dialect="sqlite",
                version=self._texts("SELECT sqlite_version()")[0][0],
                session={n: self._texts(f"PRAGMA {n}")[0][0] for n in ("journal_mode", "synchronous")},
                missing=missing,
                unknown=unknown,
                finds_rows=self._finds_rows(),
            )
        return DatabaseFacts(
            dialect="mysql",
            version=self._texts("SELECT VERSION()")[0][0],
            server=self.server_settings(),
            session=self._variables("SESSION VARIABLES", SESSION),
            status=self._variables("GLOBAL STATUS", STATUS),
            tables=self._tables(),
            charsets=self._charsets(),
            missing=missing,
            unknown=unknown,
            finds_rows=self._finds_rows(),
        )

    def entries(self, ids: Collection[int]) -> dict[int, Entry]:
        """See the protocol."""
        found: dict[int, Entry] = {}
        rest = iter(ids)
        while some := list(islice(rest, CHUNK)):
            sql = (
                f"SELECT id, status, run_at, run_at <= {self.db.dialect.now} FROM {self.sql.tasks}"
                f" {self.db.dialect.primary} WHERE id IN ({id_list(some)})"
            )
            for task_id, status, run_at, due in self.db.read(lambda tx, sql=sql: tx.rows(sql)):  # type: ignore[misc]
                found[task_id] = Entry(Status(status), instant(run_at), bool(due))
        return found

    def _variables(self, what: str, names: Iterable[str]) -> dict[str, str] | None:
        """SHOW needs no privilege on either server, and leaves out what a version does not have."""
        wanted = ", ".join(f"'{name}'" for name in names)
        rows = self._answer(f"SHOW {what} WHERE Variable_name IN ({wanted})")
        return None if rows is None else {_text(name).lower(): _text(value) for name, value in rows}

    def _tables(self) -> dict[str, str] | None:
        rows = self._answer(
            "SELECT table_name, engine FROM information_schema.tables"
            f" WHERE table_schema = DATABASE() AND table_name IN ({self._own_tables()}) AND table_type = 'BASE TABLE'"
        )
        return None if rows is None else {_text(name): _text(engine) for name, engine in rows}

    def _charsets(self) -> tuple[str, ...] | None:
        rows = self._answer(
            "SELECT table_name, column_name, character_set_name FROM information_schema.columns"
            f" WHERE table_schema = DATABASE() AND table_name IN ({self._own_tables()})"
            " AND character_set_name NOT IN ('utf8mb4', 'ascii') ORDER BY table_name, ordinal_position"
        )
        return None if rows is None else tuple(f"{_text(t)}.{_text(c)} ({_text(name)})" for t, c, name in rows)

    def _own_tables(self) -> str:
        s = self.sql
        names = (s.tasks, s.claims, s.attempts, s.queues, s.workers, s.counts, s.meta, s.leaders, s.migrations)
        return ", ".join(f"'{name}'" for name in names)

    def _migrations(self) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        known = [m.name for m in migrate.files(self.db.dialect.name)]
        try:
            rows = self._answer(f"SELECT name FROM {self.sql.migrations} ORDER BY name")
        except NotMigrated:
            return tuple(known), ()
        if rows is None:
            return None, ()
        applied = [_text(row[0]) for row in rows]
        return tuple(n for n in known if n not in applied), tuple(n for n in applied if n not in known)

    def _finds_rows(self) -> bool | None:
        sql = f"UPDATE {self.sql.meta} SET value = value WHERE name = 'install_id'"

        def work(tx: Tx) -> bool:
            raise Abandon(tx.write(sql) == 1)

        try:
            return self.db.write(work, lock_waits=0)
        except (StoreUnavailable, StoreRefused, NotMigrated, LockWait):
            # Read-only, a missing grant, no table: other findings name that.
            return None

    def _texts(self, sql: str) -> list[list[str]]:
        return [[_text(value) for value in row] for row in self.db.read(lambda tx: tx.rows(sql))]

    def _answer(self, sql: str) -> Sequence[Any] | None:
        """The rows, or None where the server does not answer such a question (to this user)."""
        try:
            return self.db.read(lambda tx: tx.rows(sql))
        except StoreRefused:
            return None
        except StoreUnavailable as away:
            if away.__cause__ is not None and errors.classify(away.__cause__) is Kind.DENIED:
                return None
            raise


def _text(value: Any) -> str:
    """Some servers give texts of their catalogue as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
