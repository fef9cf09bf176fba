"""Dead rows made pending again, whoever asks: operators by id, or a replay run chunk by chunk."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import MOVES, Event, Status
from tandemq.core.task import Level
from tandemq.store.aging import begin_anew
from tandemq.store.answers import Moved
from tandemq.store.auditing import AuditingStore
from tandemq.store.chunks import by_size
from tandemq.store.dialects import id_list, stamp
from tandemq.store.runs import Candidate, Revival
from tandemq.store.settling import MAX_TEXT_BYTES
from tandemq.store.statements import sources
from tandemq.store.transaction import Tx

AS_THEY_ARE = Revival()
MISSING = "there is no such task"
TOO_LATE = "it ended after the replay began"


class RevivingStore(AuditingStore):
    """``replay``, ``replayable`` and ``kinds_of`` of ``store.protocol.Replaying``."""

    def replay(
        self,
        ids: Sequence[int],
        *,
        ended_before: datetime | None = None,
        revival: Revival = AS_THEY_ARE,
        deed: Deed | None = None,
    ) -> list[Moved]:
        """dead | cancelled -> pending by compare-and-set; attempts start anew, history stays, ``replays`` + 1.

        ``ended_before`` keeps a wave of replays from taking tasks that have died again since it began.
        """

        def work(tx: Tx) -> tuple[list[Moved], int]:
            moved = [move for move, _ in self._revive(tx, ids, ended_before, revival)]
            return moved, self._note(tx, deed, len(moved))

        if not ids:
            return []
        moved, entry = self.db.write(work, crash="replay.before_commit")
        if deed is not None:
            deed.entry = entry
        return moved

    def replayable(self, ids: Sequence[int], *, ended_before: datetime, payloads: bool = False) -> list[Candidate]:
        """These tasks and why they cannot be replayed (also those that do not exist), in the given order; no locks."""
        return self.db.read(lambda tx: self._replayable(tx, ids, ended_before, payloads))

    def kinds_of(self, ids: Sequence[int], *, ended_before: datetime) -> dict[tuple[str, str], int]:
        """How many of these could be replayed, by (type, error type)."""
        p = self.db.dialect.p
        sql = (
            f"SELECT task_type, error_type, COUNT(*) FROM {self.sql.tasks} WHERE id IN ({id_list(ids)})"
            f" AND {sources(Event.REPLAY)} AND completed_at < {p} GROUP BY task_type, error_type"
        )
        return {(kind, error): n for kind, error, n in self.db.read(lambda tx: tx.rows(sql, [stamp(ended_before)]))}

    def _replayable(self, tx: Tx, ids: Sequence[int], before: datetime, payloads: bool) -> list[Candidate]:
        text = "payload" if payloads else "NULL"
        sql = (
            f"SELECT id, task_type, status, completed_at < {tx.dialect.p}, {text} FROM {self.sql.tasks}"
            f" WHERE id IN ({id_list(ids)})"
        )
        rows = {row[0]: row for row in tx.rows(sql, [stamp(before)])}
        return [_candidate(i, rows.get(i)) for i in ids]

    def _revive(self, tx: Tx, ids: Sequence[int], before: datetime | None, revival: Revival) -> list[tuple[Moved, int]]:
        """Lock what is dead and nobody else has, and make it pending; each with its count of replays from now on.

        Only rows that are dead are asked for: a lock on a pending one, however short, would make a claim skip it.
        """
        lock = self.queries.lock_for_replay(ids, before=before is not None, payloads=bool(revival.payloads))
        rows = [
            row
            for row in tx.rows(lock, [] if before is None else [stamp(before)])
            if row[0] not in revival.payloads or revival.payloads[row[0]][0] == _text(row[5])
        ]
        if not rows:
            return []
        found = [row[0] for row in rows]
        edits = [(i, revival.payloads[i][1]) for i in found if i in revival.payloads]
        for some in by_size(edits, lambda edit: len(edit[1]), MAX_TEXT_BYTES):
            tx.write(self.sql.set_payloads([i for i, _ in some]), [text for _, text in some])
        level = {"queue": revival.queue, "priority": revival.priority}
        given = {name: value for name, value in level.items() if value is not None}
        tx.write(self.sql.replay(found, tuple(given)), list(given.values()))
        begin_anew(tx, self.sql, self.queries, found)
        return [
            (_moved(i, Level(given.get("queue", queue), given.get("priority", priority)), kind), replays + 1)
            for i, queue, priority, kind, replays, *_ in rows
        ]


def _moved(task_id: int, level: Level, task_type: str) -> Moved:
    return Moved(task_id, level, task_type, Event.REPLAY, Status.PENDING)


def _candidate(task_id: int, row: Any) -> Candidate:
    if row is None:
        return Candidate(task_id, "", MISSING)
    _, kind, status, in_time, payload = row
    if status not in MOVES[Event.REPLAY].sources:
        return Candidate(task_id, kind, f"it is {status}")
    return Candidate(task_id, kind, "" if in_time else TOO_LATE, None if payload is None else _text(payload))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
