"""What the user of workers, producers and the API may do with each table: deploy/mysql/grants.sql, asked by trying."""
# ruff: noqa: S608 - names of tables and columns are put in; nothing comes from outside

from __future__ import annotations

from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tandemq.core.errors import StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.store import engines, errors
from tandemq.store.errors import Kind
from tandemq.store.migrate import connected

#: Asking takes milliseconds; behind somebody's ALTER TABLE it waits.
READ_TIMEOUT_S = 60


class Need(NamedTuple):
    """The rights on one table, and a column of it to try UPDATE with."""

    table: str
    column: str
    rights: tuple[str, ...] = ("SELECT", "INSERT", "UPDATE", "DELETE")


_KEPT, _READ = ("SELECT", "INSERT", "UPDATE"), ("SELECT",)
NEEDS: Final = (
    Need("tasks", "status"),
    Need("claims", "worker_id"),
    Need("task_attempts", "ended_at"),
    Need("task_counts", "n"),
    Need("workers", "state"),
    Need("leaders", "holder", _KEPT),
    Need("queues", "queue", _KEPT),
    Need("pauses", "reason"),
    Need("held", "task_id"),
    Need("kills", "lease_token"),
    Need("api_tokens", "name", _KEPT),
    Need("replay_runs", "state", _KEPT),
    Need("replay_items", "task_id", _KEPT),
    Need("meta", "value", ("SELECT", "UPDATE")),
    Need("migrations", "name", _READ),
    Need("tasks_view", "id", _READ),
    Need("audit_log", "n", _KEPT),
)


def lacking(settings: Settings) -> list[str]:
    """Rights that this user lacks, as ``SELECT, DELETE on tandemq_held``. EXPLAIN wants them and does nothing.

    Nothing for SQLite. Raises what ``migrate.pending`` raises.
    """
    if engines.url_of(settings).get_backend_name() == "sqlite":
        return []
    with connected(settings, read_timeout_s=READ_TIMEOUT_S) as (connection, _):
        found = []
        for need in NEEDS:
            name = settings.table_prefix + need.table
            denied = [right for right in need.rights if not _may(connection, _statement(right, name, need.column))]
            if denied:
                found.append(f"{', '.join(denied)} on {name}")
    return found


def demand(settings: Settings) -> None:
    """StoreUnavailable (``denied``), which names every right that is lacking."""
    if missing := lacking(settings):
        refused = StoreUnavailable(sentence(missing))
        refused.denied = True
        raise refused


def sentence(missing: list[str]) -> str:
    """For people."""
    return f"the database user lacks {'; '.join(missing)}; run deploy/mysql/grants.sql as an administrator"


def _statement(right: str, table: str, column: str) -> str:
    return {
        "SELECT": f"EXPLAIN SELECT {column} FROM {table} WHERE FALSE",
        "INSERT": f"EXPLAIN INSERT INTO {table} ({column}) VALUES (NULL)",
        "UPDATE": f"EXPLAIN UPDATE {table} SET {column} = NULL WHERE FALSE",
        "DELETE": f"EXPLAIN DELETE FROM {table} WHERE FALSE",
    }[right]


def _may(connection: sa.Connection, statement: str) -> bool:
    try:
        connection.exec_driver_sql(statement)
    except SQLAlchemyError as cause:
        kind = errors.classify(cause)
        if kind is Kind.DENIED:
            return False
        if kind is not Kind.REFUSED:
            raise
        # The rights are looked at first; what comes after them is of no interest here.
    return True
