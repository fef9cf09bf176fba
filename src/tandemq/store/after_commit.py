"""Doing something once the caller's transaction has committed, and never when it was rolled back."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from tandemq.core.errors import InvalidType

Callback = Callable[[], None]

_log = logging.getLogger("tandemq.store")
#: What waits for the commit of each session or connection; the listeners are added once per object.
_waiting: weakref.WeakKeyDictionary[Any, list[Callback]] = weakref.WeakKeyDictionary()


def resolve(transaction: Any) -> sa.Connection | Session:
    """What a caller may pass: a Connection, a Session, or a scoped_session (its session of this thread)."""
    if isinstance(transaction, sa.Connection | Session):
        return transaction
    if callable(transaction) and hasattr(transaction, "registry"):
        return resolve(transaction())
    raise InvalidType(
        f"connection must be a SQLAlchemy Connection or Session, not {type(transaction).__name__}"
        " (of an AsyncSession pass .sync_session inside run_sync)",
        field="connection",
    )


def connection_of(transaction: Any) -> sa.Connection:
    """The connection that the caller's transaction runs on; a Session's is begun if it was not."""
    found = resolve(transaction)
    return found.connection() if isinstance(found, Session) else found


def call_after_commit(transaction: Any, then: Callback) -> None:
    """Call ``then`` at the next commit of the caller's transaction; forget it at a rollback.

    Session: after the outermost commit, not at the release of a savepoint. Connection: SQLAlchemy only tells of a
    commit just *before* it is sent, so the rows may not be visible yet, and the COMMIT may fail: ask ``visible``.
    An error of ``then`` is logged, it never reaches the caller's commit.
    """
    found = resolve(transaction)
    callbacks = _waiting.get(found)
    if callbacks is None:
        callbacks = _waiting[found] = []
        if isinstance(found, Session):
            event.listen(found, "after_commit", _session_committed)
            event.listen(found, "after_transaction_end", _session_ended)
        else:
            event.listen(found, "commit", _run)
            event.listen(found, "rollback", _forget)
    callbacks.append(then)


def _session_committed(session: Session) -> None:
    if not session.in_nested_transaction():
        _run(session)


def _session_ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        _forget(session)


def _run(owner: Any) -> None:
    callbacks = list(_waiting.get(owner, ()))
    _forget(owner)
    for then in callbacks:
        try:
            then()
        except Exception:
            _log.exception("pushing after the caller's commit failed; the reconciler will find the tasks")


def _forget(owner: Any) -> None:
    waiting = _waiting.get(owner)
    if waiting:
        waiting.clear()
