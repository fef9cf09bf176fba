"""Due ids are promoted, never early, and a mover may die or be slow anywhere."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tandemq.core import crash
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, StoreUnavailable
from tandemq.core.task import Level
from tandemq.testing import FakeClock
from tests.healing import LOW, World


def test_due_ids_move_to_their_list_in_due_order(world: World) -> None:
    late = world.enqueue(2, delay_s=20)
    early = world.enqueue(2, delay_s=10)
    mover = world.mover()
    assert mover.step() == world.settings.mover_s
    assert world.listed() == []

    world.clock.advance(25)
    mover.step()

    assert world.listed() == early + late
    assert world.scheduled() == {}


def test_every_queue_and_level_is_served_also_those_that_come_later(world: World) -> None:
    mover = world.mover()
    mover.step()
    levels = [Level("default", 30), Level("mails", -7), Level("mails", 15)]
    ids = {level: world.enqueue(2, queue=level.queue, priority=level.priority, delay_s=1) for level in levels}

    world.clock.advance(1)
    mover.step()

    assert {level: world.listed(level) for level in levels} == ids


def test_a_big_wave_moves_in_bounded_chunks_one_turn_after_the_other(world: World) -> None:
    ids = world.enqueue(2500, delay_s=1)
    world.clock.advance(2)
    mover = world.mover()
    world.broker.calls.clear()

    assert mover.step() == world.settings.mover_s

    assert sorted(world.listed()) == ids
    assert world.broker.calls.count("promote") <= 8


def test_a_turn_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemq.mover.CHUNK", 10)
    monkeypatch.setattr("tandemq.mover.CHUNKS_PER_TURN", 5)
    world.enqueue(500, delay_s=1)
    world.clock.advance(2)
    mover = world.mover()

    assert mover.step() == 0.0, "there is more: the next turn at once"

    assert 10 <= len(world.listed()) <= 100


def test_a_machine_whose_clock_is_ahead_promotes_nothing_early(world: World) -> None:
    """Red under: a mover on its own clock (popped, found not due, put back, promoted, round and round)."""
    world.enqueue(3, delay_s=60)
    local = FakeClock(world.clock.now() + timedelta(hours=1))
    local.advance(100_000)
    mover = world.mover(clock=local)

    for _ in range(59):
        mover.step()
        world.clock.advance(1)
        local.advance(1)
    assert world.listed() == []
    world.clock.advance(1)
    local.advance(1)
    mover.step()

    assert len(world.listed()) == 3


def test_a_slow_answer_of_the_database_makes_the_mover_late_never_early(world: World) -> None:
    """Red under: counting the database's clock from the question. The server reads it just before it answers."""
    world.enqueue(1, delay_s=6)

    def slow(*_: object) -> None:
        world.clock.advance(5)

    mover = world.mover()
    world.store.before["now"] = slow
    mover.step()
    del world.store.before["now"]
    world.clock.advance(0.9)
    mover.step()
    assert world.listed() == []
    world.clock.advance(0.2)
    mover.step()

    assert len(world.listed()) == 1


def test_a_local_clock_that_runs_fast_between_two_measurements_is_allowed_for(world: World) -> None:
    """NTP may slew by 500 ppm; a turn must not be early by that."""
    world.enqueue(1, delay_s=0.9)
    local = FakeClock()
    mover = world.mover(clock=local)
    mover.step()
    world.clock.advance(0.8998)
    local.advance(0.8998 * 1.0005)

    mover.step()

    assert world.listed() == []


def test_without_the_database_it_goes_on_for_30_seconds_then_stops(world: World) -> None:
    world.enqueue(1, delay_s=20)
    world.enqueue(1, delay_s=40)
    mover = world.mover()
    mover.step()

    with world.outage(world.store, StoreUnavailable("away")):
        for _ in range(29):
            world.clock.advance(1)
            mover.step()
        assert len(world.listed()) == 1
        world.clock.advance(2)
        with pytest.raises(StoreUnavailable):
            mover.step()
        world.clock.advance(20)
        with pytest.raises(StoreUnavailable):
            mover.step()
        assert len(world.listed()) == 1
    world.clock.advance(2)
    mover.step()

    assert len(world.listed()) == 2


def test_the_database_is_asked_once_a_second_not_at_every_turn(world: World) -> None:
    mover = world.mover()
    world.store.calls.clear()

    for _ in range(50):
        mover.step()
        world.clock.advance(0.2)

    assert world.store.calls.count("lead") <= 11
    assert set(world.store.calls) <= {"lead", "now", "install_id"}, "the mover never writes a task"


def test_one_leads_and_another_takes_over_when_it_is_gone(world: World) -> None:
    world.enqueue(1, delay_s=2)
    first, second = world.mover(), world.mover()
    first.step()
    assert second.step() == pytest.approx(1.0)
    world.clock.advance(2)
    second.step()
    assert world.listed() == []

    world.clock.advance(2)
    second.step()

    assert len(world.listed()) == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_killed_after_a_chunk_nothing_is_lost_and_nothing_doubled(world: World, nth: int) -> None:
    """Red under: take from the sorted set and push as two commands."""
    ids = world.enqueue(1500, delay_s=1) + world.enqueue(5, delay_s=1, queue="other")
    world.clock.advance(2)
    crash.arm(f"promote.after:{nth}:raise")
    try:
        with pytest.raises(RuntimeError, match="crash point"):
            world.mover().step()
    finally:
        crash.arm(None)

    world.clock.advance(3)
    world.mover().step()

    assert sorted(world.listed() + world.listed(Level("other", 0))) == ids
    assert world.scheduled() == world.scheduled(Level("other", 0)) == {}


def test_three_movers_at_once_move_each_id_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership only saves work."""
    monkeypatch.setattr("tandemq.mover.CHUNK", 10)
    monkeypatch.setattr("tandemq.mover.CHUNKS_PER_TURN", 1)
    monkeypatch.setattr(world.store._inner, "lead", lambda *_: True)
    ids = world.enqueue(95, delay_s=1)
    world.clock.advance(1)
    movers = [world.mover() for _ in range(3)]

    for _ in range(4):
        for mover in movers:
            mover.step()

    assert sorted(world.listed()) == ids


def test_another_installs_namespace_is_not_served(world: World) -> None:
    world.enqueue(1, delay_s=1)
    world.broker.adopt_install("somebodyelse")
    world.clock.advance(2)
    mover = world.mover()

    for _ in range(2):
        with pytest.raises(ForeignInstall, match="somebodyelse"):
            mover.step()
    assert world.listed() == []
    world.broker.adopt_install(world.store.install_id())
    mover.step()

    assert len(world.listed()) == 1


def test_an_emptied_redis_is_no_foreign_one(world: World) -> None:
    mover = world.mover()
    world.flush()
    world.enqueue(1, delay_s=1)
    world.clock.advance(1)

    mover.step()

    assert len(world.listed()) == 1


def test_one_refused_key_does_not_hold_up_the_others_and_redis_away_is_an_error(world: World) -> None:
    world.enqueue(1, queue="bad", delay_s=1)
    world.enqueue(1, queue="good", delay_s=1)
    world.clock.advance(1)
    mover = world.mover()

    def refuse(level: Level, **_: object) -> None:
        if level.queue == "bad":
            raise BrokerUnavailable("WRONGTYPE")

    world.broker.before["promote"] = refuse
    mover.step()
    assert len(world.listed(Level("good", 0))) == 1

    world.clock.advance(1)
    with world.outage(world.broker, BrokerUnavailable("gone")), pytest.raises(BrokerUnavailable):
        mover.step()
    assert world.listed(LOW) == []
