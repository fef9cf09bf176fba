"""B40: every question about a big table is planned on the index that bounds it, on MariaDB and on SQLite."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tandemq import Filter
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.migrate import migrate
from tests.bulk import fill
from tests.scenarios.big import LISTS, OLD, SCALE, VOLUME, narrow

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]


def _explain(store: SqlStore, text: str, *params: object) -> dict[str, Any]:
    with contextlib.closing(store.db.engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + text, params)
        return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


def test_every_question_is_planned_on_the_index_that_bounds_it(big_store: SqlStore) -> None:
    q, top = big_store.queries, 2**60
    level = q.entries(by_level=True, due=False)
    behind = ("default", 0, "0001-01-01", "0001-01-01", 0)
    in_order: dict[str, tuple[object, ...]] = {
        q.more_than([q.entries()]): (1, 9),
        q.more_than([q.entries(any_queue=False)] * 2): (1, "mail", 2, "mail", 9),
        q.count_entries(level): (0, "default", 0, 9),
        q.open_stretch(): (*behind, 9),
        q.end_of_open_stretch(): (*behind, 9),
        q.any_begun(): (*behind, "2030-01-01", "2030-01-01", 7),
        q.ended_stretch(1): ("2030-01-01", *behind, "2030-01-01", 500),
        q.end_of_ended_stretch(2): (*behind, 9),
        q.length_of_ended_stretch(2): (*behind, 9),
        q.in_ended_stretch(2, ", t.error_type", ["t.task_type = 'x'"]): (*behind, "2030-01-01", "2030-01-01", 7),
        q.first_level(1): (),
        q.next_priority(1): ("default", 0),
        q.next_queue(1): ("default",),
    }
    for text, params in in_order.items():
        plan = _explain(big_store, text, *params)
        inner = text.partition("FROM (")[2].partition(") AS some")[0]
        plan = _explain(big_store, inner, *params) if inner else plan
        assert plan["key"] == "open_rows", text
        assert "filesort" not in str(plan["Extra"]), text
    for ranges, params in (([q.entries()], (2,)), ([level] * 2, (0, "default", 0, 0, "mail", 10))):
        plan = _explain(big_store, q.candidates(ranges), *params, top, 51)
        assert plan["key"] == "open_rows"
        assert "Using index" in str(plan["Extra"]), "no row is touched"
    stretch = ["t.task_type = %s", "t.id < %s", "t.id >= %s"]
    by_id: dict[str, tuple[object, ...]] = {
        q.page(stretch): ("none", 9000, 8000, 51),
        q.page(stretch, ids_only=True): ("none", 9000, 8000, 51),
        q.end_of_stretch(): (9000, 100),
        q.lock_counts(): ("default", "type.a", "2026-01-01", "2026-01-02", "succeeded"),
        q.delete_counts(): ("default", "type.a", "2026-01-01", "2026-01-02", "succeeded"),
        q.lock_for_prune(list(range(1, 500)), [Status.SUCCEEDED]): ("2030-01-01", 1),
    }
    for text, params in by_id.items():
        plan = _explain(big_store, text, *params)
        assert (plan["key"], plan["type"]) == ("PRIMARY", "range"), text
        assert "filesort" not in str(plan["Extra"]), text
    assert _explain(big_store, q.keyed(["t.idempotency_key = %s"]), b"k", 1)["key"] in {"idempotency_key", None}


@pytest.mark.parametrize("analyzed", [False, True])
def test_the_same_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, analyzed: bool) -> None:
    """Counted in instructions of its virtual machine, a few dozen for a row."""
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'big.db'}", redis_url="redis://127.0.0.1:1/0")
    migrate(settings)
    fill(settings, VOLUME)
    if analyzed:  # with statistics its planner prefers other ways
        with contextlib.closing(sqlite3.connect(tmp_path / "big.db")) as connection:
            connection.execute("ANALYZE tandemq_open_rows")
    narrow(monkeypatch)
    store = connect(settings)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 100

    store.ping()  # its one connection is the one that is counted
    with contextlib.closing(store.db.engine.raw_connection()) as connection:
        connection.dbapi_connection.set_progress_handler(step, 100)  # type: ignore[union-attr]
    for name, where in LISTS.items():
        for after in (None, VOLUME.ended // 2, OLD, 51):
            steps = 0
            store.find(Filter(**where), limit=50, after=after)
            assert steps < 150_000 * 20 // SCALE, (name, after, steps)
    steps = 0
    store.counts()
    assert steps < 60_000 * 20 // SCALE
    q = store.queries
    for text, params in (
        (q.candidates([q.entries()]), (2, 9, 9)),
        (q.more_than([q.entries(any_queue=False)]), (1, "mail", 9)),
        (q.ended_stretch(1), ("2030", "mail", 0, "2", "2", 0, "2030", 9)),
    ):
        plan = store.db.read(lambda tx, text=text, params=params: tx.rows("EXPLAIN QUERY PLAN " + text, params))
        assert "tandemq_open_rows (ended=?" in plan[0][3], plan
    store.close()
