"""The SQL that reads: lookups and the reconciler's bounded surveys. ``looking.py`` holds what people ask for,
``statements.py`` the writes.

Open rows are found through the index (ended, queue, priority, run_at): ``ended`` is 0 for pending and running rows.
"""
# ruff: noqa: S608 - SQL is put together here from constants and integers; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Sequence

from tandemq.core.lifecycle import Event
from tandemq.store.dialects import NOT_YET, id_list
from tandemq.store.looking import PENDING, RUNNING, Looks
from tandemq.store.statements import sources


class Queries(Looks):
    """Reads, for one dialect and prefix."""

    # -- what became of an insert

    def by_key(self, *, lock: bool = True) -> str:
        """The owner of an idempotency key; with ``lock`` it waits for an uncommitted one. Parameter: key."""
        return (
            f"SELECT id, task_type, payload, queue, priority, status, run_at, run_at > {self.d.now} FROM {self.tasks}"
            f" WHERE idempotency_key = {self.d.p} {self.d.share if lock else ''}"
        )

    def stored(self, ids: Sequence[int]) -> str:
        """Whether rows of a lost COMMIT are there; waits for the old session while it lives."""
        return (
            f"SELECT id, task_type, payload FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)})"
            f" ORDER BY id {self.d.share}"
        )

    def due_times(self, ids: Sequence[int]) -> str:
        """run_at of rows, and whether it lies ahead."""
        return f"SELECT id, run_at, run_at > {self.d.now} FROM {self.tasks} WHERE id IN ({id_list(ids)})"

    def times(self, ids: Sequence[int]) -> str:
        """What the database made of the times of new rows, and whether run_at lies ahead."""
        return (
            f"SELECT id, created_at, run_at, expires_at, run_at > {self.d.now} FROM {self.tasks}"
            f" WHERE id IN ({id_list(ids)})"
        )

    def ages(self, ids: Sequence[int]) -> str:
        """When rows were created, the time now, and their options."""
        return f"SELECT id, created_at, {self.d.now}, options FROM {self.tasks} WHERE id IN ({id_list(ids)})"

    def limited_by_age(self, ids: Sequence[int]) -> str:
        """Rows whose options may carry max_age, and the time now."""
        may = "options <> '' AND INSTR(options, 'max_age') > 0"
        return f"SELECT id, {self.d.now}, options FROM {self.tasks} WHERE id IN ({id_list(ids)}) AND {may}"

    def visible(self, ids: Sequence[int]) -> str:
        """Committed and pending."""
        return f"SELECT id FROM {self.tasks} WHERE id IN ({id_list(ids)}) AND {PENDING}"

    def queue_policies(self) -> str:
        """What operators decided about retries, by queue."""
        return (
            f"SELECT queue, max_retries, policy FROM {self.queues} WHERE max_retries IS NOT NULL OR policy IS NOT NULL"
        )

    # -- leases

    def not_claimed(self, ids: Sequence[int]) -> str:
        """Why rows could not be claimed: those pending for later."""
        return (
            f"SELECT id, queue, priority, run_at FROM {self.tasks} WHERE id IN ({id_list(ids)}) AND {PENDING}"
            f" AND run_at > {self.d.now}"
        )

    def errors_of(self, ids: Sequence[int]) -> str:
        """error_type and last_error of rows."""
        return f"SELECT id, error_type, last_error FROM {self.tasks} WHERE id IN ({id_list(ids)})"

    def held(self, ids: Sequence[int], *, wait: bool, full: bool) -> str:
        """Rows to be settled, locked in id order; without ``wait`` locked ones are left out."""
        # Never the payload: no verdict needs it, and one that cannot be read would keep its whole token from ending.
        text = "'', options" if full else "'', ''"
        return (
            "SELECT id, queue, priority, task_type, status, lease_token, cancel_requested_at > "
            f"'{NOT_YET}', attempts, max_retries, replays, fence, worker_id, started_at, dead_reason, run_at, {text}"
            f" FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)}) ORDER BY id"
            f" {self.d.for_update if wait else self.d.skip_locked}"
        )

    def outcomes_of(self, ids: Collection[int]) -> str:
        """What the history has of tasks, by fence; locked rows, so nobody adds to it."""
        return f"SELECT task_id, fence, outcome FROM {self.attempts} WHERE task_id IN ({id_list(ids)})"

    def tokens(self, ids: Collection[int]) -> str:
        """The committed token of rows, without locks."""
        return f"SELECT id, lease_token FROM {self.tasks} WHERE id IN ({id_list(ids)})"

    def cancel_requested(self, ids: Collection[int]) -> str:
        """Rows with a cancel request."""
        return f"SELECT id FROM {self.tasks} WHERE id IN ({id_list(ids)}) AND cancel_requested_at > '{NOT_YET}'"

    def holding(self) -> str:
        """Parameter: id. Who holds a task, without locks and without its payload."""
        return (
            f"SELECT t.id, t.status, t.worker_id, t.cancel_requested_at > '{NOT_YET}', t.queue, t.priority,"
            " t.task_type, t.options, t.attempts, t.max_retries, t.replays, t.fence, t.lease_token,"
            " c.worker_id, c.expires_at, c.ids"
            f" FROM {self.tasks} t LEFT JOIN {self.claims} c ON c.lease_token = t.lease_token AND t.{RUNNING}"
            f" WHERE t.id = {self.d.p}"
        )

    def types_of(self, ids: Sequence[int]) -> str:
        """Which types tasks are of."""
        return f"SELECT id, task_type FROM {self.tasks} WHERE id IN ({id_list(ids)})"

    def expired_claims(self) -> str:
        """Parameter: limit. The table holds one row per batch in work: it is small, and has no index to keep."""
        return (
            f"SELECT lease_token, worker_id, expires_at, ids FROM {self.claims} WHERE expires_at <= {self.d.now}"
            f" ORDER BY expires_at LIMIT {self.d.p}"
        )

    def has_claim(self) -> str:
        """Parameter: token."""
        return f"SELECT 1 FROM {self.claims} WHERE lease_token = {self.d.p}"

    # -- surveys

    def first_level(self, ended: int = 0) -> str:
        """The first (queue, priority) of the open rows, or of those that have ended in a certain way."""
        return (
            f"SELECT queue, priority FROM {self.tasks} {self.d.open_index} WHERE ended = {int(ended)}"
            " ORDER BY queue, priority LIMIT 1"
        )

    def next_priority(self, ended: int = 0) -> str:
        """Parameters: queue, priority. The next priority of the same queue."""
        p = self.d.p
        return (
            f"SELECT queue, priority FROM {self.tasks} {self.d.open_index} WHERE ended = {int(ended)} AND queue = {p}"
            f" AND priority > {p} ORDER BY queue, priority LIMIT 1"
        )

    def next_queue(self, ended: int = 0) -> str:
        """Parameter: queue. The first level of the next queue."""
        return (
            f"SELECT queue, priority FROM {self.tasks} {self.d.open_index} WHERE ended = {int(ended)}"
            f" AND queue > {self.d.p} ORDER BY queue, priority LIMIT 1"
        )

    def oldest_due(self) -> str:
        """Parameters: queue, priority, microseconds, limit. The status is tested before the limit: else rows starve."""
        p = self.d.p
        return (
            f"SELECT id FROM {self.tasks} {self.d.open_index} WHERE ended = 0 AND queue = {p} AND priority = {p}"
            f" AND run_at <= {self.d.before()} AND {PENDING} ORDER BY run_at, id LIMIT {p}"
        )

    def pending_of_level(self) -> str:
        """Parameters: queue, priority, run_at, run_at, id, limit. Keyset page of a level."""
        p = self.d.p
        return (
            f"SELECT id, run_at, run_at <= {self.d.now} FROM {self.tasks} {self.d.open_index} WHERE ended = 0"
            f" AND {self._behind()} AND {PENDING} ORDER BY run_at, id LIMIT {p}"
        )

    def past_their_end(self) -> str:
        """Parameters: queue, priority, limit. Among the oldest due rows of a level: which are past ``expires_at``."""
        d = self.d
        return (
            f"SELECT id, expires_at <= {d.now} FROM {self.tasks} {d.open_index} WHERE ended = 0 AND queue = {d.p}"
            f" AND priority = {d.p} AND run_at <= {d.now} AND {PENDING} ORDER BY run_at, id LIMIT {d.p}"
        )

    def lock_expired(self, ids: Sequence[int]) -> str:
        """The same rows, locked and asked again."""
        d = self.d
        return (
            f"SELECT id, queue, task_type FROM {self.tasks} {d.primary} WHERE id IN ({id_list(ids)})"
            f" AND {sources(Event.DISCARD)} AND expires_at <= {d.now} ORDER BY id {d.skip_locked}"
        )

    def running_between(self) -> str:
        """Parameters: id, id. Running rows of a stretch of ids, with their claims row if there is one."""
        p = self.d.p
        return (
            f"SELECT t.id, t.lease_token FROM {self.tasks} t {self.d.primary} LEFT JOIN {self.claims} c"
            f" ON c.lease_token = t.lease_token WHERE t.id > {p} AND t.id <= {p} AND t.ended = 0 AND t.{RUNNING}"
            " AND c.lease_token IS NULL ORDER BY t.id"
        )

    def next_id(self) -> str:
        """Parameter: id."""
        return f"SELECT id FROM {self.tasks} WHERE id > {self.d.p} ORDER BY id LIMIT 1"

    # -- people

    def lock_one(self) -> str:
        """Parameter: id."""
        columns = "status, queue, task_type, lease_token"
        return f"SELECT {columns} FROM {self.tasks} WHERE id = {self.d.p} {self.d.for_update}"

    def lock_for_replay(self, ids: Sequence[int], *, before: bool, payloads: bool = False) -> str:
        """Parameter, if ``before``: the instant before which they must have ended. Rows that others hold are left."""
        d = self.d
        ended = f" AND completed_at < {d.p}" if before else ""
        return (
            f"SELECT id, queue, priority, task_type, replays{', payload' if payloads else ''} FROM {self.tasks}"
            f" {d.primary} WHERE id IN ({id_list(ids)}) AND {sources(Event.REPLAY)}{ended} ORDER BY id {d.skip_locked}"
        )
