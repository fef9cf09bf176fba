"""What people ask for, and what operators do; never counts a big table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tandemq.core.errors import TaskNotFound
from tandemq.core.lifecycle import ENDED, MOVES, Event, Status
from tandemq.core.task import FailedAttempt, Level, Task
from tandemq.store.base import holder
from tandemq.store.database import Tx
from tandemq.store.dialects import instant, instant_or_none, micros, stamp
from tandemq.store.protocol import Filter, Moved, Page
from tandemq.store.queries import TASK_COLUMNS
from tandemq.store.surveying import SurveyingStore

#: Open rows counted per queue, and dead ones in all, before the count says ``capped``.
COUNT_CAP = 100_000
KEEP_KEYS_S = 24 * 3600.0
STATES = ("ready", "scheduled", "retrying", "running")


class InspectingStore(SurveyingStore):
    """``store.protocol.Inspecting``."""

    def get(self, task_id: int, *, attempts: bool = False) -> Task | None:
        """One row, with its history of failed attempts if asked for."""

        def work(tx: Tx) -> Task | None:
            row = tx.one(self.queries.task(), [task_id])
            if row is None:
                return None
            log = tx.rows(self.queries.attempts_of(), [task_id]) if attempts else ()
            return _task(row, tuple(_attempt(a) for a in log))

        return self.db.read(work)

    def ending(self, task_id: int) -> tuple[Status, str | None, str | None, str | None] | None:
        """(status, result, last_error, dead_reason) by primary key, for waiting callers."""
        row = self.db.read(lambda tx: tx.one(self.queries.ending(), [task_id]))
        return None if row is None else (Status(row[0]), row[1], row[2], row[3] or None)

    def find(self, where: Filter, *, limit: int, after: int | None = None) -> Page:
        """Newest first by id, keyset pages."""
        conditions, params = self._conditions(where)
        if after is not None:
            conditions.append(f"t.id < {self.db.dialect.p}")
            params.append(after)
        rows = self.db.read(lambda tx: tx.rows(self.queries.page(conditions), [*params, limit + 1]))
        items = tuple(_task(row) for row in rows[:limit])
        return Page(items, items[-1].id if len(rows) > limit else None)

    def counts(self) -> dict[str, Any]:
        """Open rows per queue by state, in all and per priority; ended ones from the counters.

        ``ended["dead"]`` is how many are dead now (capped), ``ended["dead_total"]`` how many ever died.
        """

        def work(tx: Tx) -> dict[str, Any]:
            queues = {queue: self._open_counts(tx, queue) for queue in sorted({q for q, _ in self._levels(tx)})}
            ended = {outcome: int(n) for outcome, n in tx.rows(self.queries.ended_counts())}
            ended["dead_total"] = ended.get("dead", 0)
            ended["dead"] = int(tx.one(self.queries.dead_now(), [COUNT_CAP])[0])
            for outcome in ("succeeded", "cancelled", "retried"):
                ended.setdefault(outcome, 0)
            return {"queues": queues, "ended": ended}

        return self.db.read(work)

    def busy(self, queues: Sequence[str]) -> bool:
        """Whether anything is due, running or retrying in these queues (``scheduled`` does not count)."""

        def work(tx: Tx) -> bool:
            wanted = set(queues)
            levels = [level for level in self._levels(tx) if level.queue in wanted]
            return any(tx.one(self.queries.any_due(), level) is not None for level in levels) or any(
                tx.one(self.queries.any_begun(), [queue]) is not None for queue in {level.queue for level in levels}
            )

        return self.db.read(work)

    def cancel(self, task_id: int) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has; TaskNotFound."""

        def work(tx: Tx) -> str:
            row = tx.one(self.queries.lock_one(), [task_id])
            if row is None:
                raise TaskNotFound(f"no task has the id {task_id}")
            status, queue, task_type = Status(row[0]), row[1], row[2]
            if status in MOVES[Event.CANCEL].sources:
                tx.write(self.sql.cancel(), [task_id])
                self.settler.count(tx, Counter({(queue, task_type, Status.CANCELLED.value): 1}))
                return Status.CANCELLED.value
            if status in MOVES[Event.CANCEL_RUNNING].sources:
                tx.write(self.sql.request_cancel(), [task_id])
                return "requested"
            return status.value

        return self.db.write(work, repeatable=True)

    def replay(self, ids: Sequence[int], *, ended_before: datetime | None = None) -> list[Moved]:
        """dead | cancelled -> pending by compare-and-set; attempts start anew, history stays, ``replays`` + 1.

        ``ended_before`` keeps a wave of replays from taking tasks that have died again since it began.
        """
        params = [] if ended_before is None else [stamp(ended_before)]

        def work(tx: Tx) -> list[Moved]:
            rows = tx.rows(self.queries.lock_for_replay(ids, before=ended_before is not None), params)
            if rows:
                tx.write(self.sql.replay([row[0] for row in rows]))
            return [Moved(i, Level(queue, p), kind, Event.REPLAY, Status.PENDING) for i, queue, p, kind in rows]

        return self.db.write(work) if ids else []

    def purge(self, ids: Sequence[int]) -> int:
        """Delete final rows (status tested in the same statement) with their attempts; keyed rows keep for 24 h."""

        def work(tx: Tx) -> int:
            found = [row[0] for row in tx.rows(self.queries.lock_for_purge(ids), [micros(KEEP_KEYS_S)])]
            if not found:
                return 0
            deleted = tx.write(self.sql.purge(found))
            for row in tx.rows(self.queries.with_attempts(found)):
                tx.write(self.sql.purge_attempts(), [row[0]])
            return deleted

        return self.db.write(work) if ids else 0

    def _conditions(self, where: Filter) -> tuple[list[str], list[Any]]:
        p, now = self.db.dialect.p, self.db.dialect.now
        conditions: list[str] = []
        params: list[Any] = []
        if where.state is not None:
            conditions += _state_conditions(where.state, now)
        equal = {
            "queue": where.queue,
            "task_type": where.task_type,
            "worker_id": None if where.worker_id is None else holder(where.worker_id),
            "error_type": where.error_type,
            "dead_reason": where.reason,
        }
        for column, value in equal.items():
            if value is not None:
                conditions.append(f"t.{column} = {p}")
                params.append(value)
        if where.error_text is not None:
            conditions.append(f"INSTR(t.last_error, {p}) > 0")
            params.append(where.error_text)
        if where.ids is not None:
            conditions.append(f"t.id IN ({','.join(str(int(i)) for i in where.ids) or 'NULL'})")
        return conditions, params

    def _open_counts(self, tx: Tx, queue: str) -> dict[str, Any]:
        totals: dict[str, Any] = dict.fromkeys(STATES, 0)
        levels: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(STATES, 0))
        seen = 0
        for priority, status, due, again, n in tx.rows(self.queries.open_counts(), [queue, COUNT_CAP]):
            state = "running" if status == Status.RUNNING else "ready" if due else "retrying" if again else "scheduled"
            totals[state] += n
            levels[str(priority)][state] += n
            seen += n
        totals["priorities"] = dict(sorted(levels.items(), key=lambda level: -int(level[0])))
        if seen >= COUNT_CAP:
            totals["capped"] = True
        return totals


