"""100,000 dead letters among 5,000,000 tasks: a page is quick, and going through all of them costs each row once.

Scaled down, what is asserted is how many rows the server read, with the product's bounds made small in proportion. At
full size a page narrowed by type and by a text of the error takes less than 100 ms.
"""

from __future__ import annotations

import json
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import Filter, TandemQ
from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.deadletters import DeadLetters
from tandemq.links import Links
from tandemq.store import SqlStore, connect, finding
from tandemq.store.migrate import migrate
from tests.bulk import Volume, fill
from tests.scenarios.big import SCALE, narrow, reading
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import FULL, size
from tests.servers import MySQLServer

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(3600)]

VOLUME = size(Volume(done=29_400, dead=600, ready=0), Volume(done=4_900_000, dead=100_000, ready=0))
WHERE = Filter(state="dead", task_type="type.b", error_text="no such order")
#: Of a page: the stretch at the top, the index of the dead twice (counted, sorted), the rows looked up, each with its
#: index entry.
MOST = 3 * finding.SHORT_STRETCH // SCALE + 2 * VOLUME.dead + 3 * finding.CANDIDATES // SCALE + 300


@pytest.fixture(scope="module")
def filled(mysql_server: MySQLServer) -> Iterator[Settings]:
    name = mysql_server.create_database()
    settings = Settings(database_url=mysql_server.url(name), redis_url="redis://127.0.0.1:1/0")
    migrate(settings)
    fill(settings, VOLUME)
    yield settings
    mysql_server.drop_database(name)


@pytest.fixture
def store(filled: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    narrow(monkeypatch)
    made = connect(filled)
    yield made
    made.close()


def _wanted(store: SqlStore) -> list[int]:
    """The ids of ``WHERE``, newest first, as the database itself says."""
    sql = (
        "SELECT id FROM tandemq_tasks WHERE status = 'dead' AND task_type = 'type.b' AND last_error = 'no such order'"
        " ORDER BY id DESC"
    )
    return [row[0] for row in store.db.read(lambda tx: tx.rows(sql))]


def test_a_page_by_type_and_error_text_reads_little_and_pages_hold_all(store: SqlStore) -> None:
    wanted, found = _wanted(store), []
    after: int | None = None
    while after is None or (after and not FULL) or len(found) < 500:
        with reading(store, MOST):
            page = store.find(WHERE, limit=50, after=after)
        found += [t.id for t in page.items]
        after = page.next
        if after is None:
            break
    assert found == wanted[: len(found)]
    assert FULL or found == wanted


def test_a_page_takes_less_than_100_ms_at_full_size(store: SqlStore) -> None:
    figures = {}
    lists: dict[str, dict[str, Any]] = {
        "first page": {},
        "in the middle": {"after": VOLUME.ended // 2},
        "last page": {"after": size(300, 20_000)},
        "a text that none has": {"where": Filter(state="dead", task_type="type.b", error_text="no such luck")},
        "of a queue": {"where": Filter(state="dead", queue="mail", error_text="no such order")},
        "by payload": {"where": Filter(state="dead", task_type="type.b", payload={"order_id": 4711})},
    }
    for name, options in lists.items():
        took = []
        for _ in range(size(2, 25)):
            begun = time.perf_counter()
            store.find(**{"where": WHERE, "limit": 50, **options})
            took.append(time.perf_counter() - begun)
        figures[name] = statistics.median(took)
    print("\n".join(f"{name}: median {1000 * s:.1f} ms" for name, s in figures.items()))
    assert not FULL or max(figures.values()) < 0.1, figures


def test_going_through_all_of_them_costs_each_row_once(filled: Settings, store: SqlStore) -> None:
    """For groups: each row is read once, and each entry of its index thrice (found, counted at a level's end, read)."""
    dead = DeadLetters(Links(filled, SystemClock(), store=store), enqueue=lambda _: [], replays=None)  # type: ignore[arg-type]
    with reading(store, 6 * VOLUME.dead + 2_000):
        begun = time.perf_counter()
        groups = dead.group(max_rows=10**7)
    print(f"{groups.total} in groups: {time.perf_counter() - begun:.2f} s")
    assert (groups.total, groups.capped) == (VOLUME.dead, False)
    assert sum(g.count for g in groups.items) == VOLUME.dead
    assert {g.kind for g in groups.items} == {"no stock", "no such order"}
    by_type = {g.kind: g.count for g in dead.group(Filter(error_text="no such order"), by="type").items}
    assert by_type["type.b"] == len(_wanted(store))


def test_an_export_holds_all_and_its_memory_does_not_grow(filled: Settings, tmp_path: Path) -> None:
    wanted = _wanted_of(filled)
    path = tmp_path / "dead.ndjson"
    answer = tandemq(filled, "dead", "export", path, "--type", "type.b", "--error", "no such order", "--json")
    assert answer.json == {"exported": len(wanted), "file": str(path)}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(wanted)
    with TandemQ(database_url=filled.database_url, redis_url=filled.redis_url) as app:
        next(app.dead.export())
        tracemalloc.start()
        count = sum(1 for _ in app.dead.export())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert count == VOLUME.dead
    assert peak < 16 * 1024 * 1024, "a page of them, not all"


def _wanted_of(settings: Settings) -> list[int]:
    store = connect(settings)
    try:
        return _wanted(store)
    finally:
        store.close()
