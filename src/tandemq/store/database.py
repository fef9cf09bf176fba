"""Connections and transactions: the only place that opens, commits, retries and throws away connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tandemq import metrics
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import NotMigrated, PayloadTooLarge, StoreRefused, StoreUnknown, TandemQError
from tandemq.core.ids import new_random
from tandemq.core.settings import Settings
from tandemq.store import engines, errors
from tandemq.store.dialects import MYSQL, SQLITE
from tandemq.store.errors import Kind
from tandemq.store.transaction import Mismatch, OwnTx, SqliteTx, Unreadable, has_hung_up

T = TypeVar("T")
Work = Callable[[OwnTx], T]

#: How often a transaction that lost against others (1213, 1020, "database is locked") is sent again.
CONFLICT_TRIES = 20
#: The same for rows that stayed locked for innodb_lock_wait_timeout (3 s).
LOCK_WAIT_TRIES = 4
#: And for how long in all: SQLite waits 15 s before it says "locked".
TRY_FOR_S = 20.0


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
        database.forget_connections()


os.register_at_fork(after_in_child=_forget_connections)


class Database:
    """One pool. Thread-safe; a forked child starts with an empty pool."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.url = engines.url_of(settings)
        self.dialect = SQLITE if self.url.get_backend_name() == "sqlite" else MYSQL
        self.clock = clock or SystemClock()
        self._wall = SystemClock()
        self._rng = new_random()
        self.is_test_clock = clock is not None and self.dialect is MYSQL
        self.engine = engines.build(self.url, self.clock)
        self._handlers: sa.Engine | None = None
        self._driver_errors: tuple[type[Exception], ...] = (self.engine.dialect.loaded_dbapi.Error, OSError)
        self._connect_errors = (*self._driver_errors, SQLAlchemyError, RuntimeError)
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

    def handlers_engine(self, prepare: Callable[[sa.Engine], None]) -> sa.Engine:
        """The connections that are lent to handlers; made when the first one asks (two threads may: one is kept)."""
        if self._handlers is None:
            engine = engines.build(self.url, self.clock, for_handlers=True)
            prepare(engine)
            self._handlers = engine
        return self._handlers

    def drop_connections(self) -> None:
        """A server that turned read-only (1290) or lost its quorum (1047) keeps its connections: all of them must go,
        else the pools stay on the old primary after a failover.
        """
        for engine in self._engines():
            self._quietly(engine.dispose)

    def forget_connections(self) -> None:
        """For a forked child: without a word to the server, whose sockets are the parent's."""
        for engine in self._engines():
            engine.dispose(close=False)

    def close(self) -> None:
        """Drop all connections."""
        for engine in self._engines():
            engine.dispose()

    def _engines(self) -> list[sa.Engine]:
        return [engine for engine in (self.engine, self._handlers) if engine is not None]

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
                metrics.database_error(failed.kind.name.lower())
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
        tx: OwnTx | None = None
        try:
            tx = self._open(connection, write, crash)
            value = work(tx)
            if not tx.over:
                tx.commit()
        except Abandon as abandoned:
            self._roll_back(connection, tx)
            return abandoned.value  # type: ignore[no-any-return]
        except self._driver_errors as cause:
            unknown = tx is not None and tx.committing and errors.commit_is_unknown(cause)
            self._discard(connection, tx, cause)
            raise _Failed(cause, unknown=unknown) from cause
        except Unreadable as cause:
            # Answers may be left on the connection, whatever they are.
            self._quietly(connection.invalidate)
            if tx is not None and tx.committing:
                raise StoreUnknown(f"the answer of the database cannot be read: {cause}") from cause
            raise StoreRefused(f"the answer of the database cannot be read: {cause}") from cause
        except (TandemQError, LockWait, Mismatch):
            self._roll_back(connection, tx)
            raise
        except BaseException:
            # A signal, or a time limit raised in the middle of a read: the protocol may be out of step.
            self._quietly(connection.invalidate)
            raise
        finally:
            self._quietly(connection.close)
        return value

    def _checkout(self) -> sa.PoolProxiedConnection:
        """The driver's connection: SQLAlchemy's own costs 45 to 165 us a statement (measured), and is not needed."""
        try:
            while True:
                connection = self.engine.raw_connection()
                if self.dialect is SQLITE or not has_hung_up(connection.dbapi_connection):
                    return connection
                connection.invalidate()
                connection.close()
        except self._connect_errors as cause:
            raise _Failed(cause) from cause

    def _open(self, connection: sa.PoolProxiedConnection, write: bool, crash: str) -> OwnTx:
        cursor = connection.cursor()
        if self.dialect is SQLITE:
            tx: OwnTx = SqliteTx(cursor, connection.info, SQLITE, writes=write, crash=crash)
            if write:
                cursor.execute("BEGIN IMMEDIATE")
                tx.begun = True
            engines.take_time(connection.info, self.clock)
            return tx
        if self.is_test_clock:
            cursor.execute(f"SET @@session.timestamp = {self.clock.now().timestamp():.6f}")
        return OwnTx(cursor, connection.info, MYSQL, writes=write, crash=crash)

    def _discard(self, connection: sa.PoolProxiedConnection, tx: OwnTx | None, cause: BaseException) -> None:
        kind = errors.classify(cause)
        if kind not in {Kind.GONE, Kind.TOO_LARGE}:
            self._roll_back(connection, tx)
            return
        self._quietly(connection.invalidate)
        if kind is Kind.GONE:
            self.drop_connections()

    def _roll_back(self, connection: sa.PoolProxiedConnection, tx: OwnTx | None) -> None:
        if tx is None or not tx.begun:
            return
        try:
            connection.rollback()
        except self._driver_errors:
            self._quietly(connection.invalidate)

    def _quietly(self, action: Callable[[], object]) -> None:
        with suppress(SQLAlchemyError, *self._driver_errors):  # being thrown away: nothing can be done with it
            action()
