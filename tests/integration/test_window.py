"""Lost ids come back through the window, soon, each once; the generation keys are in order: only the window heals."""

from __future__ import annotations

from itertools import pairwise

from tandemq.core.errors import BrokerUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.task import Level
from tandemq.reconciler import Reconciler
from tests.healing import LOW, World


def settled(world: World) -> Reconciler:
    """A reconciler that has made its first pass: the queue has its generation, rows are more than 2 s old."""
    reconciler = world.reconciler()
    world.clock.advance(3)
    world.passes(reconciler)
    return reconciler


def test_lost_ids_among_a_backlog_are_back_in_two_passes_and_nothing_is_pushed_twice(world: World) -> None:
    """Red under: "acts only on an empty list" (the list is never empty), pushing at the first look."""
    ids = world.enqueue(3000)
    reconciler = settled(world)
    lost = ids[5:1000:50]
    world.lose(lost)

    first, second, third = world.passes(reconciler, 3)

    assert (first.missing, first.repushed) == (len(lost), 0)
    assert second.repushed == len(lost)
    assert (third.missing, third.repushed) == (0, 0)
    assert world.listed() == lost + [i for i in ids if i not in lost], "the oldest lost id must run first"


def test_an_id_that_is_missing_in_one_look_only_is_in_a_workers_hands_and_is_left_alone(world: World) -> None:
    """Red under: one look (every pop between two reads would be pushed again)."""
    ids = world.enqueue(10)
    reconciler = settled(world)
    popped = world.broker.pop([LOW], limit=3, wait_s=0).ids
    assert world.passes(reconciler)[0].missing == 3
    world.claim(popped)

    report = world.passes(reconciler)[0]

    assert (report.missing, report.repushed) == (0, 0)
    assert world.listed() == ids[3:]


def test_redis_is_read_before_mysql(world: World) -> None:
    """Red under: MySQL first. Whatever is popped and claimed between the two reads would be missing, all day long."""
    world.enqueue(10)
    reconciler = settled(world)

    def work(*_: object, **__: object) -> None:
        del world.broker.after["window"], world.store.after["oldest_due"]
        world.claim(world.broker.pop([LOW], limit=5, wait_s=0).ids)

    world.broker.after["window"] = world.store.after["oldest_due"] = work

    assert world.passes(reconciler)[0].missing == 0


def test_two_looks_in_a_hurry_count_as_one(world: World) -> None:
    """Red under: counting looks without their distance (a rebuild makes passes follow each other at once)."""
    ids = world.enqueue(10)
    reconciler = settled(world)
    world.lose(ids[:1])

    reports = [reconciler.run_once(looks=1) for _ in range(5)]

    assert [report.repushed for report in reports] == [0] * 5


def test_a_lost_id_deep_in_a_backlog_is_found_when_its_turn_comes(world: World) -> None:
    """Red under: a cursor over ids or windows that does not begin at the oldest row again."""
    ids = world.enqueue(2500)
    reconciler = settled(world)
    lost = ids[2000]
    world.lose([lost])
    assert not any(report.missing for report in world.passes(reconciler, 3)), "out of the window's sight"
    world.claim(world.broker.pop([LOW], limit=1000, wait_s=0).ids)
    world.claim(world.broker.pop([LOW], limit=900, wait_s=0).ids)

    world.passes(reconciler, 2)

    assert world.listed()[0] == lost


def test_running_rows_older_than_a_whole_window_do_not_hide_a_lost_id(world: World) -> None:
    """Red under: LIMIT before the status is filtered."""
    ids = world.enqueue(1300)
    for _ in range(4):
        world.claim(world.broker.pop([LOW], limit=300, wait_s=0).ids)
    reconciler = settled(world)
    world.lose(ids[1250:1251])

    world.passes(reconciler, 2)

    assert world.listed()[0] == ids[1250]


def test_an_id_lost_again_is_pushed_again_but_not_within_30_seconds(world: World) -> None:
    """Red under: remembering what was pushed without end; and under not remembering at all."""
    ids = world.enqueue(5)
    reconciler = settled(world)
    world.lose(ids[:1])
    assert [report.repushed for report in world.passes(reconciler, 2)] == [0, 1]
    pushed_at = world.clock.monotonic()

    world.lose(ids[:1])
    repushed_after = None
    while repushed_after is None:
        if world.passes(reconciler)[0].repushed:
            repushed_after = world.clock.monotonic() - pushed_at

    assert 30 <= repushed_after <= 36
    assert world.listed()[0] == ids[0]


def test_an_id_that_had_arrived_and_is_lost_again_is_pushed_as_soon_as_the_first_time(world: World) -> None:
    ids = world.enqueue(5)
    reconciler = settled(world)
    for _ in range(2):
        world.lose(ids[:1])
        assert [report.repushed for report in world.passes(reconciler, 3)] == [0, 1, 0]
        assert world.listed()[0] == ids[0]


