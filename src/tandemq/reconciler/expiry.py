"""Ends leases that nobody renews, and heals running rows that have no lease at all.

Both judge by ``decide(Lost)`` and need nothing but the row. What must be exact lies in the store: the claim must
still be past its end in the transaction that moves its rows (a renewal wins), and an orphan is locked first, its
claims row looked for in a second statement (in one statement the sub-select reads a snapshot, and a task that has
just been claimed is taken).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import StoreRefused
from tandemq.core.lifecycle import Status
from tandemq.core.values import rfc3339
from tandemq.reconciler.report import Tally
from tandemq.redeliver import lost_judge
from tandemq.store.answers import Moved
from tandemq.store.protocol import Leasing, Surveying

CLAIMS_PER_PASS = 200
OPEN_ROWS_PER_PASS = 500
MAX_SUSPECTS = 10_000

#: What is done with moved rows after their commit.
After = Callable[[Sequence[Moved]], None]


def count(moved: Sequence[Moved], tally: Tally) -> None:
    """What became of lost tasks."""
    names = {Status.PENDING: "retried", Status.DEAD: "dead", Status.CANCELLED: "cancelled"}
    for move in moved:
        if move.status in names:
            tally.add(**{names[move.status]: 1})


class Expiry:
    """Expired leases, at most ``CLAIMS_PER_PASS`` a pass."""

    def __init__(self, store: Leasing, rng: Random) -> None:
        self._store, self._rng = store, rng

    def turn(self, tally: Tally, after: After) -> None:
        """One transaction per lease. Killed after its commit: the ids are pending in no list, the window finds them."""
        claims = self._store.expired_claims(CLAIMS_PER_PASS)
        if not tally.armed:
            tally.add(overdue=len(claims))
            return
        for claim in claims:
            judge = lost_judge(
                self._rng,
                f"the lease of worker {claim.worker_id} ran out at {rfc3339(claim.expires_at)}:"
                " its process died, hung, or could not reach the database",
            )
            crash_point("expire.after_select")
            try:
                settled = self._store.end_lease(
                    claim.token, claim.ids, judge=judge, worker_id=claim.worker_id, expired_only=True
                )
            except StoreRefused as error:
                tally.alarm(f"the lost lease of worker {claim.worker_id} cannot be ended: {error}")
                continue
            if settled is None:
                tally.add(renewed=1)
                continue
            crash_point("expire.after_commit")
            tally.add(expired=1)
            count(settled.moved, tally)
            after(settled.moved)
            crash_point("expire.after_push")


class Sweep:
    """Running rows whose token has no claims row: nothing should make them, so each one healed is an alarm.

    Goes through the open rows by id, a chunk a pass, for ever round. A row seen like that is a suspect; one lease
    later it is looked at again, under its lock, and judged only if it still runs under the same token without a
    claims row.
    """

    def __init__(self, store: Surveying, clock: Clock, rng: Random, lease_s: float) -> None:
        self._store, self._clock, self._rng, self._lease_s = store, clock, rng, lease_s
        self._after_id = 0
        self._suspects: dict[tuple[int, int], float] = {}

    def turn(self, tally: Tally, after: After) -> None:
        """Look at the next chunk, then at the suspects that are a lease old."""
        now = self._clock.monotonic()
        found, self._after_id = self._store.orphans(self._after_id, OPEN_ROWS_PER_PASS)
        for pair in found:
            if len(self._suspects) < MAX_SUSPECTS:
                self._suspects.setdefault(pair, now)
        ripe = [pair for pair, since in self._suspects.items() if now - since >= self._lease_s]
        judge = lost_judge(self._rng, "the row was running without a lease", "LeaseMissing")
        for task_id, token in ripe[:OPEN_ROWS_PER_PASS]:
            try:
                settled = self._store.end_orphan(task_id, token, judge=judge)
            except StoreRefused as error:
                tally.alarm(f"task {task_id} runs without a lease and cannot be given up: {error}")
                continue
            if settled.locked:
                continue
            del self._suspects[task_id, token]
            if settled.moved:
                tally.add(orphans=1)
                tally.alarm(f"task {task_id} was running without a lease and has been given up as lost")
                count(settled.moved, tally)
                after(settled.moved)
