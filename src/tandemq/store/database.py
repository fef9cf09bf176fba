"""Connections and transactions: the only place that opens, commits, retries and throws away connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from tandemq.core.clock import Clock, SystemClock
from tandemq.core.crash import crash_point
from tandemq.core.errors import NotMigrated, PayloadTooLarge, StoreRefused, StoreUnknown, TandemQError
from tandemq.core.ids import new_random
from tandemq.core.settings import Settings
from tandemq.store import engines, errors
from tandemq.store.dialects import MYSQL, SQLITE, Dialect
from tandemq.store.errors import Kind

T = TypeVar("T")
Work = Callable[["Tx"], T]

#: How often a transaction that lost against others (1213, 1020, "database is locked") is sent again.
CONFLICT_TRIES = 20
#: The same for rows that stayed locked for innodb_lock_wait_timeout (3 s).
LOCK_WAIT_TRIES = 4
#: And for how long in all: SQLite waits 15 s before it says "locked".
TRY_FOR_S = 20.0
#: The smallest max_allowed_packet that servers are run with: a statement below it needs no question.
SMALL_PACKET = 1024 * 1024


class Tx:
    """An open transaction: SQL text and parameters in, rows and counts out."""

    __slots__ = ("connection", "dialect")

    def __init__(self, connection: sa.Connection, dialect: Dialect) -> None:
        self.connection, self.dialect = connection, dialect

    def rows(self, sql: str, params: Sequence[Any] = ()) -> Sequence[Any]:
        """All rows of a SELECT."""
        return self._run(sql, params).fetchall()

    def one(self, sql: str, params: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._run(sql, params).first()

    def write(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a write; how many rows it *matched* (CLIENT_FOUND_ROWS), changed or not."""
        self.check_size(sql, params)
        return self._run(sql, params).rowcount

    def insert(self, sql: str, params: Sequence[Any]) -> int:
        """Run an INSERT; the driver's lastrowid."""
        self.check_size(sql, params)
        return self._run(sql, params).lastrowid

    def _run(self, sql: str, params: Sequence[Any]) -> sa.CursorResult[Any]:
        try:
            return self.connection.exec_driver_sql(sql, tuple(params))
        except (UnicodeError, OverflowError) as cause:
            # The driver could not even send it: a lone surrogate, or an integer beyond 64 bits.
            raise StoreRefused(f"a value cannot be sent to the database: {cause}") from cause

    def check_size(self, sql: str, params: Sequence[Any]) -> None:
        """PayloadTooLarge if the server would not take this statement.

        A server that is sent too much may cut the connection before it says why: asked before, it is a clear answer.
        """
        texts = [p for p in params if type(p) is str]
        at_most = len(sql) + 8 * sum(map(len, texts))
        limit = self._max_packet(at_most)
        if not limit or at_most < limit:
            return
        size = len(sql) + sum(map(_sent_size, texts))
        if size >= limit:
            raise PayloadTooLarge(
                f"a statement of {size} bytes is needed; the server's max_allowed_packet is {limit}", field="payload"
            )

    def _max_packet(self, size: int) -> int:
        """The server's limit in bytes, 0 for none; of a caller's connection it is asked when ``size`` may matter."""
        known: int = self.connection.info.get("max_packet", 0)
        if known or self.dialect is not MYSQL or size < SMALL_PACKET:
            return known
        return int(self.one("SELECT @@max_allowed_packet")[0])


def _sent_size(text: str) -> int:
    """Bytes of a text once the driver has escaped it."""
    return 2 + len(text.encode("utf-8", "replace")) + sum(text.count(c) for c in "\"\\'\n\r\x00\x1a")


