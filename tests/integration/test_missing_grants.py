"""`tandemq migrate` was run and grants.sql was not: who starts is told, who runs heals all that needs no new table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tandemq.core.errors import StoreUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.service import Loop
from tandemq.store import rights
from tandemq.store.migrate import files
from tandemq.testing import FakeClock
from tests import recipes
from tests.healing import LOW, World, open_world
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import Bench, bench

#: What a reconciler can do without, and end leases all the same.
WITHOUT = ("held", "replay_runs", "workers", "leaders", "meta")
Revoke = Callable[..., None]


@pytest.fixture
def limited(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Settings:
    """As the application's users of deploy/, at the pace of a test."""
    made = settings_for(mysql_url, redis_url, lease_s=6.0, heartbeat_s=0.5, reconcile_s=0.3, mover_s=0.1)
    return made if recipes.is_limited(made) else recipes.limited(made)


@pytest.fixture
def revoke(mysql_server: MySQLServer, mysql_url: str) -> Revoke:
    """``revoke("held", "kills")``: as if these tables had just come; ``revoke("held", right="DELETE")``: one right."""
    database = mysql_url.rpartition("/")[2]

    def call(*tables: str, right: str = "ALL") -> None:
        for table in tables:
            mysql_server.sql(f"REVOKE {right} ON `{database}`.`tandemq_{table}` FROM 'tandemq_app'@'%'")

    return call


@pytest.fixture
def world(limited: Settings) -> Iterator[World]:
    made = open_world(limited, FakeClock(), real=True)
    yield made
    made.close()


@pytest.fixture
def work(limited: Settings, tmp_path: Path, probe: Probe) -> Iterator[Bench]:
    with bench(limited, tmp_path, probe.environ) as made:
        yield made


def turns(world: World, loop: Loop, number: int) -> None:
    for _ in range(number):
        assert loop.turn() < 2, "a missing right must not slow the healing down"
        world.clock.advance(world.settings.reconcile_s)


@pytest.mark.parametrize("tables", [*((table,) for table in WITHOUT), WITHOUT], ids=",".join)
def test_leases_are_ended_without_a_right_that_this_does_not_need_and_no_turn_is_a_good_one(
    world: World, revoke: Revoke, mysql_url: str, tables: Sequence[str]
) -> None:
    (task_id,) = world.enqueue()
    world.claim(world.broker.pop([LOW], limit=1, wait_s=0).ids)
    reconciler = world.reconciler(lead=True)
    loop = Loop(reconciler, world.clock, Random(0), "reconciler")
    revoke(*tables)

    turns(world, loop, round(2 * world.settings.lease_s / world.settings.reconcile_s))

    task = world.store.get(task_id)
    assert (task.status, task.attempts) == (Status.PENDING, 1)
    assert loop.last_ok_at is None, "health would be green"
    assert reconciler.last_pass_at is None
    said = " ".join(reconciler.last_report.alarms)
    assert all(f"tandemq_{table}" in said for table in tables), said

    recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
    turns(world, loop, 4)
    assert loop.last_ok_at is not None
    assert reconciler.last_report.alarms == ()


def test_a_worker_of_an_old_release_dies_and_one_that_runs_without_the_grants_heals_and_says_it_is_not_well(
    work: Bench, revoke: Revoke, tmp_path: Path, mysql_url: str
) -> None:
    old = work.worker("--no-reconcile", "--no-mover").ready()
    held = work.app.enqueue("hold", {"until": str(tmp_path / "gate")}).id
    eventually(lambda: work.statuses([held]) == {"running": 1}, 60, old.text)
    new = work.worker("-q", "other").ready()
    revoke("held", "replay_runs")
    old.kill_group()

    eventually(lambda: work.statuses([held]) == {"pending": 1}, 90, new.text)
    eventually(lambda: "tandemq_held" in new.text(), 60, new.text)
    eventually(lambda: {w.state for w in work.app.workers() if w.alive} == {"late"}, 90, new.text)
    assert "worker" in tandemq(work.settings, "health", "--all", code=1).out
    recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
    eventually(lambda: "running" in {w.state for w in work.app.workers() if w.alive}, 90, new.text)


def test_a_plain_cancel_without_the_right_to_kill_stops_no_heartbeat(
    work: Bench, revoke: Revoke, tmp_path: Path
) -> None:
    worker = work.worker().ready()
    revoke("kills")
    held = work.app.enqueue("hold", {"until": str(tmp_path / "gate")}).id
    eventually(lambda: work.statuses([held]) == {"running": 1}, 60, worker.text)

    work.app.cancel(held)

    eventually(lambda: "cancel --kill is not obeyed" in worker.text(), 60, worker.text)
    (before,) = work.app.workers()
    eventually(lambda: work.app.workers()[0].heartbeat_at > before.heartbeat_at, 60, worker.text)
    (tmp_path / "gate").touch()
    assert work.ended([held]) == {"succeeded": 1}
    assert "database is away" not in worker.text()


def test_a_worker_does_not_start_without_its_rights_and_names_them(work: Bench, revoke: Revoke, mysql_url: str) -> None:
    revoke("held", "kills")
    refused = work.worker()
    assert refused.wait() == 3, refused.text()
    assert "SELECT, INSERT, UPDATE, DELETE on tandemq_held" in refused.text()
    assert "tandemq_kills" in refused.text()
    assert "grants.sql" in refused.text()
    recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
    work.worker().ready()


def test_check_wants_the_rights_too(limited: Settings, revoke: Revoke, mysql_url: str) -> None:
    assert tandemq(limited, "migrate", "--check", "--json").json == {"pending": [], "lacking": []}
    revoke("held", right="DELETE")
    revoke("audit_log")
    said = tandemq(limited, "migrate", "--check", "--json", code=1).json
    assert said == {
        "pending": [],
        "lacking": ["DELETE on tandemq_held", "SELECT, INSERT, UPDATE on tandemq_audit_log"],
    }
    assert "grants.sql" in tandemq(limited, "migrate", "--check", code=1).out
    with pytest.raises(StoreUnavailable, match="tandemq_held") as caught:
        rights.demand(limited)
    assert caught.value.denied
    recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
    assert rights.lacking(limited) == []


def test_every_right_that_is_tried_is_noticed_when_it_is_not_there(limited: Settings, revoke: Revoke) -> None:
    # One is kept: without any right on any table the database itself is refused.
    gone = [need for need in rights.NEEDS if need.table != "migrations"]
    for need in gone:
        revoke(need.table)
    told = [f"{', '.join(need.rights)} on tandemq_{need.table}" for need in gone]
    assert rights.lacking(limited) == told


def test_what_is_wanted_is_what_the_recipe_gives_and_asking_changes_nothing(world: World) -> None:
    text = recipes.GRANTS_SQL.read_text()
    given = re.findall(r"^GRANT (.*) ON `tandemq`\.`tandemq_(\w+)` TO 'tandemq_app'", text, flags=re.MULTILINE)
    wanted = {need.table: set(need.rights) for need in rights.NEEDS}
    assert {table: set(re.sub(r" \(\w+\)", "", what).split(", ")) for what, table in given} == wanted
    made = {
        name
        for migration in files("mysql")
        for name in re.findall(r"(?:TABLE IF NOT EXISTS|INVOKER VIEW) tandemq_(\w+)", migration.text("tandemq_"))
    }
    assert set(wanted) == made
    ids = world.enqueue(3)
    before = [world.store.get(task_id) for task_id in ids]
    assert rights.lacking(world.settings) == []
    assert [world.store.get(task_id) for task_id in ids] == before
