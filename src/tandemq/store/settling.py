"""Writing verdicts about locked rows, inside an open transaction: shared by finish, hand-back and every end of a lease.

The rows are locked first, so what was read (cancel request, token, status) still holds when it is written; the guards
in the statements say it once more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tandemq.core.errors import StoreRefused
from tandemq.core.lifecycle import (
    MOVES,
    Bury,
    Event,
    Failure,
    Release,
    RetryIn,
    SnoozeIn,
    Succeed,
    Verdict,
)
from tandemq.core.task import Lease, Level, epoch_ms
from tandemq.store.aging import too_old
from tandemq.store.answers import Moved
from tandemq.store.chunks import by_size
from tandemq.store.dialects import NOT_YET, instant, micros
from tandemq.store.held import Again, Held, Settling
from tandemq.store.queries import Queries
from tandemq.store.statements import Statements
from tandemq.store.transaction import Step, Tx

SHARDS = 16
#: Statements that carry texts are cut near this size, far below any max_allowed_packet.
MAX_TEXT_BYTES = 512 * 1024
Counts = Counter[tuple[str, str, str]]


@dataclass
class _Groups:
    succeed: list[Settling] = field(default_factory=list)
    retry: list[Settling] = field(default_factory=list)
    snooze: list[Settling] = field(default_factory=list)
    release: list[Settling] = field(default_factory=list)
    bury: list[Settling] = field(default_factory=list)
    cancel: list[Settling] = field(default_factory=list)

    def add(self, one: Settling) -> None:
        if one.event is Event.CANCEL_RUNNING:
            self.cancel.append(one)
        else:
            names = {Succeed: "succeed", RetryIn: "retry", SnoozeIn: "snooze", Release: "release", Bury: "bury"}
            getattr(self, names[type(one.verdict)]).append(one)


class Settler:
    """Writes verdicts; stateless but for its statements."""

    def __init__(self, statements: Statements, queries: Queries) -> None:
        self._sql, self._q = statements, queries

    def settle(self, tx: Tx, rows: Sequence[Settling]) -> tuple[list[Moved], Counts]:
        """Move locked rows that are running under their token. Counters are returned: they are written last."""
        rows = self._aged(tx, rows)
        groups = _Groups()
        for one in rows:
            groups.add(one)
        self._succeed(tx, groups.succeed)
        self._retry(tx, groups.retry)
        self._snooze(tx, groups.snooze)
        self._plain(tx, groups.release, self._sql.release)
        self._bury(tx, groups.bury)
        self._plain(tx, groups.cancel, self._sql.cancel_running)
        self.record_failures(tx, rows)
        due = self.due_ms(tx, [s.row.id for s in groups.retry + groups.snooze])
        counts: Counts = Counter()
        for one in rows:
            outcome = "retried" if isinstance(one.verdict, RetryIn) else None
            if one.event not in {Event.RETRY, Event.RELEASE}:
                outcome = MOVES[one.event].target.value
            if outcome:
                counts[one.row.queue, one.row.task_type, outcome] += 1
        return [moved(one.row, one.event, one.verdict, one.lease, due.get(one.row.id)) for one in rows], counts

    def _aged(self, tx: Tx, rows: Sequence[Settling]) -> Sequence[Settling]:
        retries = {s.row.id: s.verdict for s in rows if isinstance(s.verdict, RetryIn) and s.event is Event.RETRY}
        buried = too_old(tx, self._q, retries)
        return [s._replace(verdict=buried[s.row.id]) if s.row.id in buried else s for s in rows] if buried else rows

    def repeat(self, tx: Tx, rows: Sequence[Again]) -> list[Moved]:
        """The answers that were lost, once more."""
        due = self.due_ms(tx, [a.row.id for a in rows if a.event is Event.RETRY])
        return [moved(a.row, a.event, a.verdict, a.lease, due.get(a.row.id)) for a in rows]

    def record_failures(self, tx: Tx, rows: Sequence[Settling]) -> None:
        """History of attempts that did not succeed."""
        lines = []
        for one in rows:
            failure = getattr(one.verdict, "failure", None)
            if failure is not None:
                outcome = getattr(one.verdict, "outcome", "interrupted")
                lines.append(_history(one.row, one.lease, outcome, one.row.worker_id, failure))
        self._write_history(tx, lines)

    def record_fenced(self, tx: Tx, rows: Sequence[tuple[Held, Lease, Verdict]], worker_id: str) -> None:
        """History of verdicts that came after their lease was lost."""
        lines = []
        for row, lease, verdict in rows:
            failure = getattr(verdict, "failure", None) or Failure(
                "LeaseLost", f"a verdict ({type(verdict).__name__}) came after the lease was lost and was refused"
            )
            line = _history(row, lease, "fenced", worker_id, failure)
            lines.append(line if row.token == lease.token else (*line[:6], NOT_YET, *line[7:]))
        self._write_history(tx, lines)

    def count(self, tx: Tx, counts: Counts) -> None:
        """Add to this hour's counters."""
        if counts:
            tx.send(*self.counting(counts))

    def counting(self, counts: Counts) -> list[Step]:
        """The step that adds to this hour's counters, in key order; none if there is nothing to add."""
        if not counts:
            return []
        shard = os.getpid() % SHARDS
        params = [v for (queue, kind, outcome), n in sorted(counts.items()) for v in (queue, kind, outcome, shard, n)]
        return [Step(self._sql.count(len(counts)), params)]

    def due_ms(self, tx: Tx, ids: Sequence[int]) -> dict[int, int]:
        """run_at as written, in ms rounded up."""
        return {i: epoch_ms(instant(at)) for i, at, _ in tx.rows(self._q.due_times(ids))} if ids else {}

    def _succeed(self, tx: Tx, rows: Sequence[Settling]) -> None:
        for some in by_size(rows, _texts, MAX_TEXT_BYTES):
            results = [s for s in some if isinstance(s.verdict, Succeed) and s.verdict.result is not None]
            notes = [s for s in some if isinstance(s.verdict, Succeed) and s.verdict.note]
            sql = self._sql.succeed([s.pair for s in some], [s.row.id for s in results], [s.row.id for s in notes])
            params = [s.verdict.result for s in results if isinstance(s.verdict, Succeed)]
            params += [s.verdict.note for s in notes if isinstance(s.verdict, Succeed)]
            _all_of(some, tx.write(sql, params))

    def _retry(self, tx: Tx, rows: Sequence[Settling]) -> None:
        for some in by_size(rows, _texts, MAX_TEXT_BYTES):
            verdicts = [s.verdict for s in some if isinstance(s.verdict, RetryIn)]
            params: list[Any] = [micros(v.delay_s) for v in verdicts]
            params += [v.failure.error_type for v in verdicts]
            params += [v.failure.message for v in verdicts]
            _all_of(some, tx.write(self._sql.retry([s.pair for s in some]), params))

    def _snooze(self, tx: Tx, rows: Sequence[Settling]) -> None:
        if rows:
            params = [micros(s.verdict.delay_s) for s in rows if isinstance(s.verdict, SnoozeIn)]
            _all_of(rows, tx.write(self._sql.snooze([s.pair for s in rows]), params))

    def _bury(self, tx: Tx, rows: Sequence[Settling]) -> None:
        for some in by_size(rows, _texts, MAX_TEXT_BYTES):
            verdicts = [s.verdict for s in some if isinstance(s.verdict, Bury)]
            params = [v.reason.value for v in verdicts]
            params += [v.failure.error_type for v in verdicts]
            params += [v.failure.message for v in verdicts]
            _all_of(some, tx.write(self._sql.bury([s.pair for s in some]), params))

    def _plain(self, tx: Tx, rows: Sequence[Settling], statement: Any) -> None:
        if rows:
            _all_of(rows, tx.write(statement([s.pair for s in rows])))

    def _write_history(self, tx: Tx, lines: Sequence[tuple[Any, ...]]) -> None:
        for some in by_size(sorted(lines, key=lambda line: line[:3]), _history_size, MAX_TEXT_BYTES):
            tx.write(self._sql.insert_attempts(len(some)), [value for line in some for value in line])


