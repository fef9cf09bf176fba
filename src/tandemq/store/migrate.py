"""Numbered plain-SQL migrations from ``sql/``: applied once each, by one process at a time, or printed for a DBA."""
# ruff: noqa: S608 - table names are put in; values are bound parameters

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tandemq.core.clock import SystemClock
from tandemq.core.errors import ConfigurationError, NotMigrated, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.settings import Settings
from tandemq.store import engines, errors
from tandemq.store.errors import Kind

LOCK_WAIT_S = 60
#: Altering a big table takes its time.
READ_TIMEOUT_S = 24 * 3600
_PREFIX = "tandemq_"
DUPLICATE_COLUMN = 1060


class Migration(NamedTuple):
    """One file; ``name`` (``0001_tasks``) is what is recorded."""

    name: str
    path: Path

    def text(self, prefix: str) -> str:
        """The file with the tables' prefix put in."""
        return self.path.read_text(encoding="utf-8").replace(_PREFIX, prefix)


def sql_dir() -> Path:
    """Where the files are: beside this package in a wheel, at the root of a source checkout."""
    here = Path(__file__).resolve()
    for candidate in (here.parents[1] / "sql", here.parents[3] / "sql"):
        if (candidate / "mysql").is_dir():
            return candidate
    raise ConfigurationError("the SQL files of tandemq are missing; install it again")


def files(dialect: str) -> list[Migration]:
    """Migrations of ``mysql`` (MariaDB too) or ``sqlite``, in order."""
    if dialect not in {"mysql", "sqlite"}:
        raise ConfigurationError(f"no SQL for {dialect!r}; use mysql or sqlite")
    return [Migration(path.stem, path) for path in sorted((sql_dir() / dialect).glob("[0-9]*.sql"))]


def statements(text: str) -> list[str]:
    """The statements of a file. Comments are whole lines; a semicolon ends a line and a statement."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in re.split(r";[ \t]*(?:\n|$)", kept) if part.strip()]


def render(settings: Settings, dialect: str, only: Collection[str] | None = None) -> str:
    """All migrations (or ``only`` those) as one script that a DBA can run by hand, records included."""
    parts = [
        f"-- tandemq schema for {dialect}, tables {settings.table_prefix}*. Apply to an empty or a tandemq database.\n"
    ]
    if dialect == "mysql":
        parts.append("SET NAMES utf8mb4;\n")
    for migration in [m for m in files(dialect) if only is None or m.name in only]:
        ignore = "OR IGNORE" if dialect == "sqlite" else "IGNORE"
        record = f"INSERT {ignore} INTO {settings.table_prefix}migrations (name) VALUES ('{migration.name}');\n"
        parts += [migration.text(settings.table_prefix).rstrip() + "\n", record]
    return "\n".join(parts)


def pending(settings: Settings) -> list[str]:
    """Names of migrations that are not applied yet; changes nothing."""
    url = engines.url_of(settings)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return [m.name for m in files("sqlite")]  # opening it would create it
    with connected(settings) as (connection, dialect):
        return [m.name for m in files(dialect) if m.name not in _applied(connection, settings)]


def migrate(settings: Settings) -> list[str]:
    """Apply what is missing; returns the names applied now. Safe to call at any time, from any number of processes."""
    with connected(settings) as (connection, dialect):
        with _lock(connection, dialect, settings):
            applied = _applied(connection, settings)
            missing = [m for m in files(dialect) if m.name not in applied]
            for migration in missing:
                for statement in statements(migration.text(settings.table_prefix)):
                    _apply(connection, statement.replace("%", "%%") if dialect == "mysql" else statement)
                # Recorded last: a run that was cut is taken up again, every statement of it may be run twice.
                connection.exec_driver_sql(
                    f"INSERT INTO {settings.table_prefix}migrations (name) VALUES ('{migration.name}')"
                )
        return [m.name for m in missing]


def _apply(connection: sa.Connection, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except SQLAlchemyError as cause:
        # MySQL knows no ADD COLUMN IF NOT EXISTS, and a run that was cut has added the column already.
        if errors.code(cause) != DUPLICATE_COLUMN:
            raise


def _applied(connection: sa.Connection, settings: Settings) -> set[str]:
    """Names applied. ConfigurationError if a table of ours is somebody else's."""
    table = f"{settings.table_prefix}migrations"
    inspector = sa.inspect(connection)
    if not inspector.has_table(table):
        foreign = f"{settings.table_prefix}tasks"
        if inspector.has_table(foreign):
            raise ConfigurationError(
                f"the table {foreign} exists and is not tandemq's (there is no {table} beside it); nothing was changed."
                " Set TANDEMQ_TABLE_PREFIX to another prefix."
            )
        return set()
    if not {"name", "applied_at"} <= {column["name"] for column in inspector.get_columns(table)}:
        raise ConfigurationError(
            f"the table {table} exists and is not tandemq's; nothing was changed."
            " Set TANDEMQ_TABLE_PREFIX to another prefix."
        )
    return {str(row[0]) for row in connection.exec_driver_sql(f"SELECT name FROM {table}")}


@contextmanager
def connected(settings: Settings, read_timeout_s: int = READ_TIMEOUT_S) -> Iterator[tuple[sa.Connection, str]]:
    """A connection for changing the schema, in which every statement commits by itself, and the dialect's name."""
    url = engines.url_of(settings)
    dialect = "sqlite" if url.get_backend_name() == "sqlite" else "mysql"
    if dialect == "sqlite" and url.database:
        Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    engine = engines.build(url, SystemClock(), read_timeout_s=read_timeout_s)
    try:
        with engine.connect() as connection:
            # MySQL commits every CREATE by itself; SQLite's transaction is the one that _lock begins.
            if dialect == "mysql":
                connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection, dialect
    except SQLAlchemyError as cause:
        raise _translated(url, cause) from cause
    finally:
        engine.dispose()


def _translated(url: sa.URL, cause: SQLAlchemyError) -> TandemQError:
    kind = errors.classify(cause)
    if kind in {Kind.GONE, Kind.DENIED, Kind.CONFLICT, Kind.LOCK_WAIT}:
        return errors.unavailable(url.render_as_string(hide_password=True), cause)
    if kind is Kind.NOT_MIGRATED:
        return NotMigrated(f"{errors.original(cause)}; run: tandemq migrate")
    return StoreRefused(f"the migration was refused: {errors.original(cause)}")


@contextmanager
def _lock(connection: sa.Connection, dialect: str, settings: Settings) -> Iterator[None]:
    """One migrating process at a time; what is applied is read again inside."""
    if dialect == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
        return
    # A lock's name is at most 64 characters and belongs to the whole server, not to the database.
    database = connection.exec_driver_sql("SELECT DATABASE()").scalar()
    name = "tandemq:" + hashlib.sha256(f"{database}.{settings.table_prefix}".encode()).hexdigest()[:40]
    if connection.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (name, LOCK_WAIT_S)).scalar() != 1:
        raise StoreUnavailable(f"another process has been migrating for {LOCK_WAIT_S} s; try again")
    try:
        yield
    finally:
        connection.exec_driver_sql("SELECT RELEASE_LOCK(%s)", (name,))
