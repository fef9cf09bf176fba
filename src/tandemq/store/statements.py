"""The SQL that writes tasks, claims and counts, as named functions. ``queries.py`` holds the reads.

Text only; values are bound where it is run. The status tests come from ``core.lifecycle.MOVES``, so that no statement
can move a task in a way the table of moves does not hold. Lock order everywhere: tasks by ascending id through PRIMARY,
task_attempts, claims, task_counts in key order.
"""
# ruff: noqa: S608 - SQL is put together here from constants and integers; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandemq.core.lifecycle import ENDED, FINAL, MOVES, Event, Status
from tandemq.store.dialects import NEVER, NOT_YET, Dialect, id_list


def sources(event: Event) -> str:
    """``status = 'running'`` or ``status IN (..)``: from where this event may start."""
    names = sorted(MOVES[event].sources)
    quoted = ", ".join(f"'{s}'" for s in names)
    return f"status = {quoted}" if len(names) == 1 else f"status IN ({quoted})"


def target(event: Event) -> str:
    """The SET of status (and of ``ended``, where the move is final or leaves a final status)."""
    status = MOVES[event].target
    moves_index = status in FINAL or MOVES[event].sources & FINAL
    return f"status = '{status}'" + (f", ended = {ENDED[status]}" if moves_index else "")


class Tables:
    """Names of the tables under a prefix."""

    def __init__(self, prefix: str) -> None:
        self.tasks, self.claims, self.attempts = f"{prefix}tasks", f"{prefix}claims", f"{prefix}task_attempts"
        self.queues, self.workers, self.counts = f"{prefix}queues", f"{prefix}workers", f"{prefix}task_counts"
        self.meta, self.leaders, self.migrations = f"{prefix}meta", f"{prefix}leaders", f"{prefix}migrations"
        self.audit_log, self.api_tokens = f"{prefix}audit_log", f"{prefix}api_tokens"
        self.pauses, self.held_tasks, self.kills = f"{prefix}pauses", f"{prefix}held", f"{prefix}kills"
        self.replay_runs, self.replay_items = f"{prefix}replay_runs", f"{prefix}replay_items"


