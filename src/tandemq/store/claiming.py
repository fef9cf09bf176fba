"""The claim: one transaction that turns popped ids into leases under one token."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from tandemq.core.errors import InvalidTask, StoreUnknown
from tandemq.core.lifecycle import DeadReason, Status
from tandemq.core.task import Lease, Level, epoch_ms
from tandemq.core.values import QUEUE_NAME, TASK_TYPE, parse_instant, rfc3339
from tandemq.store.answers import Claimed, Ended, NotDue
from tandemq.store.base import StoreBase, holder
from tandemq.store.dialects import instant, micros
from tandemq.store.holding import hold, paused_until
from tandemq.store.settling import Counts
from tandemq.store.statements import Statements
from tandemq.store.transaction import Mismatch, OwnTx, Step, Tx

UNKNOWN_TASK = "UnknownTask"
FIRST_DEFER_S, LAST_DEFER_S = 1.0, 30.0
#: The text that a deferred row carries; its end is how long it has been waiting, so that no column is needed for it.
_WAITING = "no worker that met it knows the task type {}; waiting since {}"
_SINCE = re.compile(r"; waiting since (\S+)$")


#: Names in the text of a statement: more would cost more than the round trip that they save.
MAX_NAMES = 64


@lru_cache(maxsize=16)
def _only(sql: Statements, known: frozenset[str] | None, queues: frozenset[str] | None) -> str:
    """The condition of a claim at once, or "" where there is none. Cached: a worker's names do not change."""
    if known is None or queues is None or not known or not queues or len(known) + len(queues) > MAX_NAMES:
        return ""
    if not all(map(TASK_TYPE.fullmatch, known)) or not all(map(QUEUE_NAME.fullmatch, queues)):
        return ""  # they are written into the text
    return sql.of_known(known, queues)


