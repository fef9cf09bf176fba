"""A process dies at every arrow of a task's life; the next one goes on, nothing is lost, nothing is stuck."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import redis

from tandemq.core import crash
from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.reconciler import Reconciler
from tests.crash import fleet as known
from tests.crash.fleet import CHILD, DIED, EXPIRY, MOVER, PACE, REFILL, RELEASING, SUPERVISOR, Fleet, open_fleet
from tests.probe import Probe
from tests.scenarios.truth import sql
from tests.servers import MySQLServer, RedisServer
from tests.workers import ROOT

AT_ONCE = 5


def test_a_child_dies_at_each_point_and_the_next_one_goes_on(fleet: Fleet) -> None:
    for point in CHILD:
        fleet.enqueue(point, kind="flaky" if point.startswith("retry.") else "noop")
    fleet.heal()
    for point in CHILD:
        fleet.start(point, f"{point}:2:kill9")
    fleet.wait_hit(CHILD)
    fleet.check()
    assert [point for point, worker in fleet.workers.items() if DIED not in worker.text()] == []
    assert [point for point, worker in fleet.workers.items() if worker.process.poll() is not None] == []


def test_a_supervisor_dies_at_each_point_and_a_child_while_it_hands_back(fleet: Fleet, tmp_path: Path) -> None:
    """What the dying worker held runs again in another; what was waiting begins there for the first time."""
    gate = tmp_path / "gate"
    fleet.heal()
    held = [task_id for p in (*SUPERVISOR, *RELEASING) for task_id in fleet.enqueue(p, 1, "hold", until=str(gate))]
    for point in (*SUPERVISOR, *RELEASING):
        fleet.enqueue(point)
        fleet.start(point, f"{point}:{2 if point.startswith('renew.') else 1}:kill9", "-c", "1", "--grace", "30")
    fleet.wait_begun(held)
    for point in ("shutdown.signal", *RELEASING):
        fleet.workers[point].signal(signal.SIGTERM)
    fleet.wait_hit((*SUPERVISOR, *RELEASING))
    assert {p: fleet.workers[p].wait() for p in SUPERVISOR} == dict.fromkeys(SUPERVISOR, -9)
    assert {p: fleet.workers[p].wait() for p in RELEASING} == dict.fromkeys(RELEASING, 0)
    gate.touch()
    fleet.replace((*SUPERVISOR, *RELEASING))
    fleet.check()


@pytest.fixture
def installs(
    mysql_server: MySQLServer, redis_server: RedisServer, settings_for: Callable[..., Settings], tmp_path: Path
) -> Iterator[Callable[[str], Fleet]]:
    """``installs(name)``: a database and a namespace for each, or another one's reconciler would do the work."""
    opened: list[tuple[Iterator[Fleet], str]] = []

    def make(name: str) -> Fleet:
        folder, database = tmp_path / name, mysql_server.create_database()
        folder.mkdir()
        settings = settings_for(mysql_server.url(database), redis_server.url(), namespace=name, **PACE)
        opening = open_fleet(settings, folder, Probe(folder / "probe"))
        opened.append((opening, database))
        return next(opening)

    redis_server.flush()
    yield make
    for opening, database in opened:
        next(opening, None)
        mysql_server.drop_database(database)


def lose_lease(fleet: Fleet, level: Level) -> None:
    """As a worker that is gone would leave it."""
    app = fleet.work.app
    ids = app.broker.pop([level], limit=3, wait_s=0.0).ids
    app.store.claim(ids, token=4711, worker_id="gone", lease_s=0.1, free=3, known=None, unknown_task_s=60.0)


def look_once(fleet: Fleet, queue: str) -> None:
    """A reconciler's pass that leaves the generation behind: from here on lost ids are the window's to find."""
    app = fleet.work.app
    Reconciler(app.store, app.broker, SystemClock(), Random(1), app.settings, "first", lead=False).run_once()
    assert (app.broker.generation(queue) or "").endswith(":ready")


def a_healer_dies(fleet: Fleet, client: redis.Redis, point: str) -> None:
    """Plant what brings a mover or reconciler to this point, let it die there, and let a worker do the rest."""
    work, level = fleet.work, Level(point, 0)
    fleet.enqueue(point, 6, delay=0.3 if point in MOVER else None)
    if point in EXPIRY:
        lose_lease(fleet, level)
    elif point in REFILL:
        look_once(fleet, point)
        sql(work, "UPDATE {t}tasks SET run_at = run_at - INTERVAL 5 SECOND")
        work.app.broker.pop([level], limit=6, wait_s=0.0)
    if point.startswith("rebuild."):
        client.delete(*client.keys(f"{work.settings.namespace}:*"))
    verb = "mover" if point in MOVER else "reconcile"
    dying = work.worker(verb=verb, **fleet.marks.arming(f"{point}:1:kill9"))
    assert dying.wait() == -9, dying.text()
    assert fleet.marks.hit() == {point}
    work.worker("-q", point, "-c", "2")
    fleet.check()


def test_a_healer_dies_at_each_point_and_the_next_one_goes_on(
    installs: Callable[[str], Fleet], redis_client: redis.Redis
) -> None:
    fleets = {point: installs(point) for point in (*MOVER, *EXPIRY, *REFILL)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {point: pool.submit(a_healer_dies, fleet, redis_client, point) for point, fleet in fleets.items()}
    faults = {point: str(run.exception())[-1500:] for point, run in runs.items() if run.exception()}
    assert not faults, "\n".join(f"{point}: {said}" for point, said in faults.items())


def test_every_point_of_the_registry_has_its_test() -> None:
    assert len(set(known.ALL)) == len(known.ALL)
    assert set(known.ALL) == crash.POINTS


def test_every_point_is_reached_by_some_line_of_the_product() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "crash.py")
    assert [point for point in crash.POINTS if f'"{point}"' not in source] == []