def test_every_list_is_looked_at_whatever_its_level_and_those_nobody_registered(world: World) -> None:
    """Red under: levels from Redis. A row inserted by other SQL names a level that Redis has never heard of."""
    levels = [Level("default", 0), Level("default", 30), Level("mails", -7), Level("mails", 15)]
    ids = {level: world.insert(2, queue=level.queue, priority=level.priority) for level in levels}
    reconciler = settled(world)
    for level in levels:
        world.raw.delete(world.key(level, "ready"))
    world.raw.delete(f"{world.settings.namespace}:queues", f"{world.settings.namespace}:{{mails}}:levels")

    world.passes(reconciler, 2)

    assert {level: world.listed(level) for level in levels} == ids
    assert world.broker.queues() == {"default", "mails"}
    assert {-7, 15} <= world.broker.levels("mails")


def test_a_due_id_that_no_mover_promotes_is_found(world: World) -> None:
    """A mover that is away costs time only."""
    ids = world.enqueue(3, delay_s=5)
    reconciler = settled(world)
    assert world.listed() == []
    world.clock.advance(5)

    world.passes(reconciler, 2)

    assert world.listed() == ids


def test_rows_younger_than_two_seconds_are_their_producers_business(world: World) -> None:
    """Red under: no grace (a row is committed before its id is pushed)."""
    world.insert(3)
    reconciler = world.reconciler()
    world.raw.set(world.generation_key(), f"{world.store.install_id()}:{world.store.epoch()}:ready")

    assert reconciler.run_once().missing == 0


def test_a_wiped_list_is_refilled_by_the_window_alone_in_seconds_without_useless_copies(world: World) -> None:
    """Red under: one window per pass (10,000 ids take 20 s); one look while refilling (copies of what is in hand)."""
    ids = world.enqueue(10_000)
    reconciler = settled(world)
    world.raw.delete(world.key(LOW, "ready"))
    began, popped, hand, due_at = world.clock.monotonic(), [], (), 0.0

    while len(popped) < len(ids):
        assert world.clock.monotonic() - began < 6, f"only {len(popped)} after 6 s"
        if world.clock.monotonic() >= due_at:
            due_at = world.clock.monotonic() + reconciler.step()
        if hand:
            world.claim(hand)
        hand = world.broker.pop([LOW], limit=500, wait_s=0).ids
        popped += hand
        world.clock.advance(0.02)

    assert popped == ids


def test_a_window_that_fills_up_while_nobody_works_is_pushed_once(world: World) -> None:
    """Red under: pushing without bound. At most one window per level is put back while nothing runs."""
    ids = world.enqueue(2500)
    reconciler = settled(world)
    world.raw.delete(world.key(LOW, "ready"))

    for _ in range(100):
        world.clock.advance(reconciler.step())

    assert world.listed() == ids[:1000]


def test_passes_keep_their_rhythm_while_a_level_is_refilled(world: World) -> None:
    """Red under: a chase that puts off the next pass (the other levels and the leases would wait for it)."""
    world.enqueue(2500)
    reconciler = settled(world)
    world.raw.delete(world.key(LOW, "ready"))
    began, passes = world.clock.monotonic(), []
    world.store.before["open_levels"] = lambda: passes.append(world.clock.monotonic())

    while world.clock.monotonic() - began < 20:
        world.clock.advance(reconciler.step())
        world.claim(world.broker.pop([LOW], limit=20, wait_s=0).ids)

    gaps = {round(b - a, 3) for a, b in pairwise(passes)}
    assert gaps == {world.settings.reconcile_s}


def test_a_level_whose_key_holds_another_type_does_not_stop_the_others(world: World) -> None:
    """Red under: one broken key ends the pass."""
    bad, good = Level("bad", 0), Level("good", 0)
    world.insert(2, queue="bad")
    ids = world.insert(2, queue="good")
    reconciler = settled(world)
    for level in (bad, good):
        world.raw.delete(world.key(level, "ready"))
    world.raw.set(world.key(bad, "ready"), "a string")

    world.passes(reconciler, 2)

    assert world.listed(good) == ids


def test_a_level_that_redis_refuses_does_not_stop_the_others(world: World) -> None:
    """Red under: giving the pass up at the first error of a Redis that answers."""
    world.insert(2, queue="bad")
    good = Level("good", 0)
    ids = world.insert(2, queue="good")
    reconciler = settled(world)
    world.raw.delete(world.key(good, "ready"))

    def refuse(level: Level, *_: object) -> None:
        if level.queue == "bad":
            raise BrokerUnavailable("NOPERM")

    world.broker.before["window"] = refuse
    reports = world.passes(reconciler, 2)

    assert world.listed(good) == ids
    assert reports[1].alarms == ("list of queue 'bad', priority 0: NOPERM",)


def test_dying_before_the_push_costs_two_more_passes(world: World) -> None:
    """The push is the last thing a look does: what was not pushed is not remembered as pushed."""
    ids = world.enqueue(3)
    reconciler = settled(world)
    world.lose(ids[:1])
    world.passes(reconciler)
    world.broker.dies("push_next", error=RuntimeError("killed"))
    try:
        world.passes(reconciler)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the fault was not met")

    world.passes(reconciler)

    assert world.listed() == ids
    assert all(world.status(i) is Status.PENDING for i in ids)


def test_once_from_the_command_line_looks_twice_by_itself(world: World) -> None:
    """A fresh process has no look before: without a second one `reconcile --once` could only heal by the generation."""
    ids = world.enqueue(5)
    settled(world)
    world.lose(ids[2:3])

    report = world.reconciler().run_once()

    assert report.repushed == 1
    assert sorted(world.listed()) == ids
