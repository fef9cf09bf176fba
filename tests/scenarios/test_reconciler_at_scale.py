"""The reconciler and a long backlog: ids that were lost at random come back at their turn, and looking stays cheap.

Required: ids taken out of the list of a long backlog are healed while workers drain it, each task runs once, and what
is pushed beside the lost ones stays below twice their number. A pass takes as many statements and as much memory with
40,000 waiting rows as with 2,000. Whatever is broken at once is healed and told in one report.
"""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import pytest
import redis
from prometheus_client import CollectorRegistry

from tandemq import NewTask, metrics
from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.reconciler import Reconciler, Report
from tandemq.testing import FakeClock
from tests.bulk import Volume, fill
from tests.healing import World, open_world
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import sql
from tests.servers import MySQLServer
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(size(300, 3600))]

BACKLOG, LOST = size(20_000, 1_000_000), size(200, 1_000)
FEW, MANY = 2_000, 40_000
PAGE = 10_000
READY = Level("default", 0)


def repushed_by_metrics() -> float:
    """What the counter of this process says."""
    registry = metrics.registry()
    assert isinstance(registry, CollectorRegistry)
    return registry.get_sample_value("tandemq_repushed_total", {"queue": "default"}) or 0.0


def lose_at_random(client: redis.Redis, key: str, n: int) -> set[int]:
    """Take ``n`` ids out of the middle of the list."""
    ids = [int(entry) for entry in client.lrange(key, 0, -1)]
    lost = set(random.Random(7).sample(ids, n))
    client.delete(key)
    kept = [i for i in ids if i not in lost]
    for at in range(0, len(kept), PAGE):
        client.rpush(key, *kept[at : at + PAGE])
    return lost


@pytest.mark.usefixtures("calm")
def test_lost_ids_of_a_long_backlog_come_back_while_it_is_drained(
    work: Bench, probe: Probe, redis_client: redis.Redis
) -> None:
    app = work.app
    for at in range(0, BACKLOG, PAGE):
        app.enqueue_many([NewTask("noop", {"n": n}) for n in range(at, at + PAGE)])
    clock, counted, reports = SystemClock(), repushed_by_metrics(), list[Report]()
    often = replace(work.settings, reconcile_s=0.25)  # each look is a chance to take for lost what is in hand
    reconciler = Reconciler(app.store, app.broker, clock, random.Random(1), often, "test", lead=False)
    reconciler.run_once()
    lost = lose_at_random(redis_client, f"{work.settings.namespace}:{{default}}:ready:0", LOST)
    for _ in range(2):
        work.worker("-p", "1", "-c", "8", "--no-reconcile", "--no-mover")

    while app.store.busy(["default"]):
        clock.sleep(reconciler.step())
        reports.append(reconciler.last_report)

    assert sql(work, "SELECT status, COUNT(*) FROM {t}tasks GROUP BY status") == [("succeeded", BACKLOG)]
    ends = probe.ends()
    assert (len(ends), max(ends.values()), lost <= set(ends)) == (BACKLOG, 1, True)
    assert probe.starts() == ends
    pushed = int(repushed_by_metrics() - counted)
    assert LOST <= pushed < LOST + 2 * LOST, "copies of what was not lost"
    assert not any(report.rebuilt or report.alarms for report in reports)


