"""What monitoring reads of the database: levels by bounded looks, and the counters of ended tasks."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Sequence

from tandemq.core.pausing import PauseKind
from tandemq.core.task import Level
from tandemq.store.counting import CountingStore
from tandemq.store.dialects import instant, micros
from tandemq.store.facts import Levels
from tandemq.store.looking import PENDING
from tandemq.store.transaction import Tx

#: Of more levels than this only the first are looked at for their oldest ready task, one statement each.
MAX_LOOKS = 500


class GaugingStore(CountingStore):
    """``store.facts.Gauging``."""

    def levels_now(self, *, alive_s: float) -> Levels:
        """See the protocol."""

        def work(tx: Tx) -> Levels:
            levels = self._levels(tx)
            queues, dead, dead_capped = self._count_open(tx, levels)
            found = tx.rows(self._workers(), [micros(alive_s)])
            return Levels(
                now=instant(tx.one(f"SELECT {self.db.dialect.now}")[0]),
                queues=queues,
                dead=dead,
                dead_capped=dead_capped,
                oldest_s=self._oldest(tx, levels[:MAX_LOOKS]),
                workers={state: int(n) for state, n, _ in found},
                slots={state: int(slots) for state, _, slots in found},
                paused=frozenset(name for (name,) in tx.rows(self._paused())),
                unled_s={role: max(0, int(us)) / 1e6 for role, us in tx.rows(self._unled())},
            )

        return self.db.read(work)

    def outcomes(self, limit: int) -> list[tuple[str, str, str, int]]:
        """See the protocol."""
        sql = (
            f"SELECT queue, task_type, outcome, SUM(n) FROM {self.sql.counts}"
            f" GROUP BY queue, task_type, outcome ORDER BY queue, task_type, outcome LIMIT {self.db.dialect.p}"
        )
        rows = self.db.read(lambda tx: tx.rows(sql, [limit]))
        return [(queue, kind, outcome, int(n)) for queue, kind, outcome, n in rows]

    def _oldest(self, tx: Tx, levels: Sequence[Level]) -> dict[str, float]:
        oldest: dict[str, float] = {}
        for level in levels:
            row = tx.one(self._oldest_due(), [level.queue, level.priority])
            waited_s = 0.0 if row is None else int(row[0]) / 1e6
            oldest[level.queue] = max(oldest.get(level.queue, 0.0), waited_s)
        return oldest

    def _oldest_due(self) -> str:
        """Parameters: queue, priority. Rows that run come first in the index, and they are few."""
        d = self.db.dialect
        return (
            f"SELECT {d.since('run_at')} FROM {self.sql.tasks} {d.open_index} WHERE ended = 0 AND queue = {d.p}"
            f" AND priority = {d.p} AND run_at <= {d.now} AND {PENDING} ORDER BY run_at, id LIMIT 1"
        )

    def _workers(self) -> str:
        return (
            f"SELECT state, COUNT(*), SUM(slots * processes) FROM {self.sql.workers}"
            f" WHERE heartbeat_at >= {self.db.dialect.before()} AND state <> 'stopped' GROUP BY state"
        )

    def _paused(self) -> str:
        now = self.db.dialect.now
        return f"SELECT name FROM {self.sql.pauses} WHERE kind = '{PauseKind.QUEUE.value}' AND until_at > {now}"

    def _unled(self) -> str:
        return f"SELECT role, {self.db.dialect.since('expires_at')} FROM {self.sql.leaders}"
