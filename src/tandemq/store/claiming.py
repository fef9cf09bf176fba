"""The claim: one transaction that turns popped ids into leases under one token."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from tandemq.core.errors import InvalidTask
from tandemq.core.lifecycle import DeadReason, Status
from tandemq.core.task import Lease, Level, epoch_ms
from tandemq.core.values import parse_instant, rfc3339
from tandemq.store.base import StoreBase, holder
from tandemq.store.database import Tx
from tandemq.store.dialects import instant, micros
from tandemq.store.protocol import Claimed, Ended, NotDue
from tandemq.store.settling import Counts

UNKNOWN_TASK = "UnknownTask"
FIRST_DEFER_S, LAST_DEFER_S = 1.0, 30.0
#: The text that a deferred row carries; its end is how long it has been waiting, so that no column is needed for it.
_WAITING = "no worker that met it knows the task type {}; waiting since {}"
_SINCE = re.compile(r"; waiting since (\S+)$")


class _Row(NamedTuple):
    """A row of ``Statements.claim_lock``."""

    id: int
    queue: str
    priority: int
    task_type: str
    payload: Any
    options: Any
    attempts: int
    max_retries: int
    replays: int
    fence: int
    is_expired: int


class _Sorted(NamedTuple):
    """The locked rows, sorted by what happens to them."""

    claimable: list[_Row]
    put_back: list[_Row]
    expired: list[_Row]
    unknown: list[_Row]


class ClaimingStore(StoreBase):
    """``claim`` of ``store.protocol.Leasing``."""

    def claim(
        self,
        ids: Sequence[int],
        *,
        token: int,
        worker_id: str,
        lease_s: float,
        free: int,
        known: Collection[str] | None,
        unknown_task_s: float,
        queues: Collection[str] | None = None,
    ) -> Claimed:
        """Claim what is claimable of ``ids`` under one token, in one transaction with its claims row; see the protocol.

        If the answer to COMMIT is lost this raises StoreUnknown: never run, never forget, ``give_back(token, ids)``.
        """
        wanted = list(dict.fromkeys(ids))
        me = holder(worker_id)

        def work(tx: Tx) -> Claimed:
            locked = {row[0]: _Row(*row) for row in tx.rows(self.sql.claim_lock(wanted))}
            found = _sort([locked[i] for i in wanted if i in locked], free=free, known=known, queues=queues)
            claimed_ids = [row.id for row in found.claimable]
            if claimed_ids:
                tx.write(self.sql.claim(claimed_ids), [token, me])
            ended = self._discard_expired(tx, found.expired)
            deferred, dead = self._defer(tx, found.unknown, unknown_task_s)
            ended += dead
            if claimed_ids:
                tx.write(self.sql.insert_claim(), [token, me, micros(lease_s), ",".join(map(str, claimed_ids))])
            self.settler.count(tx, _counts(found, ended))
            missing = [i for i in wanted if i not in locked]
            not_due = self._not_due(tx, missing) if missing else []
            waiting = {n.id for n in not_due}
            return Claimed(
                leases=tuple(_lease(row, token) for row in found.claimable),
                not_due=tuple(deferred + not_due),
                put_back=tuple((Level(row.queue, row.priority), row.id) for row in found.put_back),
                ended=tuple(ended),
                dropped=tuple(i for i in missing if i not in waiting),
            )

        return self.db.write(work) if wanted else Claimed()

    def _discard_expired(self, tx: Tx, rows: Sequence[_Row]) -> list[Ended]:
        if rows:
            text = "it was not started before its expires_at"
            tx.write(self.sql.discard([r.id for r in rows]), [DeadReason.EXPIRED.value, "Expired", text])
        return [Ended(r.id, r.task_type, DeadReason.EXPIRED.value) for r in rows]

    def _defer(self, tx: Tx, rows: Sequence[_Row], limit_s: float) -> tuple[list[NotDue], list[Ended]]:
        """Deferral is by run_at in the database only; the longer a row has waited, the longer until the next look."""
        if not rows:
            return [], []
        ids = [r.id for r in rows]
        now = instant(tx.one(f"SELECT {self.db.dialect.now}")[0])
        since = {i: _waiting_since(kind, text, now) for i, kind, text in tx.rows(self.queries.errors_of(ids))}
        groups: dict[tuple[int, str], list[int]] = defaultdict(list)
        dead: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            waited = max(0.0, (now - since[row.id]).total_seconds())
            if waited >= limit_s:
                dead[row.task_type].append(row)
                continue
            # Half of what it has waited: each look makes it half as long again, so that a rolling deploy is over soon.
            delay = min(LAST_DEFER_S, max(FIRST_DEFER_S, waited / 2), max(FIRST_DEFER_S, limit_s - waited))
            groups[micros(delay), _WAITING.format(row.task_type, rfc3339(since[row.id]))].append(row.id)
        for (delay_us, text), some in sorted(groups.items(), key=lambda g: g[1]):
            tx.write(self.sql.defer(some), [delay_us, UNKNOWN_TASK, text])
        for task_type, some_rows in dead.items():
            text = f"no worker knew the task type {task_type} for {limit_s:g} s"
            tx.write(self.sql.discard([r.id for r in some_rows]), [DeadReason.UNKNOWN_TASK.value, UNKNOWN_TASK, text])
        due = self.settler.due_ms(tx, [i for some in groups.values() for i in some])
        not_due = [NotDue(r.id, Level(r.queue, r.priority), due[r.id]) for r in rows if r.id in due]
        return not_due, [
            Ended(r.id, r.task_type, DeadReason.UNKNOWN_TASK.value) for some in dead.values() for r in some
        ]

    def _not_due(self, tx: Tx, ids: Sequence[int]) -> list[NotDue]:
        return [
            NotDue(task_id, Level(queue, priority), epoch_ms(instant(run_at)))
            for task_id, queue, priority, run_at in tx.rows(self.queries.not_claimed(ids))
        ]


def _sort(rows: Sequence[_Row], *, free: int, known: Collection[str] | None, queues: Collection[str] | None) -> _Sorted:
    found = _Sorted([], [], [], [])
    misplaced: list[_Row] = []
    for row in rows:
        if queues is not None and row.queue not in queues:
            misplaced.append(row)  # somebody pushed it to the wrong list: it goes to its own
        elif found.put_back:
            found.put_back.append(row)
        elif row.is_expired:
            found.expired.append(row)
        elif known is not None and row.task_type not in known:
            found.unknown.append(row)
        elif row.attempts >= row.max_retries and len(found.claimable) >= free:
            # A last attempt is not claimed ahead: if this worker died before it began, the task would be dead unrun.
            found.put_back.append(row)
        else:
            found.claimable.append(row)
    found.put_back.extend(misplaced)
    return found


def _lease(row: _Row, token: int) -> Lease:
    return Lease(
        id=row.id,
        queue=row.queue,
        priority=row.priority,
        task_type=row.task_type,
        payload=_text(row.payload),
        options=_text(row.options),
        attempt=row.attempts + 1,
        max_retries=row.max_retries,
        replays=row.replays,
        fence=row.fence + 1,
        token=token,
    )


def _text(value: Any) -> str:
    # SQLite returns what another program put in, whatever the column says.
    return value if type(value) is str else value.decode("utf-8", "replace") if type(value) is bytes else str(value)


def _counts(found: _Sorted, ended: Sequence[Ended]) -> Counts:
    queues = {row.id: row.queue for row in (*found.expired, *found.unknown)}
    return Counter((queues[e.id], e.task_type, Status.DEAD.value) for e in ended)


def _waiting_since(error_type: str, text: str | None, now: datetime) -> datetime:
    match = _SINCE.search(text or "") if error_type == UNKNOWN_TASK else None
    try:
        return parse_instant(match[1], "since") if match else now
    except InvalidTask:  # a handler's own UnknownTask error, or another program's
        return now
