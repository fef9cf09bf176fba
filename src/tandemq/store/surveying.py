"""The reconciler's reads: all bounded, all without locks; and the two things it ends without a lease."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from tandemq.core.lifecycle import DeadReason, Status
from tandemq.core.task import Level, epoch_ms
from tandemq.core.values import QUEUE_NAME
from tandemq.store.answers import Ended, OpenRow, Settled
from tandemq.store.base import StoreBase
from tandemq.store.dialects import instant, micros, stamp
from tandemq.store.held import Held, Settling
from tandemq.store.protocol import Judge
from tandemq.store.transaction import Tx

#: More levels than anybody can watch; a bound, not a limit to be met.
MAX_LEVELS = 10_000
#: Ids that one step of the sweep looks at, per row asked for: finished rows lie between the open ones.
SWEEP_FACTOR = 10
#: (run_at, id) before every entry of a level.
FIRST_ENTRY = ("0001-01-01 00:00:00.000000", 0)


class SurveyingStore(StoreBase):
    """``store.protocol.Surveying``."""

    def open_levels(self) -> list[Level]:
        """Levels that have open rows, by skip scan over the open index; queues that no worker can name are left out."""
        return [level for level in self.db.read(self._levels) if QUEUE_NAME.fullmatch(level.queue)]

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        """Ids of the oldest pending rows due for longer than ``older_than_s``, by (run_at, id)."""
        params = [level.queue, level.priority, micros(older_than_s), limit]
        return [row[0] for row in self.db.read(lambda tx: tx.rows(self.queries.oldest_due(), params))]

    def count_later(self, level: Level, *, limit: int) -> int:
        """How many pending rows of the level lie ahead, counted up to ``limit``."""
        sql = self.queries.count_entries(self.queries.entries(by_level=True, due=False))
        return int(self.db.read(lambda tx: tx.one(sql, [0, level.queue, level.priority, limit]))[0])

    def count_due_before(self, level: Level, instant: datetime, *, limit: int) -> int:
        """How many open rows of the level were due before an instant, counted up to ``limit``."""
        before = f"{self.queries.entries(by_level=True)} AND t.run_at < {self.db.dialect.p}"
        params = [0, *level, stamp(instant), limit]
        return int(self.db.read(lambda tx: tx.one(self.queries.count_entries(before), params))[0])

    def pending_after(self, queue: str, cursor: str, limit: int) -> tuple[list[OpenRow], str]:
        """Pending rows of a queue in (priority, run_at, id) order behind an opaque cursor; see the protocol."""

        def work(tx: Tx) -> tuple[list[OpenRow], str]:
            rows: list[OpenRow] = []
            priority, run_at, after_id = _read_cursor(cursor)
            while True:
                if priority is None or run_at is None:
                    level = tx.one(
                        self.queries.next_priority(), [queue, -(2**15) - 1 if priority is None else priority]
                    )
                    if level is None:
                        return rows, ""
                    priority, (run_at, after_id) = level[1], FIRST_ENTRY
                params = [queue, priority, run_at, run_at, after_id, limit - len(rows)]
                page = tx.rows(self.queries.pending_of_level(), params)
                for task_id, at, due in page:
                    rows.append(OpenRow(task_id, Level(queue, priority), epoch_ms(instant(at)), bool(due)))
                if len(rows) >= limit:
                    return rows, f"{priority}|{stamp(instant(page[-1][1]))}|{page[-1][0]}"
                run_at = None

        return self.db.read(work)

    def discard_expired(self, level: Level, *, limit: int) -> list[Ended]:
        """Bury pending rows of the level whose ``expires_at`` has passed, among the ``limit`` oldest due."""
        params = [level.queue, level.priority, limit]
        looked_at = self.db.read(lambda tx: tx.rows(self.queries.past_their_end(), params))
        ids = [task_id for task_id, is_past in looked_at if is_past]

        def work(tx: Tx) -> list[Ended]:
            rows = tx.rows(self.queries.lock_expired(ids))
            if rows:
                text = "it was not started before its expires_at"
                reason = DeadReason.EXPIRED.value
                tx.write(self.sql.discard([row[0] for row in rows]), [reason, "Expired", text])
                self.settler.count(tx, Counter((queue, kind, Status.DEAD.value) for _, queue, kind in rows))
            return [Ended(task_id, kind, DeadReason.EXPIRED.value) for task_id, _, kind in rows]

        return self.db.write(work) if ids else []

    def orphans(self, after_id: int, limit: int) -> tuple[list[tuple[int, int]], int]:
        """Running rows whose token has no claims row, as (id, token), in the next stretch of ids; 0 at the end.

        A stretch is bounded in rows looked at, finished ones included, and gaps in the ids are jumped over.
        """
        stop = after_id + limit * SWEEP_FACTOR

        def work(tx: Tx) -> tuple[list[tuple[int, int]], int]:
            found = [(task_id, token) for task_id, token in tx.rows(self.queries.running_between(), [after_id, stop])]
            following = tx.one(self.queries.next_id(), [stop])
            return found, 0 if following is None else following[0] - 1

        return self.db.read(work)

    def end_orphan(self, task_id: int, token: int, *, judge: Judge) -> Settled:
        """Lock the row, look for its claims row in a second statement, and judge it only if there is still none.

        In one statement the look would be older than the lock: it expired tasks that had just been claimed.
        """

        def work(tx: Tx) -> Settled:
            rows = [Held(*row) for row in tx.rows(self.queries.held([task_id], wait=False, full=True))]
            mine = [r for r in rows if r.token == token and r.status == Status.RUNNING]
            if not rows:
                return Settled(locked=(task_id,) if tx.one(self.queries.next_id(), [task_id - 1]) == (task_id,) else ())
            if not mine or tx.one(self.queries.has_claim(), [token]) is not None:
                return Settled()
            lease = mine[0].lease()
            verdict = judge(lease)
            if verdict is None:
                return Settled()
            answers, counts = self.settler.settle(tx, [Settling(mine[0], lease, verdict)])
            self.settler.count(tx, counts)
            return Settled(moved=tuple(answers))

        return self.db.write(work)

    def _levels(self, tx: Tx, ended: int = 0) -> list[Level]:
        levels: list[Level] = []
        row: Any = tx.one(self.queries.first_level(ended))
        while row is not None and len(levels) < MAX_LEVELS:
            levels.append(Level(*row))
            row = tx.one(self.queries.next_priority(ended), row) or tx.one(self.queries.next_queue(ended), [row[0]])
        return levels


def _read_cursor(cursor: str) -> tuple[int | None, str | None, int]:
    if not cursor:
        return None, None, 0
    priority, run_at, task_id = cursor.split("|")
    return int(priority), run_at, int(task_id)