class Statements(Tables):
    """Writes, for one dialect and prefix."""

    def __init__(self, dialect: Dialect, prefix: str) -> None:
        super().__init__(prefix)
        self.d = dialect

    # -- insert

    INSERT_COLUMNS = (
        "queue, task_type, payload, options, priority, max_retries, idempotency_key,"
        " run_at, expires_at, created_at, updated_at"
    )

    def insert_head(self) -> str:
        """INSERT up to VALUES."""
        return f"INSERT INTO {self.tasks} ({self.INSERT_COLUMNS}) VALUES "

    def insert_values(self, run: str, expires: str) -> str:
        """One row. ``run``: now | after | at; ``expires``: never | after | at. Never due in the past."""
        d, p = self.d, self.d.p
        run_at = {"now": d.now, "after": d.after(), "at": f"{d.greatest}({p}, {d.now})"}[run]
        expires_at = {"never": f"'{NEVER}'", "after": d.after(), "at": p}[expires]
        return f"({p},{p},{p},{p},{p},{p},{p},{run_at},{expires_at},{d.now},{d.now})"

    def undo_insert(self, ids: Sequence[int]) -> str:
        """Delete rows of the same uncommitted transaction."""
        return f"{self.d.delete(self.tasks)} WHERE t.id IN ({id_list(ids)})"

    # -- claim

    def claim_lock(self, ids: Sequence[int]) -> str:
        """Lock what can be claimed, skipping what others hold; everything a lease needs is read here.

        The last column says for how long it has been due (microseconds), -1 for what has expired.
        """
        return (
            "SELECT id, queue, priority, task_type, payload, options, attempts, max_retries, replays, fence,"
            f" CASE WHEN expires_at <= {self.d.now} THEN -1 ELSE {self.d.since('run_at')} END"
            f" FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)})"
            f" AND {sources(Event.CLAIM)} AND run_at <= {self.d.now} ORDER BY id {self.d.skip_locked}"
        )

    def claim(self, ids: Sequence[int], only: str = "") -> str:
        """The move itself; writes no indexed column. Parameters: token, worker_id. ``only``: a further condition."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.CLAIM)}, attempts = attempts + 1, fence = fence + 1,"
            f" lease_token = {d.p}, worker_id = {d.p}, started_at = {d.now}, updated_at = {d.now}"
            f" WHERE id IN ({id_list(ids)}) AND {sources(Event.CLAIM)}{only}"
        )

    def of_known(self, known: Collection[str], queues: Collection[str]) -> str:
        """The further condition of a claim: what this worker can run, and what has not expired."""
        types, names = (", ".join(f"'{name}'" for name in sorted(some)) for some in (known, queues))
        return f" AND task_type IN ({types}) AND queue IN ({names}) AND expires_at > {self.d.now}"

    def insert_claim(self) -> str:
        """Parameters: token, worker_id, microseconds, ids."""
        p = self.d.p
        columns = "lease_token, worker_id, expires_at, ids"
        return f"INSERT INTO {self.claims} ({columns}) VALUES ({p}, {p}, {self.d.after()}, {p})"

    def defer(self, ids: Sequence[int]) -> str:
        """A type that this worker does not know waits by run_at. Parameters: microseconds, error_type, text."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET run_at = {d.after()}, error_type = {d.p}, last_error = {d.p},"
            f" updated_at = {d.now} WHERE id IN ({id_list(ids)}) AND {sources(Event.CLAIM)}"
        )

    def discard(self, ids: Sequence[int]) -> str:
        """Pending to dead without a run. Parameters: dead_reason, error_type, text."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.DISCARD)}, dead_reason = {d.p}, error_type = {d.p},"
            f" last_error = {d.p}, completed_at = {d.now}, updated_at = {d.now}"
            f" WHERE id IN ({id_list(ids)}) AND {sources(Event.DISCARD)}"
        )

    # -- renew

    def renew(self) -> str:
        """Parameters: microseconds, token, worker_id. Never an upsert, never by worker alone.

        A claim that has run out but has not been ended may be renewed: as long as its row stands nobody else has the
        tasks, and whoever ends it asks for ``expires_at <= now`` in the transaction that moves them. Otherwise an
        outage of the database longer than a lease would lose every running task.
        """
        d = self.d
        return f"UPDATE {self.claims} SET expires_at = {d.after()} WHERE lease_token = {d.p} AND worker_id = {d.p}"

    def close_for_good(self) -> str:
        """Parameters: token, microseconds. In place of the claims row, so that none can be written under the token.

        A claim that was sent in one packet may still be on its way to the server when its worker has given up on the
        answer. When it arrives, its INSERT meets this row, and all of it is rolled back.
        """
        columns = "lease_token, worker_id, expires_at, ids"
        tail = self.d.overwrite("lease_token", ["worker_id", "expires_at", "ids"])
        return f"INSERT INTO {self.claims} ({columns}) VALUES ({self.d.p}, '', {self.d.after()}, '') {tail}"

    def delete_claim(self) -> str:
        """Parameter: token."""
        return f"DELETE FROM {self.claims} WHERE lease_token = {self.d.p}"

    def delete_expired_claim(self) -> str:
        """Parameter: token. No row: it was renewed, or somebody else ended it."""
        return f"DELETE FROM {self.claims} WHERE lease_token = {self.d.p} AND expires_at <= {self.d.now}"

    def disown_expired_claim(self) -> str:
        """Parameter: token. For a claims row that must stay because a row of it is locked.

        Its worker may not renew it any more: the other tasks of the token have been given to others.
        """
        return f"UPDATE {self.claims} SET worker_id = '' WHERE lease_token = {self.d.p} AND expires_at <= {self.d.now}"

    # -- finish

    def guard(self, event: Event, pairs: Sequence[tuple[int, int]]) -> str:
        """``WHERE`` of every write after a claim: id, token and status. Several tokens are matched in pairs."""
        where = f"WHERE id IN ({id_list(i for i, _ in pairs)}) AND {sources(event)}"
        tokens = {t for _, t in pairs}
        if len(tokens) == 1:
            return f"{where} AND lease_token = {int(tokens.pop())}"
        return f"{where} AND (id, lease_token) IN {self.d.pairs(pairs)}"

    def succeed(self, pairs: Sequence[tuple[int, int]], results: Sequence[int], notes: Sequence[int]) -> str:
        """Parameters: results of the ids in ``results``, then texts of the ids in ``notes``."""
        d = self.d
        result = f", result = {d.per_row(results)}" if results else ""
        note = ""
        if notes:
            is_noted = f"id IN ({id_list(notes)})"
            note = (
                f", error_type = CASE WHEN {is_noted} THEN 'ResultNotStorable' ELSE error_type END"
                f", last_error = CASE WHEN {is_noted} THEN {d.per_row(notes)} ELSE last_error END"
            )
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.SUCCEED)}, completed_at = {d.now},"
            f" updated_at = {d.now}{result}{note} {self.guard(Event.SUCCEED, pairs)}"
        )

    def set_options(self) -> str:
        """Parameters: options, id."""
        return f"UPDATE {self.tasks} {self.d.primary} SET options = {self.d.p} WHERE id = {self.d.p}"

    def retry(self, pairs: Sequence[tuple[int, int]]) -> str:
        """Parameters per row: microseconds, error types, texts."""
        d, ids = self.d, [i for i, _ in pairs]
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.RETRY)}, run_at = {self._after_per_row(ids)},"
            f" error_type = {d.per_row(ids)}, last_error = {d.per_row(ids)}, updated_at = {d.now}"
            f" {self.guard(Event.RETRY, pairs)}"
        )

    def snooze(self, pairs: Sequence[tuple[int, int]]) -> str:
        """Parameters per row: microseconds. The attempt is given back."""
        d, ids = self.d, [i for i, _ in pairs]
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.RETRY)}, run_at = {self._after_per_row(ids)},"
            f" attempts = {d.greatest}(attempts - 1, 0), updated_at = {d.now} {self.guard(Event.RETRY, pairs)}"
        )

    def release(self, pairs: Sequence[tuple[int, int]]) -> str:
        """Due as before; the attempt is given back."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.RELEASE)}, attempts = {d.greatest}(attempts - 1, 0),"
            f" updated_at = {d.now} {self.guard(Event.RELEASE, pairs)}"
        )

    def bury(self, pairs: Sequence[tuple[int, int]]) -> str:
        """Parameters per row: dead reasons, error types, texts."""
        d, ids = self.d, [i for i, _ in pairs]
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.BURY)}, dead_reason = {d.per_row(ids)},"
            f" error_type = {d.per_row(ids)}, last_error = {d.per_row(ids)}, completed_at = {d.now},"
            f" updated_at = {d.now} {self.guard(Event.BURY, pairs)}"
        )

    def cancel_running(self, pairs: Sequence[tuple[int, int]]) -> str:
        """A retry or release of a row with a cancel request."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.CANCEL_RUNNING)}, completed_at = {d.now},"
            f" updated_at = {d.now} {self.guard(Event.CANCEL_RUNNING, pairs)}"
        )

    def _after_per_row(self, ids: Sequence[int]) -> str:
        return self.d.after().replace(self.d.p, f"CAST({self.d.per_row(ids)} AS SIGNED)")

    def insert_attempts(self, count: int) -> str:
        """Rows of history; a row that is there already stays. 10 parameters a row, ended_at is now."""
        p = self.d.p
        row = f"({p},{p},{p},{p},{p},{p},{p},{self.d.now},{p},{p},{p})"
        return (
            f"INSERT INTO {self.attempts} (task_id, fence, outcome, attempt, replays, worker_id, started_at, ended_at,"
            f" error_type, error, traceback) VALUES {','.join([row] * count)} {self.d.do_nothing.format('task_id')}"
        )

    def count(self, rows: int) -> str:
        """Counters of this hour. 5 parameters a row: queue, task_type, outcome, shard, n."""
        d = self.d
        row = f"({d.p},{d.p},{d.hour},{d.p},{d.p},{d.p})"
        tail = d.add_up("queue, task_type, hour, outcome, shard", "n")
        columns = "queue, task_type, hour, outcome, shard, n"
        return f"INSERT INTO {self.counts} ({columns}) VALUES {','.join([row] * rows)} {tail}"

    # -- what operators do

    def cancel(self) -> str:
        """Parameter: id."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.CANCEL)}, cancel_requested_at = {d.now},"
            f" completed_at = {d.now}, updated_at = {d.now} WHERE id = {d.p} AND {sources(Event.CANCEL)}"
        )

    def request_cancel(self) -> str:
        """Parameter: id. Never ``cancelled`` at once: the handler is running."""
        d = self.d
        return (
            f"UPDATE {self.tasks} {d.primary} SET cancel_requested_at = {d.now}, updated_at = {d.now}"
            f" WHERE id = {d.p} AND {sources(Event.CANCEL_RUNNING)} AND cancel_requested_at = '{NOT_YET}'"
        )

    def set_payloads(self, ids: Sequence[int]) -> str:
        """Parameters per row: payload. Locked rows only."""
        return f"UPDATE {self.tasks} {self.d.primary} SET payload = {self.d.per_row(ids)} WHERE id IN ({id_list(ids)})"

    def replay(self, ids: Sequence[int], level: Sequence[str] = ()) -> str:
        """A new life: attempts from 0, the fence goes on rising, the last error stays readable.

        ``level``: which of queue and priority are set too; one parameter each.
        """
        d = self.d
        elsewhere = "".join(f", {column} = {d.p}" for column in level)
        return (
            f"UPDATE {self.tasks} {d.primary} SET {target(Event.REPLAY)}, attempts = 0, replays = replays + 1,"
            f" run_at = {d.now}, expires_at = CASE WHEN expires_at <= {d.now} THEN '{NEVER}' ELSE expires_at END,"
            f" cancel_requested_at = '{NOT_YET}', completed_at = '{NOT_YET}', result = NULL, dead_reason = '',"
            f" updated_at = {d.now}{elsewhere} WHERE id IN ({id_list(ids)}) AND {sources(Event.REPLAY)}"
        )

    def purge(self, ids: Sequence[int]) -> str:
        """Final rows only, tested in the statement that deletes."""
        final = ", ".join(f"'{s}'" for s in Status if s in FINAL)
        return f"{self.d.delete(self.tasks)} WHERE t.id IN ({id_list(ids)}) AND t.status IN ({final})"

    def purge_attempts(self) -> str:
        """The history of one task. Parameter: id. A list of ids would be planned as a scan, which locks every row."""
        return f"DELETE FROM {self.attempts} WHERE task_id = {self.d.p}"
