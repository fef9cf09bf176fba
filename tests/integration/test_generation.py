"""A flushed or set-back Redis is noticed by its generation and rebuilt. The window is off where it would hide that."""

from __future__ import annotations

import pytest

from tandemq.core.errors import BrokerUnavailable
from tandemq.core.lifecycle import Status
from tandemq.core.task import Level
from tandemq.reconciler import generation
from tandemq.reconciler.generation import Mark
from tests.healing import LOW, Killed, World


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "CHUNK", 10)


def mark(world: World, queue: str = "default") -> Mark | None:
    return Mark.parse(world.broker.generation(queue))


def begins(world: World) -> int:
    return world.broker.calls.count("begin_rebuild")


@pytest.mark.usefixtures("no_window")
def test_a_flushed_redis_with_5000_rows_is_refilled_in_one_pass_in_order(world: World) -> None:
    ids = world.enqueue(5000)
    later = world.enqueue(50, delay_s=500)
    reconciler = world.reconciler()
    world.passes(reconciler, 2)
    world.flush()

    report = world.passes(reconciler)[0]

    assert (report.rebuilt, report.refilled, report.building) == (1, 5050, 0)
    assert world.listed() == ids
    assert set(world.scheduled()) == set(later)
    assert world.passes(reconciler)[0].quiet


@pytest.mark.usefixtures("no_window")
def test_delayed_ids_come_back_with_their_due_time_and_not_early(world: World) -> None:
    """Red under: LPUSH of everything; a score of "now"."""
    (task_id,) = world.enqueue(delay_s=60)
    before = world.scheduled()
    mover = world.mover()
    world.passes(world.reconciler(), 2)
    world.flush()

    world.passes(world.reconciler())

    assert world.scheduled() == before
    mover.step()
    assert world.listed() == []
    world.clock.advance(60)
    mover.step()
    assert world.listed() == [task_id]


@pytest.mark.usefixtures("no_window")
def test_running_tasks_are_not_put_back(world: World) -> None:
    ids = world.enqueue(5)
    world.claim(world.broker.pop([LOW], limit=2, wait_s=0).ids)
    world.flush()

    world.passes(world.reconciler())

    assert world.listed() == ids[2:]


