"""Holding tasks of a paused type: they wait by run_at, and their own times are kept for their order at the end.

So they are in nobody's way meanwhile: not in Redis, and not among the oldest due rows that the reconciler compares.
"""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from tandemq.core.lifecycle import Event
from tandemq.core.task import Level, epoch_ms
from tandemq.store.answers import NotDue
from tandemq.store.dialects import id_list, instant, stamp
from tandemq.store.statements import Statements, sources
from tandemq.store.transaction import Tx

#: A held task is met again after so long at the latest, and held again if the pause has not ended.
HOLD_S = 3600.0


def paused_until(tx: Tx, sql: Statements, types: Collection[str]) -> dict[str, datetime]:
    """Which of these types are paused at this moment, whatever the worker has heard; until when they are to be held."""
    if not types:
        return {}
    d, names = sql.d, sorted(types)
    found = tx.rows(
        f"SELECT name, until_at, {d.now} FROM {sql.pauses}"
        f" WHERE kind = 'type' AND name IN ({', '.join([d.p] * len(names))}) AND until_at > {d.now}",
        names,
    )
    return {name: min(instant(ends), instant(now) + timedelta(seconds=HOLD_S)) for name, ends, now in found}


def hold(
    tx: Tx, sql: Statements, paused: Mapping[str, datetime], rows: Iterable[tuple[int, Level, str]]
) -> list[NotDue]:
    """Hold locked pending rows (id, level, type) of paused types; where they belong now."""
    levels: dict[str, dict[int, Level]] = {}
    for task_id, level, task_type in rows:
        levels.setdefault(task_type, {})[task_id] = level
    held: list[NotDue] = []
    for task_type, some in sorted(levels.items()):
        until, ids = paused[task_type], sorted(some)
        keep = (
            f"INSERT INTO {sql.held_tasks} (task_type, task_id, run_at, held_until)"
            f" SELECT task_type, id, run_at, {sql.d.p} FROM {sql.tasks} {sql.d.primary}"
            f" WHERE id IN ({id_list(ids)}) AND {sources(Event.CLAIM)} ORDER BY id"
            f" {sql.d.overwrite('task_type, task_id', ['held_until'])}"
        )
        move = (
            f"UPDATE {sql.tasks} {sql.d.primary} SET run_at = {sql.d.p}, updated_at = {sql.d.now}"
            f" WHERE id IN ({id_list(ids)}) AND {sources(Event.CLAIM)}"
        )
        tx.write(keep, [stamp(until)])
        tx.write(move, [stamp(until)])
        held += [NotDue(task_id, some[task_id], epoch_ms(until)) for task_id in ids]
    return held
