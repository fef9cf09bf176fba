"""The doctor compares Redis with the rows: each drift is planted and named, and ``fix`` mends what is safe to mend."""

from __future__ import annotations

import pytest

from tandemq.core.lifecycle import Status
from tandemq.core.task import Level
from tandemq.doctor import Diagnosis, Doctor, Finding, Grade, drift
from tandemq.store.answers import WorkerRecord
from tests.healing import LOW, World


def examine(world: World, *, fix: bool = False) -> Diagnosis:
    return Doctor(world.store, world.broker, world.clock, world.settings).examine(fix=fix)


def named(diagnosis: Diagnosis, name: str) -> list[Finding]:
    found = [finding for finding in diagnosis if finding.name == name]
    assert found, f"{name} is missing in {[f.name for f in diagnosis]}"
    return found


def one(world: World, name: str, *, fix: bool = False) -> Finding:
    (finding,) = named(examine(world, fix=fix), name)
    return finding


def settle(world: World) -> None:
    """As after a pass of the reconciler: marked, named, of the right generation."""
    world.reconciler().run_once(looks=1)
    world.clock.advance(5)


def worker(world: World, queues: str) -> None:
    now = world.clock.now()
    world.store.worker_started(WorkerRecord("w1", "w", "host", 1, queues, 8, 2, "running", now, now, True))


def test_a_sound_queue_has_nothing_to_be_named(world: World) -> None:
    worker(world, "default")
    ids = world.enqueue(3)
    world.enqueue(2, priority=7, delay_s=60)
    settle(world)
    world.clock.advance(20)  # less than a lease: the worker's record is still young

    drifted = [f for f in examine(world) if f.name.startswith(("queues.", "leases.", "workers.", "redis.install"))]

    assert {f.level for f in drifted} <= {Grade.OK, Grade.INFO}
    assert {f.name for f in drifted if f.level is Grade.INFO} == {"queues.oldest"}
    assert "26 s, in queue default" in one(world, "queues.oldest").says
    assert world.listed() == ids, "what was tried was not done"


def test_lost_ids_are_named_and_pushed_to_where_they_are_popped_next(world: World) -> None:
    ids = world.enqueue(5)
    settle(world)
    world.lose(ids[1:3])

    finding = one(world, "queues.missing")
    assert finding.level is Grade.WARNING
    assert "2 due tasks are not in Redis" in finding.says
    assert "due for 5 s" in finding.says
    assert "tandemq doctor --fix" in finding.remedy
    assert len(world.listed()) == 3, "without --fix nothing is touched"

    fixed = one(world, "queues.missing", fix=True)
    assert (fixed.level, fixed.fixed) == (Grade.INFO, "pushed 2")
    assert world.listed() == [ids[1], ids[2], ids[0], ids[3], ids[4]]
    assert one(world, "queues.missing").level is Grade.OK


def test_an_id_that_is_just_being_claimed_is_not_lost(world: World) -> None:
    ids = world.enqueue(2)
    settle(world)
    world.lose(ids)  # popped
    claimed: list[int] = []

    def claim(*_: object, **__: object) -> None:
        if not claimed:
            claimed.append(world.claim(ids))

    world.store.after["entries"] = claim

    assert one(world, "queues.missing", fix=True).level is Grade.OK
    assert claimed
    assert world.listed() == []


@pytest.mark.parametrize("meanwhile", ["popped", "pushed"])
def test_only_what_both_looks_miss_is_lost(world: World, meanwhile: str) -> None:
    ids = world.enqueue(2)
    settle(world)
    if meanwhile == "pushed":
        world.lose(ids)
    acted: list[str] = []

    def act(*_: object, **__: object) -> None:
        if not acted:
            acted.append(meanwhile)
            if meanwhile == "popped":
                world.lose(ids)
            else:
                world.broker.push(LOW, ids)

    world.store.after["entries"] = act

    assert one(world, "queues.missing", fix=True).level is Grade.OK
    assert acted
    assert len(world.listed()) == (0 if meanwhile == "popped" else 2)


def test_a_row_that_is_due_just_now_is_on_its_way(world: World) -> None:
    world.insert(1)
    world.clock.advance(1)

    assert one(world, "queues.missing").level is Grade.OK