@pytest.mark.usefixtures("no_window", "small_chunks")
@pytest.mark.parametrize("moment", ["advance_epoch", "generation", "pending_after", "rebuild_chunk", "begin_rebuild"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flush_at_any_moment_of_a_pass_is_found_by_the_next(fast_world: World, moment: str, when: str) -> None:
    """Red under: key written first, by SETNX, by plain SET, or at the end of a rebuild without a check."""
    ids = fast_world.enqueue(45)
    for flushed_before in (False, True):
        reconciler = fast_world.reconciler()
        fast_world.passes(reconciler, 2)
        if flushed_before:
            fast_world.flush()  # the second flush hits the rebuild
        part = fast_world.store if hasattr(fast_world.store._inner, moment) else fast_world.broker

        left = [3 if moment in {"pending_after", "rebuild_chunk"} else 1]

        def flush(*_: object, **__: object) -> None:
            left[0] -= 1  # noqa: B023 - called within this turn of the loop
            if left[0]:  # noqa: B023
                return
            del getattr(part, when)[moment]  # noqa: B023 - called within this turn of the loop
            fast_world.flush()

        getattr(part, when)[moment] = flush
        fast_world.passes(reconciler)
        getattr(part, when).pop(moment, None)

        fast_world.passes(reconciler, 2)

        assert fast_world.listed() == ids, f"flushed before: {flushed_before}"


@pytest.mark.usefixtures("no_window", "small_chunks")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("method", "at"), [("begin_rebuild", 1), ("rebuild_chunk", 1), ("rebuild_chunk", 4)])
def test_a_rebuild_killed_anywhere_is_continued_by_another_at_its_cursor(
    fast_world: World, method: str, when: str, at: int
) -> None:
    """Red under: a rebuild owned by its maker, and a DEL by every rebuilder."""
    ids = fast_world.enqueue(45)
    fast_world.passes(fast_world.reconciler(), 2)
    fast_world.flush()
    began = begins(fast_world)
    fast_world.broker.dies(method, at=at, when=when)
    with pytest.raises(Killed):
        fast_world.passes(fast_world.reconciler())

    fast_world.passes(fast_world.reconciler())

    assert fast_world.listed() == ids, "every id, none twice"
    assert begins(fast_world) - began == 1 + (method == "begin_rebuild" and when == "before")
    assert str(mark(fast_world)).endswith(":ready")


@pytest.mark.usefixtures("no_window")
def test_a_rebuilder_that_slept_does_not_empty_what_another_has_refilled(world: World) -> None:
    """Red under: emptying the lists without asking whether the key is still the one that was read."""
    ids = world.enqueue(5)
    world.passes(world.reconciler(), 2)
    world.flush()

    def other_heals(*_: object, **__: object) -> None:
        del world.broker.before["begin_rebuild"]
        world.passes(world.reconciler())
        world.raw.rpush(world.key(LOW, "ready"), 999)  # gone if the list is emptied again

    world.broker.before["begin_rebuild"] = other_heals
    world.passes(world.reconciler())

    assert world.listed() == [999, *ids]


@pytest.mark.usefixtures("no_window", "small_chunks")
def test_a_long_rebuild_goes_on_over_many_passes_beside_a_healthy_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red under: moving the epoch of healthy keys only. The one that is building lags and is begun anew for ever."""
    monkeypatch.setattr(generation, "CHUNKS_PER_PASS", 1)
    other = world.enqueue(3, queue="other")
    ids = world.enqueue(95)
    world.passes(world.reconciler(), 12)
    world.raw.delete(world.key(LOW, "ready"), world.generation_key())
    began = begins(world)
    reconciler = world.reconciler()

    reports = world.passes(reconciler, 10)

    assert begins(world) - began == 1
    assert [report.building for report in reports] == [1] * 9 + [0]
    assert world.listed() == ids
    assert world.listed(Level("other", 0)) == other


@pytest.mark.usefixtures("small_chunks")
def test_while_a_rebuild_is_unfinished_the_next_turn_comes_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "CHUNKS_PER_PASS", 2)
    ids = world.insert(100)
    reconciler = world.reconciler()
    began = world.clock.monotonic()

    while len(world.listed()) < len(ids):
        world.clock.advance(reconciler.step())

    assert world.clock.monotonic() - began < 1


@pytest.mark.usefixtures("no_window")
def test_a_snapshot_older_than_three_passes_is_found_by_its_epoch(world: World) -> None:
    """Red under: an epoch that only a rebuild moves (the key of the snapshot would be equal)."""
    early = world.enqueue(3)
    reconciler = world.reconciler()
    world.passes(reconciler, 2)
    restore = world.snapshot()
    late = world.enqueue(3)
    world.claim(early[:1])
    world.passes(reconciler, 4)

    restore()
    world.passes(reconciler)

    assert world.listed() == early[1:] + late


def test_a_younger_snapshot_is_healed_by_the_window(world: World) -> None:
    early = world.enqueue(3)
    reconciler = world.reconciler()
    world.passes(reconciler, 2)
    restore = world.snapshot()
    late = world.enqueue(3)

    restore()
    world.passes(reconciler, 3)

    assert sorted(world.listed()) == early + late


def test_another_installs_namespace_is_refused_and_nothing_is_touched(world: World) -> None:
    """Red under: adopting whatever stands there. MySQL's own work goes on."""
    world.insert(3)
    (running,) = world.insert()
    world.claim([running])
    world.broker.adopt_install("somebodyelse")
    reconciler = world.reconciler()
    world.arm(reconciler)
    before = {key: world.raw.type(key) for key in world.raw.keys()}  # noqa: SIM118 - a Redis command

    report = world.passes(reconciler)[0]

    assert "somebodyelse" in report.alarms[0]
    assert report.expired == 1
    assert {key: world.raw.type(key) for key in world.raw.keys()} == before  # noqa: SIM118
    assert list(before) == [f"{world.settings.namespace}:generation".encode()]


@pytest.mark.usefixtures("no_window")
def test_an_adopted_namespace_is_rebuilt(world: World) -> None:
    ids = world.enqueue(3)
    world.broker.adopt_install("somebodyelse")
    world.raw.set(world.generation_key(), "somebodyelse:1:ready")
    world.raw.rpush(world.key(LOW, "ready"), 999)
    world.broker.adopt_install(world.store.install_id())

    world.passes(world.reconciler())

    assert world.listed() == ids


@pytest.mark.usefixtures("no_window")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{own}",
        "{own}::ready",
        "{own}:1",
        "{own}:-5:ready",
        "{own}:x:ready",
        "{own}:99999999999999999999999:ready",
        "{own}:{e}:building",
        "{own}:{e}:ready:x",
        "{own}:{e}:READY",
        ":{e}:ready",
        "{own}:\u0661:ready",
        "other:{e}:ready",
    ],
)
def test_a_key_we_cannot_have_written_means_rebuild(fast_world: World, text: str) -> None:
    ids = fast_world.enqueue(3)
    reconciler = fast_world.reconciler()
    fast_world.passes(reconciler, 2)
    fast_world.raw.delete(fast_world.key(LOW, "ready"))
    fast_world.raw.set(
        fast_world.generation_key(), text.format(own=fast_world.store.install_id(), e=fast_world.store.epoch())
    )

    fast_world.passes(reconciler)

    assert fast_world.listed() == ids


@pytest.mark.usefixtures("no_window")
def test_a_mysql_that_was_set_back_finds_the_keys_newer_and_rebuilds_once(world: World) -> None:
    ids = world.enqueue(3)
    reconciler = world.reconciler()
    world.passes(reconciler, 5)
    assert world.store.advance_epoch(world.store.epoch(), 1)
    world.lose(ids)

    reports = world.passes(reconciler, 3)

    assert [report.rebuilt for report in reports] == [1, 0, 0]
    assert world.listed() == ids