def _state_conditions(state: str, now: str) -> list[str]:
    pending = ["t.ended = 0", f"t.status = '{Status.PENDING}'"]
    derived = {
        "pending": pending,
        "ready": [*pending, f"t.run_at <= {now}"],
        "retrying": [*pending, f"t.run_at > {now}", "t.attempts > 0"],
        "scheduled": [*pending, f"t.run_at > {now}", "t.attempts = 0"],
    }
    status = Status(state) if state not in derived else Status.PENDING
    return derived.get(state) or [f"t.ended = {ENDED[status]}", f"t.status = '{status}'"]


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _task(row: Any, log: tuple[FailedAttempt, ...] = ()) -> Task:
    values = dict(zip(_COLUMNS, row, strict=True))
    status = Status(values["status"])
    due, lease_end = values.pop("due"), values.pop("lease_expires_at")
    state = status.value
    if status is Status.PENDING:
        state = "ready" if due else "retrying" if values["attempts"] else "scheduled"
    for name in ("run_at", "created_at", "updated_at"):
        values[name] = instant(values[name])
    for name in ("expires_at", "cancel_requested_at", "started_at", "completed_at"):
        values[name] = instant_or_none(values[name])
    for name in ("worker_id", "error_type", "dead_reason"):
        values[name] = values[name] or None
    for name in ("payload", "options", "idempotency_key"):
        values[name] = _text(values[name])
    values["status"] = status
    return Task(**values, state=state, lease_expires_at=instant_or_none(lease_end), attempts_log=log)


#: Names of ``queries.TASK_COLUMNS`` and of the two that follow them.
_COLUMNS = (*(name.strip().removeprefix("t.") for name in TASK_COLUMNS.split(",")), "lease_expires_at", "due")


def _attempt(row: Any) -> FailedAttempt:
    attempt, replays, fence, outcome, worker_id, started_at, ended_at, error_type, error, traceback = row
    return FailedAttempt(
        attempt=attempt,
        replays=replays,
        fence=fence,
        outcome=outcome,
        worker_id=worker_id,
        started_at=instant_or_none(started_at),
        ended_at=instant(ended_at),
        error_type=error_type,
        error=error,
        traceback=traceback,
    )
