"""What operators have paused, and the tasks of paused types that wait for the end of it."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tandemq.core.audit import MAX_REASON, MAX_WHO, Deed
from tandemq.core.lifecycle import Event, Status
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.task import Level
from tandemq.store.answers import Moved, NotDue
from tandemq.store.auditing import AuditingStore, fit
from tandemq.store.dialects import NEVER, id_list, instant, instant_or_none, micros, stamp
from tandemq.store.holding import hold, paused_until
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

    def hold(self, ids: Sequence[int], paused: Collection[str]) -> list[NotDue]:
        """Hold what is due of ``ids`` and of a type that is paused now; claims nothing, leaves all else alone."""
        d, names = self.db.dialect, sorted(paused)

        def work(tx: Tx) -> list[NotDue]:
            until = paused_until(tx, self.sql, names)
            rows = tx.rows(
                f"SELECT id, queue, priority, task_type FROM {self.sql.tasks} {d.primary} WHERE id IN ({id_list(ids)})"
                f" AND {sources(Event.CLAIM)} AND run_at <= {d.now} AND expires_at > {d.now}"
                f" AND task_type IN ({', '.join([d.p] * len(names))}) ORDER BY id {d.skip_locked}",
                names,
            )
            found = [(task_id, Level(queue, p), kind) for task_id, queue, p, kind in rows if kind in until]
            return hold(tx, self.sql, until, found)

        return self.db.write(work) if ids and names else []

    def release_held(self, limit: int) -> tuple[list[Moved], bool]:
        """Let up to ``limit`` held tasks of types that are not paused any more be due now; whether to go on at once.

        Those that were moved by others meanwhile (replayed, cancelled), or are due because the pause ran out, are
        forgotten. Rows that somebody holds a lock on right now are left for the next time.
        """
        d = self.db.dialect

        def work(tx: Tx) -> tuple[list[Moved], bool]:
            mine = self._locked_held(tx, sorted(task_id for _, task_id, _ in chosen))
            if mine:
                tx.write(
                    f"UPDATE {self.sql.tasks} {d.primary} SET run_at = {d.now}, updated_at = {d.now}"
                    f" WHERE id IN ({id_list(row[0] for row in mine)}) AND {sources(Event.CLAIM)}"
                )
            locked = self._still_held(tx, {task_id for _, task_id, _ in chosen} - {row[0] for row in mine})
            gone: dict[str, dict[int, Any]] = defaultdict(dict)
            for kind, task_id, until in chosen:
                if task_id not in locked:
                    gone[kind][task_id] = until
            for kind, some in gone.items():
                self._forget_held(tx, kind, some)
            moved = [
                Moved(task_id, Level(queue, priority), kind, Event.REPLAY, Status.PENDING)
                for task_id, queue, priority, kind, _ in sorted(mine, key=lambda row: (instant(row[4]), row[0]))
            ]
            return moved, bool(gone) and len(chosen) == limit

        chosen = self.db.read(lambda tx: self._released(tx, limit))
        return self.db.write(work, repeatable=True) if chosen else ([], False)

    def _released(self, tx: Tx, limit: int) -> list[tuple[str, int, Any]]:
        """Held rows (type, id, until when) of types that are not paused; those of paused ones are not read."""
        p, held = self.db.dialect.p, self.sql.held_tasks
        of_types = f"SELECT name FROM {self.sql.pauses} WHERE kind = 'type' AND until_at > {self.db.dialect.now}"
        paused, kind, found = {name for (name,) in tx.rows(of_types)}, "", list[tuple[str, int, Any]]()
        while len(found) < limit:
            kind = tx.one(f"SELECT MIN(task_type) FROM {held} WHERE task_type > {p}", [kind])[0]
            if kind is None:
                break
            if kind not in paused:
                found += tx.rows(
                    f"SELECT task_type, task_id, held_until FROM {held} WHERE task_type = {p}"
                    f" ORDER BY task_id LIMIT {p}",
                    [kind, limit - len(found)],
                )
        return found

    def _locked_held(self, tx: Tx, ids: Sequence[int]) -> Sequence[Any]:
        return tx.rows(
            f"SELECT t.id, t.queue, t.priority, t.task_type, h.run_at {self._held_rows(ids)}"
            f" ORDER BY t.id {tx.dialect.skip_locked}"
        )

    def _still_held(self, tx: Tx, ids: Collection[int]) -> set[int]:
        return {row[0] for row in tx.rows(f"SELECT t.id {self._held_rows(ids)}")} if ids else set()

    def _held_rows(self, ids: Iterable[int]) -> str:
        """Rows that wait for the end of a pause, and for nothing else."""
        d = self.db.dialect
        return (
            f"FROM {self.sql.tasks} t {d.primary} JOIN {self.sql.held_tasks} h"
            f" ON h.task_id = t.id AND h.task_type = t.task_type AND h.held_until = t.run_at"
            f" WHERE t.id IN ({id_list(ids)}) AND {sources(Event.CLAIM)} AND t.run_at > {d.now}"
        )

    def _forget_held(self, tx: Tx, kind: str, until: Mapping[int, Any]) -> None:
        """By the time that was read, too: one that has been held anew since is not forgotten."""
        d = tx.dialect
        tx.write(
            f"{d.delete(self.sql.held_tasks)} WHERE t.task_type = {d.p} AND t.task_id IN ({id_list(until)})"
            f" AND t.held_until = {d.per_row(list(until), 't.task_id')}",
            [kind, *(stamp(instant(at)) for at in until.values())],
        )