def test_a_queue_without_open_rows_gets_its_key_and_stays_quiet(world: World) -> None:
    world.broker.register([Level("empty", 0)])
    reconciler = world.reconciler()

    reports = world.passes(reconciler, 3)

    assert [report.quiet for report in reports] == [True, True, True]
    assert mark(world, "empty") == Mark(world.store.install_id(), world.store.epoch())


def test_rebuilds_in_three_passes_running_are_an_alarm(world: World) -> None:
    """Two databases with one install id (a clone) look like this."""
    world.enqueue(2)
    reconciler = world.reconciler()
    alarms = []
    for _ in range(3):
        world.flush()
        alarms.append(world.passes(reconciler)[0].alarms)

    assert alarms[:2] == [(), ()]
    assert "3 passes running" in alarms[2][0]
    assert world.passes(reconciler, 2)[1].alarms == ()


@pytest.mark.usefixtures("no_window")
def test_a_reconciler_killed_between_mysql_and_redis_twice_costs_at_most_a_rebuild(world: World) -> None:
    ids = world.enqueue(3)
    world.enqueue(3, queue="other")
    world.passes(world.reconciler(), 2)
    for expected in (0, 0, 2):
        world.broker.dies("advance_generation", at=1)
        try:
            report = world.passes(world.reconciler())[0]
        except Killed:
            continue
        finally:
            world.broker.before.clear()
        assert report.rebuilt == expected

    assert world.listed() == ids
    assert world.passes(world.reconciler())[0].quiet


def test_redis_away_is_an_alarm_and_mysqls_own_work_is_done(world: World) -> None:
    (task_id,) = world.insert(max_retries=0)
    world.claim([task_id])
    reconciler = world.reconciler()
    world.arm(reconciler)

    with world.outage(world.broker, BrokerUnavailable("gone")):
        report = world.passes(reconciler)[0]
        assert reconciler.step() == world.settings.reconcile_s

    assert report.alarms == ("Redis is away: gone",)
    assert world.status(task_id) is Status.DEAD


@pytest.mark.usefixtures("no_window")
def test_whole_lists_that_no_reconciler_has_met_are_left_alone(world: World) -> None:
    """The first worker of an installation must not empty a long list and read it all again."""
    ids, later = world.enqueue(3000), world.enqueue(20, delay_s=500)
    world.claim(world.broker.pop([LOW], limit=300, wait_s=0).ids)
    popped = world.broker.pop([LOW], limit=700, wait_s=0).ids  # on their way to a claim

    report = world.passes(world.reconciler())[0]

    assert (report.rebuilt, report.building) == (0, 0)
    assert world.listed() == ids[300 + len(popped) :]
    assert set(world.scheduled()) == set(later)
    assert mark(world) == Mark(world.store.install_id(), world.store.epoch())


@pytest.mark.usefixtures("no_window")
@pytest.mark.parametrize("lost", ["ready", "delayed", "both"])
def test_what_was_pushed_after_a_flush_does_not_hide_it(world: World, lost: str) -> None:
    """The key is missing after a flush too: the lists must tell the difference."""
    ids, later = world.enqueue(500), world.enqueue(50, delay_s=500)
    due = world.scheduled()
    world.flush()
    if lost == "ready":
        world.broker.delay(LOW, due)
    if lost == "delayed":
        world.broker.push(LOW, ids)
    younger = world.enqueue(100)

    report = world.passes(world.reconciler())[0]

    assert report.rebuilt == 1
    assert sorted(world.listed()) == sorted([*ids, *younger])
    assert set(world.scheduled()) == set(later)


@pytest.mark.usefixtures("no_window")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("moment", ["window", "delayed", "oldest_due", "count_later", "open_levels"])
def test_a_flush_while_the_lists_are_looked_at_is_not_declared_healed(
    fast_world: World, moment: str, when: str
) -> None:
    """Red under: the key written as ready before the look, or without asking for the value that was there."""
    ids = fast_world.enqueue(30)
    part = fast_world.store if hasattr(fast_world.store._inner, moment) else fast_world.broker

    def flush(*_: object, **__: object) -> None:
        if (mark(fast_world) or Mark("", 0)).cursor != generation.CHECKING:
            return
        del getattr(part, when)[moment]
        fast_world.flush()

    getattr(part, when)[moment] = flush
    reconciler = fast_world.reconciler()

    fast_world.passes(reconciler, 2)

    assert moment not in getattr(part, when), "the flush has happened"
    assert fast_world.listed() == ids


@pytest.mark.usefixtures("no_window")
def test_a_look_that_was_killed_is_followed_by_a_rebuild(fast_world: World) -> None:
    ids = fast_world.enqueue(30)
    fast_world.store.dies("oldest_due", at=1)
    with pytest.raises(Killed):
        fast_world.passes(fast_world.reconciler())
    left = mark(fast_world)
    assert left is not None
    assert left.cursor == generation.CHECKING
    fast_world.lose(ids[:20])

    report = fast_world.passes(fast_world.reconciler())[0]

    assert report.rebuilt == 1
    assert fast_world.listed() == ids
