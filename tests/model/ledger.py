"""What must hold, by book-keeping of its own: rows and claims as they stand in the database, and what handlers saw.

``wrote`` is called after every write of the store, whoever made it, and looks at what changed since the last one.
Nothing here asks the product: the moves that a call may make are written down once more, by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from tandemq.core.lifecycle import Bury, Release, RetryIn, SnoozeIn, Succeed
from tests.model.coop import Call
from tests.model.records import ClaimRow, Promise, Row, Run

#: The only task type there is.
PAUSED = "work"
FINAL = {"succeeded", "dead", "cancelled"}
#: Which statuses a call may lead to from which.
MOVES: dict[str, set[tuple[str, str]]] = {
    "claim": {("pending", "running"), ("pending", "dead"), ("pending", "pending")},
    "finish": {("running", to) for to in ("succeeded", "pending", "dead", "cancelled")},
    "end_lease": {("running", to) for to in ("pending", "dead", "cancelled")},
    "give_back": {("running", "pending"), ("running", "cancelled")},
    "cancel": {("pending", "cancelled"), ("running", "running")},
    "replay": {("dead", "pending"), ("cancelled", "pending")},
    "discard_expired": {("pending", "dead")},
    "hold": {("pending", "pending")},
    "release_held": {("pending", "pending")},
}
REMOVES = {"purge", "prune"}
#: Calls of the store that write no task and no claim.
HARMLESS = {"insert", "renew", "lead", "advance_epoch", "worker_started", "worker_beat", "forget_workers"}
HARMLESS |= {"merge_counts", "end_orphan", "pause", "resume"}
WRITES = set(MOVES) | REMOVES | HARMLESS


@dataclass
class Ledger:
    """The rows as last seen, and everything that was promised."""

    engine: sa.Engine
    prefix: str
    now: Callable[[], datetime]
    rows: dict[int, Row] = field(default_factory=dict)
    claims: dict[int, ClaimRow] = field(default_factory=dict)
    promises: dict[int, Promise] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    given_back: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    tokens: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    acknowledged: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    kills: set[tuple[int, int]] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._connection = self.engine.connect()

    def close(self) -> None:
        self._connection.close()

    def check(self, holds: object, *said: object) -> None:
        """Kept, not raised: the product's code would catch it."""
        if not holds:
            self.broken.append(" ".join(map(str, said)))

    # what was done

    def wrote(self, call: Call) -> None:
        """A call of the store has written, perhaps: look at every row."""
        old_rows, old_claims = self.rows, self.claims
        if call.method == "cancel" and call.kwargs.get("kill") and call.args[0] in old_rows:
            self.kills.add((old_rows[call.args[0]].token, call.args[0]))
        self.rows, self.claims = self._read_rows(), self._read_claims()
        for task_id in old_rows.keys() | self.rows.keys():
            old, new = old_rows.get(task_id), self.rows.get(task_id)
            if old != new:
                self._changed(call, old, new)
        self._claims_changed(call, old_claims)
        for row in self.rows.values():
            self.check(row.attempts >= 0, "I8: attempts below 0", row)
            if row.status == "running":
                claim = self.claims.get(row.token)
                self.check(claim is not None and row.id in claim.ids, call, "left a running row without a claim", row)

    def began(self, run: Run, attempt: int, now: str) -> None:
        """A handler is entered."""
        row = self.rows.get(run.id)
        mine = [one for one in self.runs if one.id == run.id]
        self.check(row is not None, "I2: began without a row", run)
        if row is None:
            return
        self.check(
            row.status == "running" and (row.token, row.fence) == (run.token, run.fence),
            "I3: began under a lease that is not the row's", run, row,
        )  # fmt: skip
        self.check(all(one.fence < run.fence for one in mine), "I3: an equal or higher fence began before", run, mine)
        self.check(row.run_at <= now, "I9: began before its run_at", row, now)
        self.check(self.acknowledged.get(run.id) != row.replays, "I11: began after an acknowledged cancel", row)
        self.check(attempt == row.attempts <= row.max_retries + 1, "I8: attempt", attempt, row)
        self.runs.append(run)
        in_life = sum(one.life == run.life for one in mine) + 1 - self.given_back[run.id, run.life]
        self.check(in_life <= row.max_retries + 1, "I8: runs begun in this life:", in_life, row)
        self.seen["runs"] += 1

    def promised(self, promise: Promise, outcome: str, task_id: int | None = None) -> None:
        """The answer of an enqueue."""
        promise.outcome, promise.id = outcome, task_id
        if outcome == "stored":
            self.check(task_id in self.rows or task_id in self.gone, "I1: an acknowledged row is missing:", task_id)

    def cancelled(self, task_id: int, answer: str) -> None:
        """The answer of a cancel."""
        row = self.rows.get(task_id)
        if answer == "cancelled" and row is not None:
            self.acknowledged[task_id] = row.replays
        if answer == "requested":
            self.seen["cancel requested"] += 1

    def killed(self, tasks: set[tuple[int, int]]) -> None:
        """A process dies for these (token, id)."""
        self.check(tasks <= self.kills, "a process was killed for what nobody asked for", tasks, self.kills)
        self.seen["killed on request"] += 1

    # what changed

    def _changed(self, call: Call, old: Row | None, new: Row | None) -> None:
        method = call.method
        if old is None:
            assert new is not None
            return self._inserted(call, new)
        if new is None:
            self.check(method in REMOVES and old.status in FINAL, "I1:", call, "removed", old)
            self.gone.add(old.id)
            return None
        step = (old.status, new.status)
        self.check(step in MOVES.get(method, ()), "I4:", call, "moved", old, "to", new)
        same = ("fence", "token", "max_retries", "n", "expires_at")
        if method == "replay":
            same, zero = ("fence", "token", "max_retries", "n"), (new.attempts, new.replays - old.replays, new.cancel)
            self.check(zero == (0, 1, self.never), "replay left something", old, new)
        elif method != "claim":
            self.check(old.replays == new.replays, "a life began without a replay", old, new)
        if step == ("pending", "running"):
            return self._claimed(call, old, new)
        for name in same:
            self.check(getattr(old, name) == getattr(new, name), "I5:", call, "changed", name, old, new)
        if old.status == "running":
            self._left(call, old, new)
        if method in {"claim", "hold"} and step == ("pending", "pending"):
            paused = call.args[1] if method == "hold" else call.kwargs["paused"]
            self.check(PAUSED in paused and old.run_at <= self.stamp() < new.run_at, "put off unasked", old, new)
            self.held.add(old.id)
            self.seen["held"] += 1
        if method == "release_held":
            self.check(old.id in self.held and new.run_at <= self.stamp() < old.run_at, "released wrongly", old, new)
            self.seen["released"] += 1
        return None

    never = "1970-01-01 00:00:00.000000"

    def _inserted(self, call: Call, row: Row) -> None:
        self.check(call.method == "insert", call, "made", row)
        self.check((row.status, row.attempts, row.fence, row.token) == ("pending", 0, 0, 0), "a new row is", row)
        n = int(row.n)
        self.check(sum(other.n == row.n for other in self.rows.values()) == 1, "I2: stored twice:", row)
        self.check(self.promises[n].outcome != "refused", "I2: a refused task is stored:", row)
        self.check(row.id not in self.gone, "an id is given again:", row)

    def _claimed(self, call: Call, old: Row, new: Row) -> None:
        now, token = self.stamp(), call.kwargs["token"]
        self.check((new.fence, new.attempts) == (old.fence + 1, old.attempts + 1), "I5: claim", old, new)
        self.check(new.token == token and token not in self.tokens, "I3: a token is used twice", old, new)
        self.check(old.run_at <= now, "I9: claimed before its run_at", old, now)
        self.check(old.expires_at > now, "claimed after its expires_at", old, now)
        if PAUSED in call.kwargs["paused"]:
            self.check(not self._is_paused(now), "claimed although its type is known to be paused", old)
        self.check(old.cancel == self.never, "I11: claimed although a cancel was asked for", old)
        self.check(new.attempts <= new.max_retries + 1, "I8: claimed once too often", new)
        self.check(self.acknowledged.get(old.id) != old.replays, "I11: claimed after an acknowledged cancel", old)

    def _left(self, call: Call, old: Row, new: Row) -> None:
        """A row that was running is so no more, or a cancel was asked for."""
        if call.method == "cancel":
            self.check(old[:8] == new[:8] and new.cancel != self.never, "cancel changed more", old, new)
            return
        run = next((r for r in self.runs if (r.id, r.token) == (old.id, old.token)), None)
        if call.method == "finish":
            self._finished(call, old, new, run)
        else:
            token = call.args[0]
            self.check(old.token == token, "I4: ended another's lease:", call, token, old)
            live = run is not None and not run.ended and run.process.alive
            if call.method == "end_lease" and not call.kwargs["expired_only"]:
                self.check(not live, "I3: a lease was ended under a handler that runs", old)
        if new.status == "cancelled":
            self.check(old.cancel != self.never, "cancelled, but nobody asked", old)
        if new.status == "pending":
            self.check(old.cancel == self.never, "I11: a cancel request was dropped", call, old)
            back = old.attempts - new.attempts
            self.check(back in {0, 1}, "attempts moved", old, new)
            if back and run is not None:
                self.given_back[old.id, old.replays] += 1
            snoozed = run is not None and run.outcome == "snooze"
            is_open = run is not None and old.max_retries == 0 and not snoozed
            self.check(not is_open, "rule 9: a begun run without retries is pending again", call, old, new)
            self.seen["given back" if back else "retried"] += 1

    def _finished(self, call: Call, old: Row, new: Row, run: Run | None) -> None:
        verdicts = [s.verdict for s in call.args[0] if (s.lease.id, s.lease.token) == (old.id, old.token)]
        self.check(verdicts, "I4: a late verdict changed a row:", old, new)
        for verdict in verdicts[:1]:
            back = old.attempts - new.attempts
            expected: dict[type, tuple[str, int]] = {
                Succeed: ("succeeded", 0), RetryIn: ("pending", 0), SnoozeIn: ("pending", 1), Release: ("pending", 1),
                Bury: ("dead", 0),
            }  # fmt: skip
            status, gives = expected[type(verdict)]
            if old.cancel != self.never and (status == "pending" or (isinstance(verdict, Bury) and verdict.yields)):
                status = "cancelled"
                gives = back
            self.check((new.status, back) == (status, gives), "the verdict", verdict, "made", old, "into", new)
            if isinstance(verdict, Succeed):
                self.check(run is not None and run.outcome == "ok", "succeeded without a run that returned", old)

    def _claims_changed(self, call: Call, old: dict[int, ClaimRow]) -> None:
        for token in self.claims.keys() - old.keys():
            self.check(call.method in {"claim", "give_back"}, call, "made the claim", self.claims[token])
            self.check(
                call.method != "claim" or token not in self.tokens,
                "I3: a token is claimed twice:",
                call,
                self.claims[token],
            )
            self.tokens.add(token)
        if call.method == "renew":
            self._renewed(call, old)
        ended = old.keys() - self.claims.keys()
        if call.method == "end_lease" and call.kwargs["expired_only"]:
            late = [old[token] for token in ended if old[token].expires_at > self.stamp()]
            self.check(not late, "I3: a lease was ended before its end:", late)
            self.seen["leases ran out"] += len(ended)

    def _renewed(self, call: Call, old: dict[int, ClaimRow]) -> None:
        moved = {token for token, claim in self.claims.items() if claim != old.get(token)}
        mine = {token for token, claim in self.claims.items() if claim.worker_id == call.kwargs["worker_id"]}
        self.check(moved <= set(call.args[0]) & mine, "I3: renewed what was not asked for", call, moved)
        self.check((call.answer or set()) <= mine, "I3: a lease that is lost counts as renewed", call.answer, mine)

    # reading

    def stamp(self) -> str:
        """Now, by the database's clock, as the rows have it."""
        return self.now().strftime("%Y-%m-%d %H:%M:%S.%f")

    def _is_paused(self, now: str) -> bool:
        sql = f"SELECT until_at FROM {self.prefix}pauses WHERE kind = 'type'"
        return any(_time(row[0]) > now for row in self._connection.exec_driver_sql(sql))

    def _read_rows(self) -> dict[int, Row]:
        sql = (
            "SELECT id, payload, status, attempts, max_retries, replays, fence, lease_token, cancel_requested_at,"
            f" run_at, expires_at, dead_reason FROM {self.prefix}tasks ORDER BY id"
        )
        found = self._connection.exec_driver_sql(sql).fetchall()
        rows = (Row(r[0], r[1].partition(":")[2].strip(" }"), *r[2:8], *map(_time, r[8:11]), r[11]) for r in found)
        return {row.id: row for row in rows}

    def _read_claims(self) -> dict[int, ClaimRow]:
        found = self._connection.exec_driver_sql(
            f"SELECT lease_token, worker_id, expires_at, ids FROM {self.prefix}claims"
        ).fetchall()
        return {t: ClaimRow(t, w, _time(at), frozenset(int(i) for i in ids.split(",") if i)) for t, w, at, ids in found}


def _time(value: Any) -> str:
    return value if isinstance(value, str) else value.strftime("%Y-%m-%d %H:%M:%S.%f")
