"""The items of replay runs: chosen page by page, and moved chunk by chunk with all that follows in one transaction.

Lock order: the run's row, tasks by ascending id, the run's items, the audit log. Nobody locks a run's row while
holding a task's.
"""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tandemq.core.audit import Deed
from tandemq.core.codec import decode
from tandemq.core.lifecycle import FINAL, Event, Status
from tandemq.store.database import Abandon
from tandemq.store.dialects import id_list, stamp
from tandemq.store.replayruns import RunsStore
from tandemq.store.runs import Candidate, Chunk, Ends, Hold, ReplayRun, Revival, RunState
from tandemq.store.statements import sources
from tandemq.store.transaction import Tx

#: Width of a note in ``replay_items``.
MAX_NOTE = 500
#: Longest selection (ids, as a rule) that is told once more in the audit log.
MAX_SELECTION = 8000
LOCKED = "its row stayed locked by somebody else"


class ReplayingStore(RunsStore):
    """``store.protocol.Replaying``, put together."""

    def select_items(
        self, hold: Hold, ids: Sequence[int], *, below: int, following: int, any_state: bool
    ) -> ReplayRun | None:
        """Add a page of tasks and move ``select_below`` on, in one transaction; see the protocol."""
        d, p = self.db.dialect, self.db.dialect.p
        ripe = f"SELECT id FROM {self.sql.tasks} WHERE id IN ({id_list(ids)}) AND {sources(Event.REPLAY)}"

        def work(tx: Tx) -> ReplayRun:
            run = self._locked(tx, hold, (RunState.SELECTING,))
            if run.select_below != below:
                raise Abandon
            chosen = sorted(ids)
            if ids and not any_state:
                chosen = [row[0] for row in tx.rows(f"{ripe} AND completed_at < {p} ORDER BY id", [stamp(run.wave_at)])]
            if chosen:
                rows = ",".join(f"({hold.run_id},{int(i)},{d.now})" for i in chosen)
                tx.write(
                    f"INSERT INTO {self.sql.replay_items} (run_id, task_id, updated_at) VALUES {rows}"
                    f" {d.do_nothing.format('run_id')}"
                )
            moves = f"selected = selected + {len(chosen)}, select_below = {p}"
            self._renew(tx, hold, moves, [following])
            return self._run(tx, hold.run_id)

        return self.db.write(work)

    def waiting_items(self, run_id: int, *, after: int, limit: int) -> list[int]:
        """Ids of items without an outcome, ascending."""
        return [item.task_id for item in self.run_items(run_id, outcome="waiting", after=after, limit=limit)]

    def mark_canary(self, hold: Hold, ids: Sequence[int]) -> bool:
        """Make these waiting items part of the sample; again does no harm. False: the hold is lost."""
        sql = (
            f"UPDATE {self.sql.replay_items} SET is_canary = 1"
            f" WHERE run_id = {self.db.dialect.p} AND task_id IN ({id_list(ids)}) AND outcome = 'waiting'"
        )

        def work(tx: Tx) -> bool:
            self._locked(tx, hold, (RunState.SELECTING,))
            if ids:
                tx.write(sql, [hold.run_id])
            self._renew(tx, hold, "", [])
            return True

        return bool(self.db.write(work, repeatable=True))

    def candidates(
        self, run: ReplayRun, *, canary: bool, limit: int, but: Collection[int] = (), payloads: bool = False
    ) -> list[Candidate]:
        """The next items, oldest first, without locks."""
        p = self.db.dialect.p
        more = (" AND is_canary = 1" if canary else "") + (f" AND task_id NOT IN ({id_list(but)})" if but else "")
        sql = (
            f"SELECT task_id FROM {self.sql.replay_items} WHERE run_id = {p} AND outcome = 'waiting'{more}"
            f" ORDER BY task_id LIMIT {p}"
        )

        def work(tx: Tx) -> list[Candidate]:
            ids = [row[0] for row in tx.rows(sql, [run.id, limit])]
            return self._replayable(tx, ids, run.wave_at, payloads) if ids else []

        return self.db.read(work)

    def move_items(
        self,
        hold: Hold,
        ids: Sequence[int],
        *,
        revival: Revival,
        failed: Mapping[int, str],
        give_up: Collection[int] = (),
    ) -> Chunk | None:
        """Replay items and write all that follows in one transaction; see the protocol.

        Sent twice it finds nothing waiting the second time, so a lost answer to COMMIT does no harm.
        """

        def work(tx: Tx) -> Chunk:
            run = self._locked(tx, hold, (RunState.CANARY, RunState.RUNNING))
            waiting = self._waiting(tx, hold.run_id, ids)
            found = self._replayable(tx, waiting, run.wave_at, payloads=False)
            notes: dict[tuple[str, str], list[int]] = defaultdict(list)
            ripe = []
            for one in found:
                if one.note:
                    notes["skipped", one.note].append(one.id)
                elif one.id in failed:
                    notes["failed", failed[one.id]].append(one.id)
                else:
                    ripe.append(one.id)
            revived = self._revive(tx, ripe, run.wave_at, revival) if ripe else []
            moved = {move.id for move, _ in revived}
            locked = [i for i in ripe if i not in moved]
            notes["skipped", LOCKED] = [i for i in locked if i in give_up]
            skipped = sum(len(some) for (outcome, _), some in notes.items() if outcome == "skipped")
            lost = sum(len(some) for (outcome, _), some in notes.items() if outcome == "failed")
            self._write_outcomes(tx, hold.run_id, [(move.id, n) for move, n in revived], notes)
            entry = self._note(tx, self._deed(tx, run, revived), len(revived))
            counted = f"moved = moved + {len(moved)}, skipped = skipped + {skipped}, failed = failed + {lost}"
            self._renew(tx, hold, f"{counted}, audit_id = {entry or 'audit_id'}", [])
            return Chunk(tuple(m for m, _ in revived), tuple(i for i in locked if i not in give_up), skipped, lost)

        return self.db.write(work, repeatable=True, crash="replay.before_commit")

    def ends_of(self, run: ReplayRun, *, canary: bool, limit: int) -> Ends:
        """How the tasks fare that were moved since ``watch_from``: ``limit`` of them, evenly.

        (At a high rate none of the youngest can have died yet.)

        Gone by retention: it has ended. Dead again in this life, or replayed once more since then, which only a dead or
        cancelled one can be: it has died.
        """
        p = self.db.dialect.p
        modulo = "%" if self.db.dialect.name == "sqlite" else "%%"  # the drivers of MySQL format the text
        final = ", ".join(f"'{s}'" for s in Status if s in FINAL)
        of_canary = " AND is_canary = 1" if canary else ""
        sql = (
            "SELECT COUNT(*),"
            f" SUM(CASE WHEN t.id IS NULL OR t.status IN ({final}) OR t.replays > i.replays THEN 1 ELSE 0 END),"
            f" SUM(CASE WHEN t.replays > i.replays OR (t.status = '{Status.DEAD}' AND t.replays = i.replays)"
            " THEN 1 ELSE 0 END)"
            f" FROM (SELECT task_id, replays FROM {self.sql.replay_items} WHERE run_id = {p} AND outcome = 'moved'"
            f" AND updated_at >= {p}{of_canary} AND task_id {modulo} {p} = 0 ORDER BY task_id LIMIT {p}) i"
            f" LEFT JOIN {self.sql.tasks} t ON t.id = i.task_id"
        )
        every = 1 if canary else max(1, -(-run.moved // limit))
        n, ended, died = self.db.read(lambda tx: tx.one(sql, [run.id, stamp(run.watch_from), every, limit]))
        return Ends(int(n), int(ended or 0), int(died or 0))

    def _waiting(self, tx: Tx, run_id: int, ids: Sequence[int]) -> list[int]:
        sql = (
            f"SELECT task_id FROM {self.sql.replay_items} WHERE run_id = {tx.dialect.p}"
            f" AND task_id IN ({id_list(ids)}) AND outcome = 'waiting' ORDER BY task_id"
        )
        return [row[0] for row in tx.rows(sql, [run_id])]

    def _write_outcomes(
        self, tx: Tx, run_id: int, moved: Sequence[tuple[int, int]], notes: Mapping[tuple[str, str], Sequence[int]]
    ) -> None:
        lives: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for task_id, replays in moved:
            lives["moved", "", replays].append(task_id)
        for (outcome, note), ids in notes.items():
            if ids:
                lives[outcome, note[:MAX_NOTE], 0] += ids
        p = tx.dialect.p
        for (outcome, note, replays), ids in lives.items():
            tx.write(
                f"UPDATE {self.sql.replay_items} SET outcome = {p}, note = {p}, replays = {p},"
                f" updated_at = {tx.dialect.now} WHERE run_id = {p} AND task_id IN ({id_list(ids)})",
                [outcome, note, replays, run_id],
            )

    def _deed(self, tx: Tx, run: ReplayRun, revived: Sequence[Any]) -> Deed | None:
        """The run's one row of the audit log, which grows with each chunk."""
        if not revived:
            return None
        found = tx.one(f"SELECT audit_id FROM {self.sql.replay_runs} WHERE id = {tx.dialect.p}", [run.id])
        selection = decode(run.selection) if len(run.selection) <= MAX_SELECTION else "too long: see the run"
        details = {"selection": selection, "orders": decode(run.orders)}
        return Deed(
            action="replay",
            who=run.created_by,
            reason=run.reason,
            details=details,
            run_id=run.id,
            entry=int(found[0]),
        )