class Abandon(Exception):  # not an error: control flow inside this package
    """Raised by the work of a transaction to roll back and answer ``value``."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class LockWait(Exception):
    """A row stayed locked; raised only to a caller of ``write`` that asked for it (``lock_waits=0``)."""


class _Failed(Exception):
    """One try failed. ``unknown``: during COMMIT."""

    def __init__(self, cause: BaseException, *, unknown: bool = False) -> None:
        super().__init__()
        self.cause, self.unknown = cause, unknown
        self.kind = errors.classify(cause)


class _Patience:
    """Whether a transaction that failed may be sent again."""

    def __init__(self, lock_waits: int, *, give_up_at: float) -> None:
        self._left = {Kind.CONFLICT: CONFLICT_TRIES, Kind.LOCK_WAIT: lock_waits, Kind.GONE: 1}
        self._give_up_at = give_up_at
        self.tries = 0

    def allows(self, failed: _Failed, now: float) -> bool:
        """Count this failure. A lost connection is worth a fresh one at once, a full pool no second wait."""
        self.tries += 1
        left = 0 if isinstance(failed.cause, sa.exc.TimeoutError) else self._left.get(failed.kind, 0)
        self._left[failed.kind] = left - 1
        return left > 0 and now < self._give_up_at


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_connections() -> None:
    # A forked child must not speak on its parent's sockets, nor close them.
    for database in list(_databases):
        database.engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)


class Database:
    """One pool. Thread-safe; a forked child starts with an empty pool."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.url = engines.url_of(settings)
        self.dialect = SQLITE if self.url.get_backend_name() == "sqlite" else MYSQL
        self.clock = clock or SystemClock()
        self._wall = SystemClock()
        self._rng = new_random()
        self._test_clock = clock is not None and self.dialect is MYSQL
        self.engine = engines.build(self.url, self.clock)
        event.listen(self.engine, "handle_error", _mark_disconnect)
        _databases.add(self)

    def write(
        self, work: Work[T], *, repeatable: bool = False, lock_waits: int = LOCK_WAIT_TRIES, crash: str = ""
    ) -> T:
        """Run ``work`` in one transaction and commit; whole transactions are sent again when they lost a conflict.

        ``work`` may run several times and must have no effect outside its transaction. A COMMIT whose answer was lost
        raises StoreUnknown, unless the work is ``repeatable`` (sent twice does what sent once does): then it is sent
        again.
        """
        return self._run(work, write=True, repeatable=repeatable, lock_waits=lock_waits, crash=crash)

    def read(self, work: Work[T]) -> T:
        """Run ``work`` in one READ COMMITTED transaction without locks."""
        return self._run(work, write=False, repeatable=True, lock_waits=LOCK_WAIT_TRIES, crash="")

    def close(self) -> None:
        """Drop all connections."""
        self.engine.dispose()

    def pause(self, turn: int) -> None:
        """Wait a moment, longer at every turn, jittered, in real time."""
        self._wall.sleep(self._rng.uniform(0.001, min(0.25, 0.008 * (turn + 1))))

    def translate(self, cause: BaseException, kind: Kind) -> BaseException:
        """The error that a caller sees for a driver's error."""
        if kind in {Kind.REFUSED, Kind.DUPLICATE}:
            return StoreRefused(f"the database refused a statement: {errors.original(cause)}")
        if kind is Kind.NOT_MIGRATED:
            return NotMigrated(
                f"the database lacks tandemq's tables or a migration ({errors.original(cause)}); run: tandemq migrate"
            )
        if kind is Kind.TOO_LARGE:
            return PayloadTooLarge(f"over the server's packet limit: {errors.original(cause)}", field="payload")
        return errors.unavailable(self.url.render_as_string(hide_password=True), cause)

    def _run(self, work: Work[T], *, write: bool, repeatable: bool, lock_waits: int, crash: str) -> T:
        patience = _Patience(lock_waits, give_up_at=self._wall.monotonic() + TRY_FOR_S)
        while True:
            try:
                return self._once(work, write=write, crash=crash)
            except _Failed as failed:
                cause = failed.cause
                if failed.unknown and not repeatable:
                    text = str(errors.unavailable(self.url.render_as_string(hide_password=True), cause))
                    raise StoreUnknown(f"the answer to COMMIT was lost; {text}") from cause
                if failed.kind is Kind.LOCK_WAIT and lock_waits == 0:
                    raise LockWait from cause
                if not patience.allows(failed, self._wall.monotonic()):
                    raise self.translate(cause, failed.kind) from cause
                if failed.kind is not Kind.GONE:
                    self.pause(patience.tries)

    def _once(self, work: Work[T], *, write: bool, crash: str) -> T:
        connection = self._checkout()
        committing = False
        try:
            self._begin(connection, write)
            value = work(Tx(connection, self.dialect))
            if crash:
                crash_point(crash)
            committing = True
            connection.commit()
        except Abandon as abandoned:
            self._roll_back(connection)
            return abandoned.value  # type: ignore[no-any-return]
        except (SQLAlchemyError, OSError) as cause:
            self._discard(connection, cause)
            unknown = committing and errors.commit_is_unknown(cause)
            raise _Failed(cause, unknown=unknown) from cause
        except (TandemQError, LockWait):
            self._roll_back(connection)
            raise
        except BaseException:
            # A signal, or a time limit raised in the middle of a read: the protocol may be out of step.
            _quietly(connection.invalidate)
            raise
        finally:
            _quietly(connection.close)
        return value

    def _checkout(self) -> sa.Connection:
        try:
            return self.engine.connect()
        except (SQLAlchemyError, OSError, RuntimeError) as cause:
            raise _Failed(cause) from cause

    def _begin(self, connection: sa.Connection, write: bool) -> None:
        if self.dialect is SQLITE:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
            engines.take_time(connection, self.clock)
        elif self._test_clock:
            connection.exec_driver_sql(f"SET @@session.timestamp = {self.clock.now().timestamp():.6f}")

    def _discard(self, connection: sa.Connection, cause: BaseException) -> None:
        if errors.classify(cause) in {Kind.GONE, Kind.TOO_LARGE}:
            _quietly(connection.invalidate)
        else:
            self._roll_back(connection)

    def _roll_back(self, connection: sa.Connection) -> None:
        try:
            connection.rollback()
        except (SQLAlchemyError, OSError):
            _quietly(connection.invalidate)


def _quietly(action: Callable[[], object]) -> None:
    with suppress(SQLAlchemyError, OSError):  # the connection is being thrown away: nothing can be done with it
        action()


def _mark_disconnect(context: Any) -> None:
    # A server that turned read-only (1290) or lost its quorum (1047) keeps its connections: all of the pool must go,
    # else the pool stays on the old primary after a failover.
    if errors.classify(context.original_exception) is Kind.GONE:
        context.is_disconnect = True
