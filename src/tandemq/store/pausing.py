"""What operators have paused, and the tasks of paused types that wait for the end of it."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tandemq.core.audit import MAX_REASON, MAX_WHO, Deed
from tandemq.core.lifecycle import Event, Status
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.task import Level
from tandemq.store.answers import Moved
from tandemq.store.auditing import AuditingStore, fit
from tandemq.store.dialects import NEVER, id_list, instant, instant_or_none, micros
from tandemq.store.statements import sources
from tandemq.store.transaction import Tx


class PausingStore(AuditingStore):
    """``store.questions.Pausing``."""

    def pauses(self) -> Sequence[Pause]:
        """Those that hold now, by kind and name."""
        sql = (
            f"SELECT kind, name, since, until_at, who, reason FROM {self.sql.pauses}"
            f" WHERE until_at > {self.db.dialect.now} ORDER BY kind, name"
        )
        return [
            Pause(PauseKind(kind), name, instant(since), instant_or_none(until), who, reason)
            for kind, name, since, until, who, reason in self.db.read(lambda tx: tx.rows(sql))
            if kind in set(PauseKind)
        ]

    def pause(self, kind: PauseKind, name: str, for_s: float | None, *, deed: Deed) -> None:
        """Write it, in one transaction with its audit row; one that holds already gets the new end and reason."""
        d = self.db.dialect
        until = f"'{NEVER}'" if for_s is None else d.after()
        sql = (
            f"INSERT INTO {self.sql.pauses} (kind, name, since, until_at, who, reason)"
            f" VALUES ({d.p}, {d.p}, {d.now}, {until}, {d.p}, {d.p})"
            f" {d.overwrite('kind, name', ['until_at', 'who', 'reason'])}"
        )
        ends = [] if for_s is None else [micros(for_s)]
        values = [kind.value, name, *ends, fit(deed.who, MAX_WHO), fit(deed.reason, MAX_REASON)]

        def work(tx: Tx) -> int:
            tx.write(f"DELETE FROM {self.sql.pauses} WHERE until_at <= {d.now}")
            tx.write(sql, values)
            return self._note(tx, deed, 1)

        deed.entry = self.db.write(work)

    def resume(self, kind: PauseKind, name: str, *, deed: Deed) -> bool:
        """End it, in one transaction with its audit row; False if there is none that holds."""
        d = self.db.dialect
        sql = f"DELETE FROM {self.sql.pauses} WHERE kind = {d.p} AND name = {d.p}"

        def work(tx: Tx) -> tuple[bool, int]:
            held = tx.one(
                f"SELECT 1 FROM {self.sql.pauses} WHERE kind = {d.p} AND name = {d.p} AND until_at > {d.now}",
                [kind.value, name],
            )
            tx.write(sql, [kind.value, name])
            return held is not None, self._note(tx, deed, 1 if held is not None else 0)

        ended, deed.entry = self.db.write(work)
        return ended

    def release_held(self, limit: int) -> tuple[list[Moved], bool]:
        """Give up to ``limit`` held tasks of types that are not paused any more their time back; whether more wait.

        Those that were moved by others meanwhile (replayed, cancelled, claimed when the pause ran out) are forgotten.
        """
        d = self.db.dialect
        look = (
            f"SELECT h.task_type, h.task_id FROM {self.sql.held_tasks} h LEFT JOIN {self.sql.pauses} p"
            f" ON p.kind = 'type' AND p.name = h.task_type AND p.until_at > {d.now}"
            f" WHERE p.name IS NULL ORDER BY h.task_type, h.task_id LIMIT {d.p}"
        )

        def work(tx: Tx) -> list[Moved]:
            mine = self._locked_held(tx, sorted(task_id for _, task_id in chosen))
            self._give_back(tx, [(row[0], row[4]) for row in mine])
            # Rows that somebody holds a lock on right now are left for the next time.
            left = self._still_held(tx, {task_id for _, task_id in chosen} - {row[0] for row in mine})
            for kind in sorted({kind for kind, _ in chosen}):
                gone = [str(task_id) for k, task_id in chosen if k == kind and task_id not in left]
                if gone:
                    tx.write(
                        f"DELETE FROM {self.sql.held_tasks} WHERE task_type = {d.p} AND task_id IN ({','.join(gone)})",
                        [kind],
                    )
            return [
                Moved(task_id, Level(queue, priority), kind, Event.REPLAY, Status.PENDING)
                for task_id, queue, priority, kind, _ in sorted(mine, key=lambda row: (instant(row[4]), row[0]))
            ]

        chosen = self.db.read(lambda tx: tx.rows(look, [limit]))
        return (self.db.write(work, repeatable=True) if chosen else []), len(chosen) == limit

    def _locked_held(self, tx: Tx, ids: Sequence[int]) -> Sequence[Any]:
        d = tx.dialect
        return tx.rows(
            f"SELECT t.id, t.queue, t.priority, t.task_type, h.run_at FROM {self.sql.tasks} t {d.primary}"
            f" JOIN {self.sql.held_tasks} h"
            f" ON h.task_id = t.id AND h.task_type = t.task_type AND h.held_until = t.run_at"
            f" WHERE t.id IN ({id_list(ids)}) AND {sources(Event.CLAIM)} ORDER BY t.id {d.skip_locked}"
        )

    def _still_held(self, tx: Tx, ids: Collection[int]) -> set[int]:
        if not ids:
            return set()
        sql = (
            f"SELECT t.id FROM {self.sql.tasks} t JOIN {self.sql.held_tasks} h"
            f" ON h.task_id = t.id AND h.task_type = t.task_type AND h.held_until = t.run_at"
            f" WHERE t.id IN ({id_list(ids)}) AND {sources(Event.CLAIM)}"
        )
        return {row[0] for row in tx.rows(sql)}

    def _give_back(self, tx: Tx, times: Sequence[tuple[int, Any]]) -> None:
        if times:
            d, ids = tx.dialect, [task_id for task_id, _ in times]
            tx.write(
                f"UPDATE {self.sql.tasks} {d.primary} SET run_at = {d.per_row(ids)}, updated_at = {d.now}"
                f" WHERE id IN ({id_list(ids)}) AND {sources(Event.CLAIM)}",
                [str(run_at) for _, run_at in times],
            )
