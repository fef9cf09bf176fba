"""A handler's own transaction: what it writes, what it enqueues on it, and its task's success commit together.

The guarded finish is the last statement before the COMMIT: earlier it would keep the row from a cancel and from the
flush of its neighbours for as long as the handler runs. It touches neither the claims row nor the counters: the worker
does that after the commit. Zero rows matched mean that the lease was lost: everything is rolled back.

The promise is all or nothing, so whatever has taken a part away without the handler's word spoils all of it: a refused
commit, a deadlock (InnoDB rolls back everything, and the next statement silently begins a new transaction).
"""

from __future__ import annotations

import contextlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from tandemq.core.crash import crash_point
from tandemq.core.errors import LeaseLost, StoreUnknown
from tandemq.core.task import Lease
from tandemq.store import engines, errors
from tandemq.store.base import StoreBase
from tandemq.store.dialects import MYSQL
from tandemq.store.errors import Kind
from tandemq.store.transaction import has_hung_up, sendable

#: After the time limit of its task the transaction of a handler that is still there may be cut by the server.
SPARE_S = 30
#: For a handler without a time limit: a day, as the server's own default is eight hours.
LONGEST_S = 86_400
#: So often is a lock waited for that somebody holds on the task's row; the transaction stands meanwhile.
LOCK_WAITS = 3
ERRORS = (sa.exc.SQLAlchemyError, OSError)
#: A savepoint that is gone: the transaction around it was rolled back.
NO_SAVEPOINT = 1305
_TX = "tandemq_tx"


class TaskTransaction:
    """Made by ``HandlingStore.transaction``; ``connection`` is the handler's until ``succeed`` or ``close``."""

    def __init__(self, store: HandlingStore, connection: sa.Connection) -> None:
        self._store, self.connection = store, connection
        self._ours = self._refused = False
        self._lost_part: BaseException | None = None
        connection.info[_TX] = self
        connection.begin()
        event.listen(connection, "commit", self._guard)
        event.listen(connection, "rollback", self._rolled_back)

    def succeed(self, lease: Lease, result: str | None, note: str = "") -> None:
        """Record the success and commit everything; see the protocol."""
        if self.connection.closed:
            raise RuntimeError("the handler has closed tx: return, and tandemq commits and closes it")
        if self._refused:
            raise RuntimeError(_REFUSED)
        if self._lost_part is not None:
            raise RuntimeError(
                "the database rolled back what the handler had written, and the handler went on: let the error pass, or"
                " call tx.rollback() and write all of it again"
            ) from self._lost_part
        if self._finish(lease, result, note) != 1:
            self.connection.rollback()
            raise LeaseLost(f"the lease of task {lease.id} was lost: what its handler wrote was rolled back")
        crash_point("finish.before_tx_commit")
        self._ours = True
        try:
            self.connection.commit()
        except ERRORS as cause:
            self._refused = True  # SQLAlchemy takes it for over, whatever the server has made of it
            if errors.commit_is_unknown(cause):
                raise StoreUnknown(f"the answer to the COMMIT of task {lease.id} was lost: {cause}") from cause
            raise
        crash_point("finish.after_tx_commit")

    def close(self, *, broken: bool = False) -> None:
        """Roll back what was not committed. ``broken``: an exception fell into the middle of a statement, perhaps."""
        with contextlib.suppress(*ERRORS):
            if not (self.connection.closed or self.connection.invalidated):
                self.connection.info.pop(_TX, None)  # of an invalidated one it is gone, and asking would connect anew
            if broken or self._refused or self._has_hung_up():
                # The pool would hand on an open transaction, or log an error of its own about a dead connection.
                self.connection.invalidate()
            self.connection.close()

    def spoil(self, cause: BaseException) -> None:
        """The server has rolled back everything, at a statement of the handler's."""
        self._lost_part = cause

    def _finish(self, lease: Lease, result: str | None, note: str) -> int:
        has_result, has_note = [lease.id] if result is not None else [], [lease.id] if note else []
        sql = self._store.sql.succeed([(lease.id, lease.token)], has_result, has_note)
        params = (*([] if result is None else [result]), *([note] if note else []))
        for left in range(LOCK_WAITS, 0, -1):
            try:
                return sendable(lambda: self.connection.exec_driver_sql(sql, params)).rowcount
            except sa.exc.DBAPIError as cause:
                if errors.classify(cause) is not Kind.LOCK_WAIT or self._lost_part is not None or left == 1:
                    raise
        raise AssertionError

    def _has_hung_up(self) -> bool:
        is_mysql = self._store.db.dialect is MYSQL and not (self.connection.closed or self.connection.invalidated)
        return is_mysql and has_hung_up(self.connection.connection.dbapi_connection)

    def _guard(self, _connection: sa.Connection) -> None:
        if not self._ours:
            self._refused = True
            raise RuntimeError(_REFUSED)

    def _rolled_back(self, _connection: sa.Connection) -> None:
        self._lost_part = None


_REFUSED = "tx is committed by tandemq, together with the success of the task: return instead"


class HandlingStore(StoreBase):
    """``transaction`` of ``store.protocol.Leasing``."""

    def transaction(self, limit_s: float | None) -> TaskTransaction:
        """A transaction for a handler that may take ``limit_s``; see the protocol."""
        engine = self.db.handlers_engine(_watch)
        try:
            connection = engine.connect()
            try:
                if self.db.dialect is MYSQL:
                    self._prepare(connection, LONGEST_S if limit_s is None else min(LONGEST_S, int(limit_s) + SPARE_S))
                else:
                    engines.take_time(connection.connection.info, self.db.clock)
                return TaskTransaction(self, connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
        except ERRORS as cause:
            kind = errors.classify(cause)
            if kind is Kind.GONE:
                self.db.drop_connections()
            raise self.db.translate(cause, kind) from cause

    def _prepare(self, connection: sa.Connection, idle_s: int) -> None:
        """What the last handler may have changed is set back, and this one may think between two statements."""
        is_mariadb = connection.connection.info.get("is_mariadb")
        settings = [f"SESSION {name} = {value}" for name, value in engines.HANDLERS_SESSION.items()]
        settings += [f"SESSION {'tx' if is_mariadb else 'transaction'}_isolation = 'READ-COMMITTED'"]
        settings += [f"SESSION wait_timeout = {idle_s}", "@tandemq_locks = RELEASE_ALL_LOCKS()"]
        if is_mariadb:
            settings.append(f"SESSION idle_transaction_timeout = {idle_s}")
        if self.db.is_test_clock:
            settings.append(f"@@session.timestamp = {self.db.clock.now().timestamp():.6f}")
        connection.exec_driver_sql("SET " + ", ".join(settings))
        connection.rollback()  # SQLAlchemy has begun a transaction for it


def _watch(engine: sa.Engine) -> None:
    """Have every error of a handler's statement looked at, caught by the handler or not."""

    def look(context: Any) -> None:
        connection = context.connection
        tx = None if connection is None or connection.closed or connection.invalidated else connection.info.get(_TX)
        if tx is not None and _rolled_all_back(context.original_exception, connection.info):
            tx.spoil(context.original_exception)

    event.listen(engine, "handle_error", look)


def _rolled_all_back(cause: BaseException, info: dict[str, Any]) -> bool:
    kind = errors.classify(cause)
    if kind is Kind.LOCK_WAIT:
        return bool(info.get("rolls_back_on_timeout"))
    return kind in {Kind.CONFLICT, Kind.GONE} or errors.code(cause) == NO_SAVEPOINT
