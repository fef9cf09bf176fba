"""The SQL behind what people ask for and what retention removes: pages, counts, stretches of the index.

Nothing here reads more than a stated number of rows or index entries, however big the tables are. ``entries`` are
ranges of the index (ended, queue, priority, run_at): what is in them is read without touching a row. A plus before a
column changes nothing, but for SQLite: it may then not choose an index by that column.
"""
# ruff: noqa: S608 - SQL is put together here from constants and integers; values are bound parameters

from __future__ import annotations

from collections.abc import Sequence

from tandemq.core.lifecycle import FINAL, Status
from tandemq.store.dialects import Dialect, id_list
from tandemq.store.statements import Tables

TASK_COLUMNS = (
    "t.id, t.task_type, t.queue, t.payload, t.options, t.priority, t.status, t.attempts, t.max_retries, t.replays,"
    " t.fence, t.worker_id, t.idempotency_key, t.run_at, t.expires_at, t.cancel_requested_at, t.started_at,"
    " t.completed_at, t.created_at, t.updated_at, t.result, t.last_error, t.error_type, t.dead_reason"
)
ATTEMPT_COLUMNS = "attempt, replays, fence, outcome, worker_id, started_at, ended_at, error_type, error, traceback"
#: Failed attempts of one task that are shown: 4 MB if all have the longest errors.
SHOWN_ATTEMPTS = 100
_IN_ORDER = "ORDER BY fence, ended_at, outcome"
PENDING = f"status = '{Status.PENDING}'"
RUNNING = f"status = '{Status.RUNNING}'"


