"""Replay runs as rows: who carries one out, in which state it is, and what became of its tasks."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tandemq.core.audit import Deed
from tandemq.store.database import Abandon
from tandemq.store.dialects import NOT_YET, instant, instant_or_none, micros
from tandemq.store.reviving import RevivingStore
from tandemq.store.runs import ACTIVE, Hold, ReplayRun, RunItem, RunState
from tandemq.store.transaction import Tx

_TOP = 2**63 - 1
_COLUMNS = (
    "id, state, created_by, reason, selection, orders, wave_at, select_below, selected, moved, skipped, failed, note,"
    " watch_from, holder, created_at, updated_at, ended_at"
)


class RunsStore(RevivingStore):
    """The runs of ``store.protocol.Replaying``; ``replaying.py`` has what is done with their items."""

    def create_run(
        self, *, created_by: str, reason: str, selection: str, orders: str, holder: str, hold_s: float
    ) -> ReplayRun:
        """Store a run, selecting, its wave beginning now: what ended in this very microsecond had ended before."""
        d, now = self.db.dialect, self.db.dialect.now
        columns = (
            "state, created_by, reason, selection, orders, note, holder, select_below, wave_at, held_until, created_at,"
            " updated_at"
        )
        sql = (
            f"INSERT INTO {self.sql.replay_runs} ({columns})"
            f" VALUES ({', '.join([d.p] * 8)}, {d.after()}, {d.after()}, {now}, {now})"
        )
        texts = [created_by[:255], reason, selection, orders, "", holder, _TOP]

        def work(tx: Tx) -> ReplayRun:
            run_id = tx.insert(sql, [RunState.SELECTING.value, *texts, 1, micros(hold_s)])
            return self._run(tx, run_id)

        return self.db.write(work)

    def run(self, run_id: int) -> ReplayRun | None:
        """One run."""
        rows = self.db.read(lambda tx: self._runs(tx, f"id = {tx.dialect.p}", [run_id], 1))
        return rows[0] if rows else None

    def runs(
        self, *, limit: int, below: int | None = None, states: Collection[RunState] | None = None
    ) -> list[ReplayRun]:
        """Newest first by id."""
        p = self.db.dialect.p
        of_states = "" if states is None else f" AND state IN ({_quoted(states)})"
        return self.db.read(
            lambda tx: self._runs(tx, f"id < {p}{of_states}", [_TOP if below is None else below], limit)
        )

    def run_notes(self, run_id: int) -> dict[tuple[str, str], int]:
        """How many items of the run have which (outcome, note)."""
        sql = (
            f"SELECT outcome, note, COUNT(*) FROM {self.sql.replay_items} WHERE run_id = {self.db.dialect.p}"
            " GROUP BY outcome, note ORDER BY outcome, note LIMIT 1000"
        )
        return {(outcome, note): n for outcome, note, n in self.db.read(lambda tx: tx.rows(sql, [run_id]))}

    def run_items(self, run_id: int, *, outcome: str, after: int = 0, limit: int = 100) -> list[RunItem]:
        """Items with this outcome, by task id."""
        p = self.db.dialect.p
        sql = (
            f"SELECT task_id, outcome, is_canary, replays, note FROM {self.sql.replay_items}"
            f" WHERE run_id = {p} AND outcome = {p} AND task_id > {p} ORDER BY task_id LIMIT {p}"
        )
        rows = self.db.read(lambda tx: tx.rows(sql, [run_id, outcome, after, limit]))
        return [RunItem(i, kind, bool(canary), replays, note) for i, kind, canary, replays, note in rows]

    def hold_run(self, hold: Hold, *, take_over: bool = False) -> ReplayRun | None:
        """Take or keep an active run. None: it is not active, or somebody else holds it (unless ``take_over``)."""
        d = self.db.dialect
        mine = "" if take_over else f" AND (holder = {d.p} OR held_until <= {d.now})"
        sql = (
            f"UPDATE {self.sql.replay_runs} SET holder = {d.p}, held_until = {d.after()}"
            f" WHERE id = {d.p} AND state IN ({_quoted(ACTIVE)}){mine}"
        )
        params = [hold.holder, micros(hold.hold_s), hold.run_id, *(() if take_over else (hold.holder,))]
        return self.db.write(lambda tx: self._run(tx, hold.run_id) if tx.write(sql, params) else None, repeatable=True)

    def release_run(self, hold: Hold) -> None:
        """Leave it to whoever comes next."""
        p = self.db.dialect.p
        sql = f"UPDATE {self.sql.replay_runs} SET holder = '', held_until = '{NOT_YET}' WHERE id = {p} AND holder = {p}"
        self.db.write(lambda tx: tx.write(sql, [hold.run_id, hold.holder]), repeatable=True)

    def turn_run(
        self,
        run_id: int,
        sources: Collection[RunState],
        target: RunState | None,
        *,
        note: str = "",
        resume: RunState | None = None,
        wait_s: float | None = None,
        watch_anew: bool = False,
        holder: str | None = None,
        deed: Deed | None = None,
    ) -> bool:
        """Compare-and-set of the state; see the protocol."""
        d = self.db.dialect
        # MySQL assigns from left to right: what is read of the state comes before what is written to it.
        changes = ["resume = " + ("state" if resume is None else d.p), f"note = {d.p}", f"updated_at = {d.now}"]
        if target is None:
            changes = ["state = resume", *changes[1:]]
        else:
            changes.append(f"state = '{target}'")
        params: list[Any] = [*([resume.value] if resume and target else []), note]
        if wait_s is not None:
            changes.append(f"wait_until = {d.after()}")
            params.append(micros(wait_s))
        if watch_anew:  # what was moved in this very microsecond was moved before
            changes.append(f"watch_from = {d.after()}")
            params.append(1)
        changes += [f"ended_at = {d.now}"] if target in {RunState.DONE, RunState.CANCELLED} else []
        if target not in ACTIVE:  # nobody's: whoever comes first may carry it on
            changes.append(f"holder = '', held_until = '{NOT_YET}'")
        mine = "" if holder is None else f" AND holder = {d.p}"
        sql = (
            f"UPDATE {self.sql.replay_runs} SET {', '.join(changes)}"
            f" WHERE id = {d.p} AND state IN ({_quoted(sources)}){mine}"
        )
        params += [run_id, *(() if holder is None else (holder,))]

        def work(tx: Tx) -> bool:
            turned = tx.write(sql, params) == 1
            if turned:
                self._note(tx, deed, 1)
            return turned

        return self.db.write(work, repeatable=deed is None)

    def _runs(self, tx: Tx, where: str, params: Sequence[Any], limit: int, lock: str = "") -> list[ReplayRun]:
        now = tx.dialect.now
        sql = (
            f"SELECT {_COLUMNS}, held_until > {now}, wait_until <= {now} FROM {self.sql.replay_runs}"
            f" WHERE {where} ORDER BY id DESC LIMIT {tx.dialect.p} {lock}"
        )
        return [_run(row) for row in tx.rows(sql, [*params, limit])]

    def _run(self, tx: Tx, run_id: int) -> ReplayRun:
        return self._runs(tx, f"id = {tx.dialect.p}", [run_id], 1)[0]

    def _locked(self, tx: Tx, hold: Hold, states: Collection[RunState]) -> ReplayRun:
        """The run's row, locked; the transaction is over unless the run is in one of these states and held by us."""
        found = self._runs(tx, f"id = {tx.dialect.p}", [hold.run_id], 1, tx.dialect.for_update)
        if not found or found[0].holder != hold.holder or found[0].state not in states:
            raise Abandon
        return found[0]

    def _renew(self, tx: Tx, hold: Hold, changes: str, params: Sequence[Any]) -> None:
        d = tx.dialect
        changes = f"{changes}, " if changes else ""
        times = f"held_until = {d.after()}, updated_at = {d.now}"
        sql = f"UPDATE {self.sql.replay_runs} SET {changes}{times} WHERE id = {d.p}"
        tx.write(sql, [*params, micros(hold.hold_s), hold.run_id])


def _run(row: Any) -> ReplayRun:
    values = dict(zip(_COLUMNS.split(", "), row, strict=False))
    for name in ("wave_at", "watch_from", "created_at", "updated_at"):
        values[name] = instant(values[name])
    values["state"], values["ended_at"] = RunState(values["state"]), instant_or_none(values["ended_at"])
    return ReplayRun(**values, is_held=bool(row[-2]), wait_is_over=bool(row[-1]))


def _quoted(states: Collection[RunState]) -> str:
    return ", ".join(f"'{state}'" for state in states)
