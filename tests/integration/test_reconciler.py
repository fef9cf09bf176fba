"""The reconciler as a service: leadership, the rhythm of its turns, and the whole of a pass."""

from __future__ import annotations

import json
import logging

import pytest

from tandemq.core.errors import BrokerUnavailable, StoreUnavailable
from tandemq.core.lifecycle import Status
from tandemq.reconciler import Report
from tests.healing import LOW, World


def test_a_pass_with_nothing_to_heal_is_quiet_and_comes_every_period(world: World) -> None:
    world.enqueue(3)
    reconciler = world.reconciler(lead=True)
    for _ in range(3):
        assert reconciler.step() == world.settings.reconcile_s
        world.clock.advance(world.settings.reconcile_s)

    assert reconciler.last_report.quiet
    assert reconciler.last_report == Report(levels=1, looked=3)


def test_only_the_leader_works_and_another_takes_over_within_three_passes(world: World) -> None:
    ids = world.insert(3)
    leader, standby = world.reconciler(lead=True), world.reconciler(lead=True)
    leader.step()
    world.flush()
    world.clock.advance(world.settings.reconcile_s)
    assert standby.step() == world.settings.reconcile_s
    assert world.listed() == []

    for _ in range(3):
        world.clock.advance(world.settings.reconcile_s)
        standby.step()

    assert world.listed() == ids


def test_once_works_whoever_leads(world: World) -> None:
    ids = world.insert(3)
    world.reconciler(lead=True).step()
    world.flush()

    world.reconciler(lead=True).run_once()

    assert world.listed() == ids


def test_two_reconcilers_at_once_do_no_harm(world: World) -> None:
    """Each id runs once whatever they push; the copies of two are bounded by one each."""
    ids = world.enqueue(500)
    both = [world.reconciler(), world.reconciler()]
    world.clock.advance(3)
    for reconciler in both:
        reconciler.run_once(looks=1)
    world.lose(ids[:100])
    for _ in range(5):
        for reconciler in both:
            reconciler.run_once(looks=1)
        world.clock.advance(world.settings.reconcile_s)

    listed = world.listed()

    assert set(listed) == set(ids)
    assert len(listed) <= len(ids) + 100


def test_the_report_is_json(world: World) -> None:
    world.insert(3)

    report = world.reconciler().run_once()

    told = json.loads(json.dumps(report.to_json()))
    assert (told["rebuilt"], told["refilled"], told["alarms"], told["armed"]) == (1, 3, [], False)


def test_an_alarm_is_logged_once_not_at_every_pass(world: World, caplog: pytest.LogCaptureFixture) -> None:
    reconciler = world.reconciler()
    with world.outage(world.broker, BrokerUnavailable("gone")):
        for _ in range(10):
            world.clock.advance(reconciler.step())

    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == ["reconciler: Redis is away: gone"]


def test_a_store_that_is_away_is_an_error_of_the_turn(world: World) -> None:
    reconciler = world.reconciler()
    with world.outage(world.store, StoreUnavailable("gone")), pytest.raises(StoreUnavailable):
        reconciler.step()

    assert reconciler.step() == world.settings.reconcile_s


def test_records_of_workers_silent_for_an_hour_are_forgotten_now_and_then(world: World) -> None:
    reconciler = world.reconciler()
    world.store.calls.clear()

    world.passes(reconciler, 40)

    assert world.store.calls.count("forget_workers") == 2


def test_counters_of_old_hours_are_merged_one_queue_and_type_a_minute(world: World) -> None:
    for _ in range(3):
        for queue in ("a", "b"):
            world.store.cancel(*world.insert(queue=queue))
        world.clock.advance(3600)
    world.clock.advance(9 * 86_400)
    reconciler, merged = world.reconciler(), []
    for _ in range(5):
        merged.append(reconciler.run_once().merged)
        world.clock.advance(60)

    assert merged == [2, 2, 0, 0, 0]
    assert world.store.counts()["ended"]["cancelled"] == 6


def test_everything_lost_at_once_ends_well(world: World) -> None:
    """Field report: a shared Redis is flushed during work. Ready, delayed and running tasks are where they belong."""
    ready = world.enqueue(200)
    running = world.broker.pop([LOW], limit=4, wait_s=0).ids
    world.claim(running, lease_s=1000)
    delayed = world.enqueue(50, delay_s=50)
    reconciler, mover = world.reconciler(), world.mover()
    world.passes(reconciler, 2)

    for _ in range(3):
        world.flush()
        mover.step()
        world.passes(reconciler)

    assert world.listed() == [i for i in ready if i not in running]
    assert sorted(world.scheduled()) == delayed
    assert {world.status(i) for i in running} == {Status.RUNNING}
    world.clock.advance(50)
    mover.step()
    assert sorted(world.listed()[-50:]) == delayed
