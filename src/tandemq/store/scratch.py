"""Tables for one run, under a prefix that nobody else has: made, measured with bare statements, dropped."""
# ruff: noqa: S608 - table names are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from tandemq.core.errors import StoreRefused, StoreUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.store import engines, errors
from tandemq.store.dialects import instant
from tandemq.store.errors import Kind
from tandemq.store.migrate import connected, migrate

GRANTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP, CREATE VIEW"
_TABLE_DENIED = 1142
_DROP_TRIES = 3


@dataclass(frozen=True, slots=True)
class Server:
    """A database server; ``unsafe`` names settings under which it may forget what it has committed, "" for none."""

    version: str
    unsafe: str


class Bare:
    """Statements without tandemq around them, on one connection."""

    def __init__(self, connection: sa.Connection, dialect: str, table: str) -> None:
        self._connection, self._dialect, self._table = connection, dialect, table

    def select(self) -> None:
        """One round trip."""
        self._connection.exec_driver_sql("SELECT 1").scalar()

    def commit(self) -> None:
        """One row inserted and committed, in one round trip."""
        self._connection.exec_driver_sql(f"INSERT INTO {self._table} (filler) VALUES ('{'x' * 100}')")

    def server(self) -> Server:
        """What answers, and whether its commits are for good."""
        if self._dialect == "sqlite":
            return Server(f"SQLite {self._connection.exec_driver_sql('SELECT sqlite_version()').scalar()}", "")
        names = "@@version, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog"
        version, flush, has_binlog, sync = self._connection.exec_driver_sql(f"SELECT {names}").one()
        unsafe = [] if int(flush) == 1 else [f"innodb_flush_log_at_trx_commit = {flush}"]
        unsafe += [f"sync_binlog = {sync}"] if int(has_binlog) and int(sync) != 1 else []
        kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
        return Server(f"{kind} {version.split('-')[0]}", ", ".join(unsafe))


class Scratch:
    """All tables of the settings' prefix. The prefix must be new: ``drop`` takes whatever begins with it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bare = f"{settings.table_prefix}bare"

    def create(self) -> None:
        """Migrate, and one table more for ``bare``. What was made before an error stays until ``drop``.

        StoreRefused names the grant if the user may not make, or not drop, tables.
        """
        with _naming_the_grant(self._settings):
            with connected(self._settings) as (connection, dialect):
                serial = "INTEGER PRIMARY KEY" if dialect == "sqlite" else "BIGINT AUTO_INCREMENT PRIMARY KEY"
                make = f"CREATE TABLE {self._bare} (n {serial}, filler VARCHAR(100) NOT NULL)"
                make += "" if dialect == "sqlite" else " ENGINE=InnoDB"
                connection.exec_driver_sql(make)
                # Before there is more of it: what is made here must also go.
                connection.exec_driver_sql(f"DROP TABLE {self._bare}")
                connection.exec_driver_sql(make)
            migrate(self._settings)

    @contextmanager
    def bare(self) -> Iterator[Bare]:
        """A connection for bare statements."""
        with connected(self._settings) as (connection, dialect):
            yield Bare(connection, dialect, self._bare)

    def drained(self, task_type: str) -> tuple[int, float]:
        """How many tasks of the type succeeded, and the seconds from the first one's start to the last one's end."""
        sql = (
            f"SELECT COUNT(*), MIN(started_at), MAX(completed_at) FROM {self._settings.table_prefix}tasks"
            f" WHERE task_type = '{task_type}' AND status = '{Status.SUCCEEDED}'"
        )
        with connected(self._settings) as (connection, _):
            n, first, last = connection.exec_driver_sql(sql).one()
        return n, (instant(last) - instant(first)).total_seconds() if n else 0.0

    def drop(self) -> list[str]:
        """Drop every table and view of the prefix; their names. May be repeated."""
        for left in range(_DROP_TRIES, 0, -1):
            try:
                with connected(self._settings) as (connection, _):
                    return self._drop(connection)
            except StoreUnavailable as locked:
                # A worker that was killed may hold a lock until the server notices.
                if left == 1 or errors.classify(locked.__cause__ or locked) not in {Kind.LOCK_WAIT, Kind.CONFLICT}:
                    raise
        return []

    def _drop(self, connection: sa.Connection) -> list[str]:
        inspector = sa.inspect(connection)
        found = [("VIEW", name) for name in inspector.get_view_names()]
        found += [("TABLE", name) for name in inspector.get_table_names()]
        ours = [(kind, name) for kind, name in found if name.startswith(self._settings.table_prefix)]
        for kind, name in ours:
            connection.exec_driver_sql(f"DROP {kind} IF EXISTS {name}")
        return [name for _, name in ours]


@contextmanager
def _naming_the_grant(settings: Settings) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as refused:
        cause = refused.__cause__
        if cause is None or errors.code(cause) != _TABLE_DENIED:
            raise
        raise StoreRefused(
            f"the database user may not do this: {errors.original(cause).args[-1]}. It needs"
            f" GRANT {GRANTS} ON `{engines.url_of(settings).database}`.* TO that user; or name another database"
        ) from refused