def plant_strays(world: World) -> tuple[list[int], int]:
    """Open tasks, and one that was cancelled; its id, junk and an id without a row lie between those of the others."""
    good, gone = world.enqueue(3), world.enqueue(1)[0]
    later = world.enqueue(1, delay_s=600)
    assert world.store.cancel(gone) == "cancelled"
    settle(world)
    world.raw.rpush(world.key(LOW, "ready"), "junk", "987654321", str(gone))
    world.raw.zadd(world.key(LOW, "delayed"), {"more junk": 1e15, "987654322": 1e15, str(gone): 1e15})
    return good + later, gone


def test_junk_and_orphans_are_taken_out_and_nothing_else(world: World) -> None:
    (*good, later), gone = plant_strays(world)

    finding = one(world, "queues.strays")
    assert finding.level is Grade.INFO
    assert "6 entries" in finding.says
    assert "junk" in finding.says
    assert world.raw.llen(world.key(LOW, "ready")) == 7

    assert one(world, "queues.strays", fix=True).fixed == "removed 7"  # the cancelled one was in the list twice
    assert world.listed() == good
    assert list(world.scheduled()) == [later]
    assert gone not in world.listed()
    assert one(world, "queues.strays").level is Grade.OK


def test_a_task_that_is_replayed_while_its_id_is_taken_out_keeps_one(world: World) -> None:
    _, gone = plant_strays(world)

    def replay(*_: object, **__: object) -> None:
        world.store.replay([gone])
        world.broker.push(LOW, [gone])

    world.broker.before["remove"] = replay
    examine(world, fix=True)

    assert gone in world.listed()


def test_a_task_that_is_replayed_between_the_looks_is_left_alone(world: World) -> None:
    _, gone = plant_strays(world)
    replayed: list[object] = []

    def replay(*_: object, **__: object) -> None:
        if not replayed:
            replayed.extend(world.store.replay([gone]))

    world.store.after["entries"] = replay
    examine(world, fix=True)

    assert replayed
    assert world.listed().count(gone) == 2


def test_copies_are_told_and_left_alone(world: World) -> None:
    ids = world.enqueue(2)
    settle(world)
    running = world.enqueue(1)
    world.claim(running)
    world.broker.push(LOW, ids)

    finding = one(world, "queues.copies", fix=True)

    assert finding.level is Grade.INFO
    assert "3 entries" in finding.says
    assert sorted(world.listed()) == sorted([*ids, *ids, *running])


def test_delayed_ids_that_nobody_moves(world: World) -> None:
    world.enqueue(2, delay_s=1)
    settle(world)
    assert one(world, "queues.delayed").level is Grade.OK
    world.clock.advance(30)

    finding = one(world, "queues.delayed")

    assert finding.level is Grade.WARNING
    assert "2 delayed tasks" in finding.says
    assert "the oldest for 35 s" in finding.says
    assert "tandemq mover" in finding.remedy


def test_names_that_are_gone_are_restored(world: World) -> None:
    world.enqueue(1, priority=7)
    settle(world)
    world.raw.delete(f"{world.settings.namespace}:queues", f"{world.settings.namespace}:{{default}}:levels")

    finding = one(world, "queues.names")
    assert finding.level is Grade.WARNING
    assert "queue default, priority 7" in finding.says

    assert one(world, "queues.names", fix=True).fixed == "named 1"
    assert 7 in world.broker.levels("default")
    assert world.broker.queues() == {"default"}
    assert one(world, "queues.names").level is Grade.OK


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        (None, Grade.INFO, "has no generation"),
        ("somebody:7:ready", Grade.WARNING, "'somebody:7:ready', wanted one of install"),
        ("nonsense", Grade.WARNING, "'nonsense'"),
        ("{install}:1:ready", Grade.WARNING, "is 1, wanted 4 or newer: Redis was set back"),
        ("{install}:4:ready", Grade.OK, "right generation"),
        ("{install}:5:building:0|x|1", Grade.INFO, "is being filled"),
        ("{install}:5:building:?", Grade.INFO, "is being compared"),
    ],
)
def test_the_generation_of_a_queue(world: World, text: str | None, level: Grade, says: str) -> None:
    world.enqueue(1)
    world.sql("UPDATE {t}meta SET value = '5' WHERE name = 'epoch'")
    if text is not None:
        world.raw.set(world.generation_key(), text.format(install=world.store.install_id()))

    finding = one(world, "queues.generation")

    assert finding.level is level
    assert says in finding.says