class Looks(Tables):
    """Reads for people, for one dialect and prefix."""

    def __init__(self, dialect: Dialect, prefix: str) -> None:
        super().__init__(prefix)
        self.d = dialect

    # -- one task

    def task(self) -> str:
        """Parameter: id."""
        return f"{self._tasks('')} WHERE t.id = {self.d.p}"

    def attempts_of(self) -> str:
        """The newest ones. Parameter: id."""
        newest = (
            f"SELECT {ATTEMPT_COLUMNS} FROM {self.attempts} WHERE task_id = {self.d.p}"
            f" ORDER BY fence DESC, ended_at DESC, outcome DESC LIMIT {SHOWN_ATTEMPTS}"
        )
        return f"SELECT * FROM ({newest}) AS newest {_IN_ORDER}"

    def attempts_of_many(self, ids: Sequence[int]) -> str:
        """The task's id comes first."""
        return f"SELECT task_id, {ATTEMPT_COLUMNS} FROM {self.attempts} WHERE task_id IN ({id_list(ids)}) {_IN_ORDER}"

    def sizes(self, ids: Sequence[int]) -> str:
        """Ids, and the bytes of their longest texts."""
        length = "LENGTH(payload) + COALESCE(LENGTH(result), 0) + COALESCE(LENGTH(last_error), 0)"
        return f"SELECT id, {length} FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)})"

    def ending(self) -> str:
        """Parameter: id."""
        return f"SELECT status, result, last_error, dead_reason FROM {self.tasks} WHERE id = {self.d.p}"

    # -- pages, newest first

    def page(self, conditions: Sequence[str], *, ids_only: bool = False) -> str:
        """Down the primary key. Parameters: those of the conditions, then limit. The conditions bound what is read."""
        return f"{self._chosen(conditions, self.d.primary, ids_only)} ORDER BY t.id DESC LIMIT {self.d.p}"

    def keyed(self, conditions: Sequence[str], *, ids_only: bool = False) -> str:
        """The one row where ``t.idempotency_key =`` is among the conditions. Parameters as for ``page``."""
        return f"{self._chosen(conditions, '', ids_only)} LIMIT {self.d.p}"

    def _chosen(self, conditions: Sequence[str], hint: str, ids_only: bool) -> str:
        source = f"SELECT t.id FROM {self.tasks} t {hint}" if ids_only else self._tasks(hint)
        return f"{source} WHERE {' AND '.join(conditions)}"

    def _tasks(self, hint: str) -> str:
        return (
            f"SELECT {TASK_COLUMNS}, c.expires_at, t.run_at <= {self.d.now} FROM {self.tasks} t {hint}"
            f" LEFT JOIN {self.claims} c ON c.lease_token = t.lease_token AND t.{RUNNING}"
        )

    def end_of_stretch(self) -> str:
        """Parameters: id, offset. The id so many rows further down."""
        p = self.d.p
        return (
            f"SELECT t.id FROM {self.tasks} t {self.d.primary} WHERE t.id < {p} ORDER BY t.id DESC LIMIT 1 OFFSET {p}"
        )

    def entries(self, *, by_level: bool = False, any_queue: bool = True, due: bool | None = None) -> str:
        """A range of the open index: rows that ended alike, of a queue, of a level, of a level and (not) due.

        Parameters: ended (queue (priority)).
        """
        p, text = self.d.p, f"t.ended = {self.d.p}"
        if by_level or not any_queue:
            text += f" AND t.queue = {p}"
        if by_level:
            text += f" AND t.priority = {p}"
        return text if due is None else f"{text} AND t.run_at {'<=' if due else '>'} {self.d.now}"

    def more_than(self, entries: Sequence[str]) -> str:
        """Whether there are more entries than that in these ranges. Parameters: of the ranges, then offset."""
        return f"SELECT 1 FROM {self._index()} WHERE {_any(entries)} LIMIT 1 OFFSET {self.d.p}"

    def candidates(self, entries: Sequence[str]) -> str:
        """The newest ids in these ranges, which are read as a whole. Parameters: of the ranges, id, limit."""
        p = self.d.p
        return f"SELECT t.id FROM {self._index()} WHERE {_any(entries)} AND +t.id < {p} ORDER BY +t.id DESC LIMIT {p}"

    def claimed_ids(self) -> str:
        """Ids of the batches in work; the table is small."""
        return f"SELECT ids FROM {self.claims}"

    # -- counts

    def count_entries(self, entries: str) -> str:
        """How many entries are in this range, at most ``limit``. Parameters: of the range, then limit."""
        return f"SELECT COUNT(*) FROM (SELECT 1 FROM {self._index()} WHERE {entries} LIMIT {self.d.p}) AS some"

    def open_counts(self) -> str:
        """Parameters: queue, limit. Reads the rows, for their status and attempts."""
        d = self.d
        return (
            "SELECT priority, status, due, again, COUNT(*) FROM (SELECT priority, status,"
            f" run_at <= {d.now} AS due, attempts > 0 AS again FROM {self.tasks} {d.open_index}"
            f" WHERE ended = 0 AND queue = {d.p} LIMIT {d.p}) AS some GROUP BY priority, status, due, again"
        )

    def retrying_share(self) -> str:
        """Parameters: queue, priority, limit. Among the first rows for later: how many they are, how many have run."""
        d = self.d
        return (
            "SELECT COUNT(*), COALESCE(SUM(again), 0) FROM (SELECT attempts > 0 AS again"
            f" FROM {self.tasks} {d.open_index} WHERE ended = 0 AND queue = {d.p} AND priority = {d.p}"
            f" AND run_at > {d.now} ORDER BY run_at, id LIMIT {d.p}) AS some"
        )

    def running_by_level(self, ids: Sequence[int]) -> str:
        """Which of these run, by queue and priority."""
        return (
            f"SELECT queue, priority, COUNT(*) FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)})"
            f" AND {RUNNING} GROUP BY queue, priority"
        )

    def ended_counts(self) -> str:
        """Sums over all hours and shards; ``counts_to_merge`` keeps them few."""
        return f"SELECT outcome, SUM(n) FROM {self.counts} GROUP BY outcome"

    # -- is a queue idle?

    def any_due(self) -> str:
        """Parameters: queue, priority. Running rows count too: their run_at has passed."""
        d = self.d
        return (
            f"SELECT 1 FROM {self.tasks} {d.open_index} WHERE ended = 0 AND queue = {d.p} AND priority = {d.p}"
            f" AND run_at <= {d.now} LIMIT 1"
        )

    def open_stretch(self) -> str:
        """Parameters: queue, priority, run_at, run_at, id, limit. How many open rows lie behind that entry."""
        return (
            f"SELECT COUNT(*) FROM (SELECT 1 FROM {self.tasks} {self.d.open_index} WHERE ended = 0"
            f" AND {self._behind()} LIMIT {self.d.p}) AS some"
        )

    def end_of_open_stretch(self) -> str:
        """Parameters: queue, priority, run_at, run_at, id, offset. Where the stretch behind that entry ends."""
        return (
            f"SELECT run_at, id FROM {self.tasks} {self.d.open_index} WHERE ended = 0 AND {self._behind()}"
            f" ORDER BY run_at, id LIMIT 1 OFFSET {self.d.p}"
        )

    def any_begun(self) -> str:
        """Parameters: queue, priority, run_at, run_at, id, then run_at, run_at, id of the end. Rows begun before.

        Those that are held do not count: nobody runs them as long as their type is paused.
        """
        p = self.d.p
        held = (
            f"SELECT 1 FROM {self.held_tasks} h JOIN {self.pauses} p ON p.kind = 'type' AND p.name = h.task_type"
            f" WHERE h.task_type = {self.tasks}.task_type AND h.task_id = {self.tasks}.id"
            f" AND h.held_until = {self.tasks}.run_at AND p.until_at > {self.d.now}"
        )
        return (
            f"SELECT 1 FROM {self.tasks} {self.d.open_index} WHERE ended = 0 AND {self._behind()}"
            f" AND run_at <= {p} AND (run_at < {p} OR id <= {p}) AND (attempts > 0 OR {RUNNING})"
            f" AND NOT EXISTS ({held}) LIMIT 1"
        )

    def retries_so_far(self) -> str:
        """Parameter: queue. Rises whenever a row of the queue is put back for a later attempt."""
        return f"SELECT COALESCE(SUM(n), 0) FROM {self.counts} WHERE queue = {self.d.p} AND outcome = 'retried'"

    # -- retention

    def ended_stretch(self, ended: int) -> str:
        """Parameters: instant; queue, priority, run_at, run_at, id; run_at, limit. The next rows that have ended."""
        p = self.d.p
        return (
            f"SELECT id, run_at, task_type, completed_at < {p} FROM {self.tasks} {self.d.open_index}"
            f" WHERE ended = {int(ended)} AND {self._behind()} AND run_at < {p} ORDER BY run_at, id LIMIT {p}"
        )

    def end_of_ended_stretch(self, ended: int) -> str:
        """Parameters: queue, priority, run_at, run_at, id, offset. Where the stretch behind that entry ends."""
        return (
            f"SELECT run_at, id FROM {self.tasks} {self.d.open_index} WHERE ended = {int(ended)}"
            f" AND {self._behind()} ORDER BY run_at, id LIMIT 1 OFFSET {self.d.p}"
        )

    def length_of_ended_stretch(self, ended: int) -> str:
        """Parameters: queue, priority, run_at, run_at, id, limit. How many rows lie behind that entry."""
        where = f"WHERE ended = {int(ended)} AND {self._behind()} LIMIT {self.d.p}"
        return f"SELECT COUNT(*) FROM (SELECT 1 FROM {self.tasks} {self.d.open_index} {where}) AS some"

    def in_ended_stretch(self, ended: int, columns: str, tests: Sequence[str]) -> str:
        """Parameters: queue, priority, run_at, run_at, id; run_at, run_at, id of the end; those of the tests."""
        p = self.d.p
        where = "".join(f" AND {test}" for test in tests)
        return (
            f"SELECT t.id{columns} FROM {self._index()} WHERE t.ended = {int(ended)} AND {self._behind()}"
            f" AND run_at <= {p} AND (run_at < {p} OR id <= {p}){where} ORDER BY run_at, id"
        )

    def lock_for_prune(self, ids: Sequence[int], statuses: Sequence[Status]) -> str:
        """Parameters: instant, microseconds. What still is as it was read, but for what others hold."""
        return self._removable(ids, statuses, f" AND completed_at < {self.d.p}", self.d.skip_locked)

    def lock_for_purge(self, ids: Sequence[int], *, before: bool = False) -> str:
        """Parameters: instant (if ``before``), microseconds. What has ended; waits for what others hold."""
        further = f" AND completed_at < {self.d.p}" if before else ""
        return self._removable(ids, tuple(FINAL), further, self.d.for_update)

    def purgeable(self, ids: Sequence[int]) -> str:
        """Parameter: microseconds. The same, without locks."""
        return self._removable(ids, tuple(FINAL), "", "")

    def _removable(self, ids: Sequence[int], statuses: Sequence[Status], further: str, lock: str) -> str:
        """Keyed rows keep their key for a while after their end."""
        wanted = ", ".join(f"'{Status(s)}'" for s in sorted(statuses))
        return (
            f"SELECT id, queue, task_type FROM {self.tasks} {self.d.primary} WHERE id IN ({id_list(ids)})"
            f" AND status IN ({wanted}){further}"
            f" AND (idempotency_key IS NULL OR completed_at <= {self.d.before()}) ORDER BY id {lock}"
        )

    def with_attempts(self, ids: Sequence[int]) -> str:
        """Which tasks have a history, without locks."""
        return f"SELECT DISTINCT task_id FROM {self.attempts} WHERE task_id IN ({id_list(ids)}) ORDER BY task_id"

    def counted_type(self, *, same_queue: bool) -> str:
        """Parameters: queue (and task_type of the same queue). The next (queue, task_type) that has counters."""
        p = self.d.p
        where = f"queue = {p} AND task_type > {p}" if same_queue else f"queue > {p}"
        return f"SELECT queue, task_type FROM {self.counts} WHERE {where} ORDER BY queue, task_type LIMIT 1"

    def counts_to_merge(self) -> str:
        """Parameters: queue, task_type, instant, limit. Days before it of which an outcome has several counters."""
        p = self.d.p
        return (
            f"SELECT DATE(hour), outcome FROM {self.counts} WHERE queue = {p} AND task_type = {p} AND hour < {p}"
            f" GROUP BY DATE(hour), outcome HAVING COUNT(*) > 1 ORDER BY DATE(hour), outcome LIMIT {p}"
        )

    def lock_counts(self) -> str:
        """Parameters: queue, task_type, from, until, outcome. The counters of a day, in key order."""
        source = f"SELECT t.n FROM {self.counts} t {self.d.primary} WHERE {self._of_day()}"
        return f"{source} ORDER BY t.hour, t.shard {self.d.for_update}"

    def delete_counts(self) -> str:
        """Parameters: as ``lock_counts``. By key: a scan would wait for the counters of this hour."""
        return f"{self.d.delete(self.counts)} WHERE {self._of_day()}"

    def _of_day(self) -> str:
        p = self.d.p
        return f"t.queue = {p} AND t.task_type = {p} AND t.hour >= {p} AND t.hour < {p} AND t.outcome = {p}"

    def insert_count(self) -> str:
        """Parameters: queue, task_type, hour, outcome, shard, n."""
        columns = "queue, task_type, hour, outcome, shard, n"
        return f"INSERT INTO {self.counts} ({columns}) VALUES ({', '.join([self.d.p] * 6)})"

    def _index(self) -> str:
        return f"{self.tasks} t {self.d.open_index}"

    def _behind(self) -> str:
        """Entries of a level behind (run_at, id); the level's own parameters come first."""
        p = self.d.p
        return f"queue = {p} AND priority = {p} AND run_at >= {p} AND (run_at > {p} OR id > {p})"


def _any(ranges: Sequence[str]) -> str:
    return f"({' OR '.join(f'({r})' for r in ranges)})"
