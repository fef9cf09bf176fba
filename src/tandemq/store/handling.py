"""A handler's own transaction: what it writes, what it enqueues on it, and its task's success commit together.

The guarded finish is the last statement before the COMMIT: earlier it would keep the row from a cancel and from the
flush of its neighbours for as long as the handler runs. It touches neither the claims row nor the counters: the worker
does that after the commit. Zero rows matched mean that the lease was lost: everything is rolled back.
"""

from __future__ import annotations

import contextlib

import sqlalchemy as sa
from sqlalchemy import event

from tandemq.core.crash import crash_point
from tandemq.core.errors import LeaseLost, StoreUnknown
from tandemq.core.task import Lease
from tandemq.store import engines, errors
from tandemq.store.base import StoreBase
from tandemq.store.dialects import MYSQL
from tandemq.store.transaction import has_hung_up, sendable

#: After the time limit of its task the transaction of a handler that is still there may be cut by the server.
SPARE_S = 30
#: For a handler without a time limit: a day, as the server's own default is eight hours.
LONGEST_S = 86_400


class TaskTransaction:
    """Made by ``HandlingStore.transaction``; ``connection`` is the handler's until ``succeed`` or ``close``."""

    def __init__(self, store: HandlingStore, connection: sa.Connection) -> None:
        self._store, self.connection = store, connection
        self._ours = False
        event.listen(connection, "commit", self._guard)

    def succeed(self, lease: Lease, result: str | None, note: str = "") -> None:
        """Record the success and commit everything; see the protocol."""
        has_result, has_note = [lease.id] if result is not None else [], [lease.id] if note else []
        sql = self._store.sql.succeed([(lease.id, lease.token)], has_result, has_note)
        params = (*([] if result is None else [result]), *([note] if note else []))
        done = sendable(lambda: self.connection.exec_driver_sql(sql, params))
        if done.rowcount != 1:
            self.connection.rollback()
            raise LeaseLost(f"the lease of task {lease.id} was lost: what its handler wrote was rolled back")
        crash_point("finish.before_tx_commit")
        self._ours = True
        try:
            self.connection.commit()
        except self._store.tx_errors as cause:
            if errors.commit_is_unknown(cause):
                self.connection.invalidate()
                raise StoreUnknown(f"the answer to the COMMIT of task {lease.id} was lost: {cause}") from cause
            raise
        crash_point("finish.after_tx_commit")

    def close(self, *, broken: bool = False) -> None:
        """Roll back what was not committed. ``broken``: an exception fell into the middle of a statement, perhaps."""
        with contextlib.suppress(*self._store.tx_errors):
            if broken or self._has_hung_up():
                self.connection.invalidate()
            self.connection.close()

    def _has_hung_up(self) -> bool:
        """The pool would roll back on a dead connection, and log that as an error with its traceback."""
        is_mysql = self._store.db.dialect is MYSQL and not self.connection.invalidated
        return is_mysql and has_hung_up(self.connection.connection.dbapi_connection)

    def _guard(self, _connection: sa.Connection) -> None:
        if not self._ours:
            raise RuntimeError("tx is committed by tandemq, together with the success of the task: return instead")


class HandlingStore(StoreBase):
    """``transaction`` of ``store.protocol.Leasing``."""

    @property
    def tx_errors(self) -> tuple[type[BaseException], ...]:
        """What SQLAlchemy and the driver below it may raise."""
        return (sa.exc.SQLAlchemyError, OSError)

    def transaction(self, limit_s: float | None) -> TaskTransaction:
        """A transaction for a handler that may take ``limit_s``; see the protocol."""
        engine = self.db.handlers_engine()
        try:
            connection = engine.connect()
            try:
                if self.db.dialect is MYSQL:
                    self._allow(connection, LONGEST_S if limit_s is None else min(LONGEST_S, int(limit_s) + SPARE_S))
                else:
                    engines.take_time(connection.connection.info, self.db.clock)
                return TaskTransaction(self, connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
        except self.tx_errors as cause:
            raise self.db.translate(cause, errors.classify(cause)) from cause

    def _allow(self, connection: sa.Connection, idle_s: int) -> None:
        """A handler may think between two statements: it must not be cut as a client of ours that was stopped is."""
        settings = [f"SESSION wait_timeout = {idle_s}"]
        if connection.connection.info.get("is_mariadb"):
            settings.append(f"SESSION idle_transaction_timeout = {idle_s}")
        if self.db.is_test_clock:
            settings.append(f"@@session.timestamp = {self.db.clock.now().timestamp():.6f}")
        connection.exec_driver_sql("SET " + ", ".join(settings))