@pytest.fixture
def world(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Iterator[World]:
    made = open_world(settings_for(mysql_url, redis_url), FakeClock(), real=True)
    yield made
    made.close()


def fill_up(world: World, n: int) -> None:
    """``n`` waiting rows in all, their ids in the list, all due for a while."""
    (there,) = world.engine.connect().exec_driver_sql("SELECT COUNT(*) FROM tandemq_tasks").fetchone() or (0,)
    fill(world.settings, Volume(done=0, dead=0, ready=n - there))
    world.sql("UPDATE {t}tasks SET run_at = '2029-01-01' + INTERVAL id SECOND")
    for at in range(there, n, PAGE):
        world.broker.push(READY, range(at + 1, min(at + PAGE, n) + 1))


def statements(world: World, mysql_server: MySQLServer, a_pass: Callable[[], object]) -> int:
    """How many statements the server got meanwhile, from anyone."""
    mysql_server.general_log(True)
    a_pass()
    mysql_server.general_log(False)
    return mysql_server.read_general_log().count("tandemq_")


def peak_bytes(a_pass: Callable[[], object]) -> int:
    """The most that was allocated at once, above what was there before."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    a_pass()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def test_a_pass_costs_the_same_whatever_waits(world: World, mysql_server: MySQLServer) -> None:
    """With nothing to heal, and with half a window of lost ids to be pushed again."""
    found: dict[str, list[int]] = {}
    for n in (FEW, MANY):
        fill_up(world, n)
        reconciler = world.reconciler()
        world.passes(reconciler, 3)

        def quiet(reconciler: Reconciler = reconciler) -> None:
            (report,) = world.passes(reconciler)
            assert (report.looked, report.quiet) == (1000, True)

        def heal(reconciler: Reconciler = reconciler) -> None:
            world.clock.advance(31)
            popped = world.broker.pop([READY], limit=500, wait_s=0).ids
            assert [r.repushed for r in world.passes(reconciler, 2)] == [0, len(popped)]

        for name, a_pass in {"quiet": quiet, "heal": heal}.items():
            found.setdefault(f"statements, {name}", []).append(statements(world, mysql_server, a_pass))
            found.setdefault(f"memory, {name}", []).append(peak_bytes(a_pass))

    for what, (few, many) in found.items():
        if what.startswith("statements"):
            assert few == many < 60, found
        else:  # the tail of the list is read up to its 4,000th entry
            assert few < many < 1_200_000, found


def lose_claim(world: World, queue: str) -> None:
    """Claimed, and the claims row is gone: no rule makes that."""
    token = world.claim(world.broker.pop([Level(queue, 0)], limit=6, wait_s=0).ids)
    world.sql("DELETE FROM {t}claims WHERE lease_token = :token", token=token)


def forget_worker(run: Callable[[str], object]) -> None:
    """The record of a worker that was last heard of long ago."""
    run(
        "INSERT INTO {t}workers (id, name, host, pid, queues, slots, processes, state, started_at, heartbeat_at)"
        " VALUES ('old-1', 'old', 'h', 1, 'default', 1, 1, 'running', '2020-01-01', '2020-01-01')"
    )


def test_everything_at_once_is_healed_in_one_pass_and_is_in_its_report(world: World) -> None:
    """What a dead worker, a lost answer, an operator and a restored snapshot leave behind, each in its own queue."""
    ids = {
        name: world.enqueue(6, queue=name) for name in ("expired", "stranded", "wiped", "snapshot", "orphan", "whole")
    }
    ids["delayed"] = world.enqueue(6, queue="delayed", delay_s=57)
    level = {name: Level(name, 0) for name in ids}
    reconciler, mover = world.reconciler(), world.mover()
    reports = world.passes(reconciler, 15)
    old = world.raw.get(world.generation_key("snapshot"))
    lose_claim(world, "orphan")  # believed after a lease of 30 s
    world.raw.zrem(world.key(level["delayed"], "delayed"), *ids["delayed"][:2])
    reports += world.passes(reconciler, 15)
    mover.step()
    assert all(report.quiet for report in reports[1:])

    world.claim(world.broker.pop([level["expired"]], limit=6, wait_s=0).ids, lease_s=0.5)
    world.lose(ids["stranded"][2:4], level["stranded"])
    world.raw.delete(world.key(level["wiped"], "ready"), world.key(level["snapshot"], "ready"))
    world.raw.set(world.generation_key("snapshot"), old)
    forget_worker(world.sql)
    world.clock.advance(1)
    report = reconciler.run_once()

    assert report == Report(
        levels=report.levels, looked=report.looked, missing=report.missing, alarms=report.alarms, armed=True,
        expired=1, orphans=6, retried=12, repushed=2 + 6 + 2, rebuilt=1, refilled=6, forgotten=1,
    )  # fmt: skip
    assert len(report.alarms) == 6
    assert all("running without a lease" in alarm for alarm in report.alarms)
    for name in ("stranded", "wiped", "snapshot", "whole", "delayed"):
        assert sorted(world.listed(level[name])) == ids[name], name
    for name in ("expired", "orphan"):
        assert sorted(world.scheduled(level[name])) == ids[name], name
    assert json.loads(json.dumps(report.to_json())).keys() == {field.name for field in fields(Report)}

    world.raw.set(f"{world.settings.namespace}:generation", "0" * 32)
    world.lose(ids["whole"], level["whole"])
    world.clock.advance(2)
    refused = reconciler.run_once()
    assert "nothing is pushed" in refused.alarms[0]
    assert (world.listed(level["whole"]), refused.repushed, refused.rebuilt) == ([], 0, 0)


@pytest.mark.usefixtures("calm")
def test_the_command_line_prints_what_one_pass_did(work: Bench) -> None:
    """A fresh process has not been in contact for a lease: what has run out is counted and left alone."""
    app, wanted = work.app, {field.name for field in fields(Report)}
    ids = work.ids("noop", 5)
    assert tandemq(work.settings, "reconcile", "--once", "--json").json.keys() == wanted
    popped = app.broker.pop([READY], limit=3, wait_s=0.0).ids
    app.store.claim(popped[:1], token=4711, worker_id="gone", lease_s=0.01, free=1, known=None, unknown_task_s=60.0)
    sql(work, "UPDATE {t}tasks SET run_at = run_at - INTERVAL 5 SECOND")
    forget_worker(lambda statement: sql(work, statement))

    told = tandemq(work.settings, "reconcile", "--once", "--json").json

    healed = {"levels": 2, "looked": 8, "missing": 4, "repushed": 2, "overdue": 1, "forgotten": 1, "alarms": []}
    assert told == Report().to_json() | healed
    assert app.broker.pop([READY], limit=5, wait_s=0.0).ids == tuple(ids[1:])