def moved(row: Held, event: Event, verdict: Verdict, lease: Lease, due_ms: int | None) -> Moved:
    """The answer for one row."""
    return Moved(
        id=row.id,
        level=Level(row.queue, row.priority),
        task_type=row.task_type,
        event=event,
        status=MOVES[event].target,
        due_ms=due_ms if event is Event.RETRY else None,
        dead_reason=verdict.reason.value if isinstance(verdict, Bury) and event is Event.BURY else "",
        attempt=lease.attempt,
    )


def _history(row: Held, lease: Lease, outcome: str, worker_id: str, failure: Failure) -> tuple[Any, ...]:
    return (
        row.id,
        lease.fence,
        outcome,
        lease.attempt,
        lease.replays,
        worker_id,
        row.started_at,
        failure.error_type,
        failure.message,
        failure.traceback,
    )


def _all_of(rows: Sequence[Settling], matched: int) -> None:
    # The rows are locked and were checked: fewer matches mean that this code is wrong, and nothing may be committed.
    if matched != len(rows):
        raise StoreRefused(f"{matched} of {len(rows)} locked rows matched; the transaction was rolled back")


def _history_size(line: tuple[Any, ...]) -> int:
    return 256 + len(line[-1]) + len(line[-2])


def _texts(one: Settling) -> int:
    verdict = one.verdict
    if isinstance(verdict, Succeed):
        return len(verdict.result or "") + len(verdict.note)
    failure = getattr(verdict, "failure", None)
    return len(failure.message) if failure else 0
