"""``max_age``: a retry that would begin too long after its task's life began is a death instead.

By the database's clock, from ``created_at`` on. A replay begins a new life: its instant is kept in the row's options
under ``since``, for rows whose options carry ``max_age``; no other row pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tandemq.core import codec
from tandemq.core.errors import InvalidTask
from tandemq.core.lifecycle import Bury, DeadReason, RetryIn
from tandemq.core.values import parse_instant, rfc3339
from tandemq.store.dialects import instant
from tandemq.store.queries import Queries
from tandemq.store.statements import Statements
from tandemq.store.transaction import Tx

SINCE = "since"


def too_old(tx: Tx, queries: Queries, retries: dict[int, RetryIn]) -> dict[int, Bury]:
    """Which of these retries, by id of locked rows, become deaths."""
    limited = {i: verdict for i, verdict in retries.items() if verdict.max_age_s is not None}
    if not limited:
        return {}
    buried = {}
    for task_id, created_at, now, options in tx.rows(queries.ages(sorted(limited))):
        verdict = limited[task_id]
        age_s = (instant(now) - _began(instant(created_at), options)).total_seconds() + verdict.delay_s
        if verdict.max_age_s is not None and age_s > verdict.max_age_s:
            why = f"not retried: that would be {age_s:.6g} s after it began, max_age is {verdict.max_age_s:g} s"
            text = f"{verdict.failure.message} ({why})"
            buried[task_id] = Bury(
                DeadReason.RETRIES_EXHAUSTED, replace(verdict.failure, message=text), verdict.outcome, verdict.doubtful
            )
    return buried


def begin_anew(tx: Tx, sql: Statements, queries: Queries, ids: Sequence[int]) -> None:
    """Locked rows are being replayed: their age counts from now on."""
    for task_id, now, options in tx.rows(queries.limited_by_age(ids)):
        given = _parsed(options)
        if given.get("max_age") is not None:
            given[SINCE] = rfc3339(instant(now))
            tx.write(sql.set_options(), [codec.encode(given, "options"), task_id])


def _began(created_at: datetime, options: Any) -> datetime:
    since = _parsed(options).get(SINCE)
    try:
        return max(created_at, parse_instant(since, SINCE)) if isinstance(since, str) else created_at
    except InvalidTask:  # another program's
        return created_at


def _parsed(options: Any) -> dict[str, Any]:
    try:
        given = codec.decode(options) if options else {}
    except (ValueError, TypeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
