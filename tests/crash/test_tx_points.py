"""Exactly once in the same database: kill -9 at every point of a run that takes ``tx``, its effects are there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tandemq.core import crash
from tandemq.core.settings import Settings
from tests import recipes
from tests.probe import Probe
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Bench, bench

APP = "tests.apps.tx:app"
FAST = {"lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "grace_s": 1.0}
CHAINS, LINKS = 6, 5
#: Points of a child through which such a task passes, and the pass at which it dies there.
POINTS = {
    "pop.after": 2,
    "claim.before_commit": 2,
    "claim.after_commit": 2,
    "run.before_begin": 3,
    "run.before_handler": 3,
    "run.after_handler": 3,
    "finish.before_tx_commit": 3,
    "finish.after_tx_commit": 3,
    "run.after_end": 3,
    "finish.before_commit": 2,
    "finish.after_commit": 2,
    "enqueue.after_commit": 2,
    "enqueue.after_push": 2,
}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **FAST), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def steps(work: Bench, mysql_server: MySQLServer, mysql_url: str) -> Callable[[], list[tuple[int, int]]]:
    database = mysql_url.rpartition("/")[2]
    mysql_server.sql("CREATE TABLE steps (chain INT NOT NULL, n INT NOT NULL) ENGINE=InnoDB", database=database)
    recipes.own_table(partial(mysql_server.sql, database=database), "steps")
    return lambda: [(c, n) for c, n in mysql_server.sql("SELECT chain, n FROM steps ORDER BY 1, 2", database=database)]


def start(work: Bench) -> list[tuple[int, int]]:
    """Enqueue the first links; the rows that the chains must leave."""
    for chain in range(CHAINS):
        work.app.enqueue("link", {"chain": chain, "n": LINKS}, max_retries=5)
    return [(chain, n) for chain in range(CHAINS) for n in range(1, LINKS + 1)]


@pytest.mark.parametrize("point", POINTS)
def test_every_link_and_its_successor_are_there_once(
    work: Bench, steps: Callable[[], list[tuple[int, int]]], tmp_path: Path, point: str
) -> None:
    wanted = start(work)
    worker = work.worker(
        "-c", "2", app=APP, TANDEMQ_CRASH=f"{point}:{POINTS[point]}:kill9", TANDEMQ_CRASH_DIR=str(tmp_path)
    )
    eventually(lambda: len(steps()) >= len(wanted), 60, worker.text)
    eventually(lambda: not work.app.store.busy(["default"]), 60, worker.text)
    # What follows the handlers' own commits may still be on its way.
    eventually(lambda: list(tmp_path.glob(f"{point}.*")), 60, "the point was not reached")
    assert steps() == wanted
    ended = work.app.stats()["ended"]
    assert ended.get("dead", 0) == 0
    rows = work.app.admin.find(_all(), limit=100).items
    assert [task.status for task in rows] == ["succeeded"] * len(wanted)


def _all() -> object:
    from tandemq import Filter

    return Filter()


def test_these_are_the_points_of_a_transaction() -> None:
    assert {point for point in crash.POINTS if "_tx_" in point} <= set(POINTS)
