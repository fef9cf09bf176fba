"""Removes what ended long ago, where a setting says so: little by little, so that no pass of the healer is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tandemq.core.audit import Deed
from tandemq.core.clock import Clock
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.reconciler.report import Tally
from tandemq.store.answers import PruneCursor, PruneRule
from tandemq.store.protocol import Store

#: Rows that a transaction removes (10 to 30 ms), and transactions of a pass: at a pass every 2 s, 1,000 rows a second.
BATCH, BATCHES = 500, 4
#: Pause after a round that came to the end: what is old by then waits for the next.
ROUND_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Retention:
    """A part of the reconciler's pass. A round goes through all that is old, over as many passes as it takes.

    The place it has come to is kept in memory: killed, the next leader begins at the front, where nothing is left but
    what may not go yet. A pass that removes some writes one row to the audit log for each kind.
    """

    def __init__(self, store: Store, clock: Clock, settings: Settings, holder: str) -> None:
        kinds = [(settings.retain_s, (Status.CANCELLED, Status.SUCCEEDED)), (settings.retain_dead_s, (Status.DEAD,))]
        self._rounds = [_Round(store, clock, age_s, statuses, holder) for age_s, statuses in kinds if age_s > 0]

    def turn(self, tally: Tally) -> None:
        """Remove what of this pass's share is due; raises StoreUnavailable."""
        for each in self._rounds:
            each.turn(tally)


class _Round:
    def __init__(self, store: Store, clock: Clock, age_s: float, statuses: tuple[Status, ...], holder: str) -> None:
        self._store, self._clock, self._age_s, self._statuses, self._holder = store, clock, age_s, statuses, holder
        self._rule: PruneRule | None = None
        self._cursor: PruneCursor | None = None
        self._next_at: float | None = None

    def turn(self, tally: Tally) -> None:
        now_s = self._clock.monotonic()
        if self._rule is None:
            if self._next_at is not None and now_s < self._next_at:
                return
            now = self._store.now()
            age_s = min(self._age_s, (now - _EPOCH).total_seconds())
            self._rule, self._cursor = PruneRule(now - timedelta(seconds=age_s), self._statuses), None
        details = {**self._rule.to_json(), "age_s": self._age_s}
        deed = Deed(action="prune", who=f"reconciler {self._holder}", reason="retention", details=details)
        for _ in range(BATCHES):
            ids, self._cursor = self._store.prunable(self._rule, self._cursor, limit=BATCH)
            if ids:
                tally.add(pruned=self._store.prune(ids, self._rule, deed=deed))
            if self._cursor is None:
                self._rule, self._next_at = None, now_s + ROUND_S
                return