def _frozen(names: Collection[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


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
    waited_us: int

    @property
    def is_expired(self) -> bool:
        """It must not be run any more."""
        return self.waited_us < 0


class _Terms(NamedTuple):
    """Under what a worker claims."""

    lease_s: float
    free: int
    known: Collection[str] | None
    queues: Collection[str] | None
    unknown_task_s: float
    paused: frozenset[str]


class _Sorted(NamedTuple):
    """The locked rows, sorted by what happens to them."""

    claimable: list[_Row]
    put_back: list[_Row]
    expired: list[_Row]
    unknown: list[_Row]
    paused: list[_Row]


class ClaimingStore(StoreBase):
    """``claim`` of ``store.protocol.Leasing``."""

    _may_try_at_once = True

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
        paused: Collection[str] = (),
    ) -> Claimed:
        """Claim what is claimable of ``ids`` under one token, in one transaction with its claims row; see the protocol.

        If the answer to COMMIT is lost this raises StoreUnknown: never run, never forget, ``give_back(token, ids)``.
        """
        wanted = list(dict.fromkeys(ids))
        me = holder(worker_id)
        terms = _Terms(lease_s, free, known, queues, unknown_task_s, frozenset(paused))

        def work(tx: OwnTx) -> Claimed:
            rows = tx.rows(self.sql.claim_lock(wanted))
            whole = [row[0] for row in rows] == wanted
            leases = _leases(rows, token, terms) if whole else None
            if leases is None:
                return self._claim_mixed(tx, rows, wanted, [token, me], terms)
            tx.commit(*self._taking(wanted, [token, me], lease_s))
            return Claimed(leases=tuple(leases))

        if not wanted:
            return Claimed()
        at_once = len(wanted) <= free and not paused
        only = _only(self.sql, _frozen(known), _frozen(queues)) if at_once else ""
        if only and self._may_try_at_once:
            try:
                with suppress(Mismatch):
                    return self.db.write(
                        lambda tx: self._claim_at_once(tx, wanted, only, [token, me], lease_s),
                        crash="claim.before_commit",
                    )
            except StoreUnknown:
                # Perhaps for a row whose text cannot be read: the long way finds out which.
                self._may_try_at_once = False
                raise
        claimed = self.db.write(work, crash="claim.before_commit")
        # Ids that cannot be claimed come in swarms (copies, unknown types): no further try until a claim is whole.
        self._may_try_at_once = len(claimed.leases) == len(wanted)
        return claimed

    def _taking(self, ids: Sequence[int], holder: Sequence[Any], lease_s: float) -> list[Step]:
        held = [*holder, micros(lease_s), ",".join(map(str, ids))]
        return [Step(self.sql.claim(ids), holder), Step(self.sql.insert_claim(), held)]

    def _claim_mixed(
        self, tx: OwnTx, rows: Sequence[Any], wanted: Sequence[int], holder: Sequence[Any], terms: _Terms
    ) -> Claimed:
        """Not all of them can be claimed, or not in this order: each row goes where it belongs."""
        locked = {row[0]: _Row._make(row) for row in rows}
        paused = paused_until(tx, self.sql, {row.task_type for row in locked.values()} & terms.paused)
        found = _sort([locked[i] for i in wanted if i in locked], terms._replace(paused=frozenset(paused)))
        missing = [i for i in wanted if i not in locked]
        ended = self._discard_expired(tx, found.expired)
        deferred, dead = self._defer(tx, found.unknown, terms.unknown_task_s)
        ended += dead
        held = [(row.id, Level(row.queue, row.priority), row.task_type) for row in found.paused]
        deferred += hold(tx, self.sql, paused, held)
        last = self._taking([row.id for row in found.claimable], holder, terms.lease_s) if found.claimable else []
        last += self.settler.counting(_counts(found, ended))
        last += [Step(self.queries.not_claimed(missing))] if missing else []
        answers = tx.commit(*last)
        not_due = _not_due(answers[-1].rows) if missing else []
        waiting = {n.id for n in not_due}
        return Claimed(
            leases=tuple([_lease(row, holder[0]) for row in found.claimable]),
            not_due=tuple(deferred + not_due),
            put_back=tuple([(Level(row.queue, row.priority), row.id) for row in found.put_back]),
            ended=tuple(ended),
            dropped=tuple([i for i in missing if i not in waiting]),
        )

    def _claim_at_once(
        self, tx: OwnTx, wanted: Sequence[int], only: str, holder: Sequence[Any], lease_s: float
    ) -> Claimed:
        """One packet for few ids, which is what an idle worker pops; Mismatch unless all of them can be claimed.

        The locking SELECT comes first here too: an UPDATE by itself would wait for rows that others have locked.
        """
        look = Step(self.sql.claim_lock(wanted), expect=len(wanted))
        move = Step(self.sql.claim(wanted, only), holder, expect=len(wanted))
        _, keep = self._taking(wanted, holder, lease_s)
        rows = {row[0]: _Row._make(row) for row in tx.commit(look, move, keep)[0].rows}
        return Claimed(leases=tuple([_lease(rows[i], holder[0]) for i in wanted]))

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


def _not_due(rows: Sequence[Any]) -> list[NotDue]:
    return [NotDue(i, Level(queue, priority), epoch_ms(instant(run_at))) for i, queue, priority, run_at in rows]


def _sort(rows: Sequence[_Row], terms: _Terms) -> _Sorted:
    _, free, known, queues, _, paused = terms
    found = _Sorted([], [], [], [], [])
    misplaced: list[_Row] = []
    for row in rows:
        if queues is not None and row.queue not in queues:
            misplaced.append(row)  # somebody pushed it to the wrong list: it goes to its own
        elif found.put_back:
            found.put_back.append(row)
        elif row.is_expired:
            found.expired.append(row)
        elif row.task_type in paused:
            found.paused.append(row)
        elif known is not None and row.task_type not in known:
            found.unknown.append(row)
        elif row.attempts >= row.max_retries and len(found.claimable) >= free:
            # A last attempt is not claimed ahead: if this worker died before it began, the task would be dead unrun.
            found.put_back.append(row)
        else:
            found.claimable.append(row)
    found.put_back.extend(misplaced)
    return found


def _leases(rows: Sequence[Any], token: int, terms: _Terms) -> list[Lease] | None:
    """The leases of rows that can all be claimed as they are, else None: the usual batch, made in one pass."""
    _, free, known, queues, _, paused = terms
    leases: list[Lease] = []
    for row in rows:
        _, queue, _, task_type, _, _, attempts, max_retries, _, _, waited_us = row
        if waited_us < 0 or (attempts >= max_retries and len(leases) >= free):
            return None
        if (known is not None and task_type not in known) or (queues is not None and queue not in queues):
            return None
        if task_type in paused:
            return None
        leases.append(_lease(row, token))
    return leases


def _lease(row: Sequence[Any], token: int) -> Lease:
    task_id, queue, priority, task_type, payload, options, attempts, max_retries, replays, fence, waited_us = row
    if type(payload) is not str or type(options) is not str:
        payload, options = _text(payload), _text(options)
    return Lease(
        task_id, queue, priority, task_type, payload, options, attempts + 1, max_retries, replays, fence + 1, token,
        waited_us,
    )  # fmt: skip


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