def test_another_databases_namespace_is_a_fault_and_nothing_in_it_is_touched(world: World) -> None:
    ids = world.enqueue(2)
    settle(world)
    world.lose(ids)
    world.raw.set(f"{world.settings.namespace}:generation", "stranger")

    diagnosis = examine(world, fix=True)

    (finding,) = named(diagnosis, "redis.install")
    assert finding.level is Grade.FAULT
    assert "stranger" in finding.says
    assert world.store.install_id() in finding.says
    assert "TANDEMQ_NAMESPACE" in finding.remedy
    assert not diagnosis.healthy
    assert world.listed() == []
    assert world.broker.install() == "stranger"


def test_an_unmarked_namespace_is_marked(world: World) -> None:
    assert one(world, "redis.install").level is Grade.INFO
    assert world.broker.install() is None

    assert one(world, "redis.install", fix=True).fixed.startswith("marked")
    assert world.broker.install() == world.store.install_id()
    assert one(world, "redis.install").level is Grade.OK


def test_a_key_of_another_type_is_a_fault_and_the_rest_is_looked_at(world: World) -> None:
    lost = world.insert(1, queue="other")
    world.enqueue(1)
    settle(world)
    world.raw.delete(world.key(Level("other", 0), "ready"))
    world.raw.delete(world.key(LOW, "ready"))
    world.raw.set(world.key(LOW, "ready"), "not a list")

    diagnosis = examine(world, fix=True)

    (finding,) = named(diagnosis, "redis.key_types")
    assert finding.level is Grade.FAULT
    assert finding.subject == world.key(LOW, "ready")
    assert f"redis-cli DEL '{finding.subject}'" in finding.remedy
    assert world.raw.get(finding.subject) == b"not a list", "whose data it is nobody knows"
    assert world.listed(Level("other", 0)) == lost


def test_leases_that_nobody_ends(world: World) -> None:
    ids = world.enqueue(2)
    settle(world)
    world.claim(ids)
    world.clock.advance(world.settings.lease_s + 5)
    assert one(world, "leases.expired").level is Grade.OK, "a reconciler may be about to"
    world.clock.advance(world.settings.lease_s + 10)

    finding = one(world, "leases.expired")

    assert finding.level is Grade.WARNING
    assert "1 leases ended long ago (2 tasks)" in finding.says


def test_queues_that_no_live_worker_serves(world: World) -> None:
    worker(world, "default, mail")
    world.enqueue(1)
    world.enqueue(1, queue="reports")
    world.enqueue(1, queue="later", delay_s=600)
    world.clock.advance(12)

    finding = one(world, "workers.serving")
    assert finding.level is Grade.WARNING
    assert finding.subject == "reports"
    assert "for 12 s" in finding.says
    assert "-q reports" in finding.remedy
    assert "1 workers with 16 slots" in one(world, "workers.alive").says

    world.clock.advance(world.settings.lease_s)  # silent for too long
    assert {f.subject for f in named(examine(world), "workers.serving")} == {"default", "reports"}
    assert one(world, "workers.alive").level is Grade.INFO


def test_a_long_queue_is_read_in_part_and_that_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "TAIL", 10)
    monkeypatch.setattr(drift, "ROWS", 5)
    ids = world.enqueue(40)
    settle(world)
    world.raw.lpush(world.key(LOW, "ready"), "junk at the far end")
    assert "of each long list only the next 10" in one(world, "queues.missing").says
    assert one(world, "queues.strays").level is Grade.OK

    world.lose(ids[:8])
    finding = one(world, "queues.missing", fix=True)

    assert "5 or more due tasks are not among the next 10 of 33" in finding.says
    assert [int(entry) for entry in reversed(world.raw.lrange(world.key(LOW, "ready"), -5, -1))] == ids[:5]


def test_many_levels_are_looked_at_in_part_and_that_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "MAX_LEVELS", 3)
    for queue in ("a", "b"):
        world.enqueue(1, queue=queue)
    settle(world)

    world.broker.calls.clear()
    assert "there are 8 levels" in one(world, "queues.sampled").says
    assert world.broker.calls.count("ready_sample") <= 2 * 3


def test_what_was_fixed_runs(world: World) -> None:
    ids = world.enqueue(3)
    settle(world)
    world.flush()

    examine(world, fix=True)

    popped = world.broker.pop([LOW], limit=10, wait_s=0)
    assert list(popped.ids) == ids
    world.claim(popped.ids)
    assert {world.status(i) for i in ids} == {Status.RUNNING}
