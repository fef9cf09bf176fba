"""Dead letters by the thousand, made by SQL: as if their runs had been used up a minute ago."""

from __future__ import annotations

import json

from tandemq.core.task import NewRow
from tests.scenarios.truth import sql
from tests.workers import Bench

PAGE = 1000


def dead_letters(work: Bench, count: int, *types: str, payload: dict[str, object] | None = None) -> list[int]:
    """Ids of so many dead tasks, the types taking turns; nothing of them is in Redis."""
    ids: list[int] = []
    for start in range(0, count, PAGE):
        numbers = range(start, min(count, start + PAGE))
        text = None if payload is None else json.dumps(payload)
        rows = [NewRow(types[n % len(types)], text or f'{{"n":{n}}}', "default", 0, 0) for n in numbers]
        ids += [one.id for one in work.app.store.insert(rows)]
    ago = "UTC_TIMESTAMP(6) - INTERVAL 60 SECOND"
    sql(
        work,
        "UPDATE {t}tasks SET status = 'dead', ended = 2, attempts = 1, fence = 1, dead_reason = 'retries_exhausted',"
        f" error_type = 'OSError', last_error = 'no route', started_at = {ago}, completed_at = {ago}, run_at = {ago}"
        f" WHERE id BETWEEN {ids[0]} AND {ids[-1]}",
    )
    return ids


def replays_of(work: Bench) -> dict[int, int]:
    """How many tasks were replayed how often."""
    return dict(sql(work, "SELECT replays, COUNT(*) FROM {t}tasks GROUP BY replays"))  # type: ignore[arg-type]
