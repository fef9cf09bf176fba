"""Running rows whose claims row is gone are healed, and only those."""

from __future__ import annotations

from tandemq.core.lifecycle import Release, Status
from tandemq.store.answers import Settlement
from tests.healing import LOW, WORKER, World


def orphan(world: World, n: int = 1) -> list[int]:
    ids = world.enqueue(n)
    token = world.claim(world.broker.pop([LOW], limit=n, wait_s=0).ids)
    world.sql("DELETE FROM {t}claims WHERE lease_token = :token", token=token)
    return ids


def test_is_healed_after_one_lease_and_raises_an_alarm(world: World) -> None:
    """Red under: no sweep (no query finds the row), and under giving up at first sight."""
    (task_id,) = orphan(world)
    reconciler = world.reconciler()
    world.passes(reconciler, int(world.settings.lease_s / world.settings.reconcile_s))
    assert world.status(task_id) is Status.RUNNING

    report = world.passes(reconciler)[0]

    assert (report.orphans, report.retried) == (1, 1)
    assert f"task {task_id}" in report.alarms[0]
    assert world.status(task_id) is Status.PENDING
    assert task_id in world.scheduled()


def test_one_that_has_just_been_claimed_is_left_alone(world: World) -> None:
    """Red under: a one-statement sweep, or a suspicion by id alone: meanwhile the row is under a lease again."""
    again, returned = orphan(world, 2)
    reconciler = world.reconciler()
    world.passes(reconciler)
    world.clock.advance(world.settings.lease_s)
    world.sql("UPDATE {t}tasks SET status = 'pending', attempts = 0 WHERE id = :id", id=again)

    def claimed_meanwhile(*_: object, **__: object) -> None:
        del world.store.before["end_orphan"]
        world.claim([again])
        world.sql(
            "INSERT INTO {t}claims (lease_token, worker_id, expires_at, ids)"
            " SELECT lease_token, worker_id, '2031-01-01', id FROM {t}tasks WHERE id = :id",
            id=returned,
        )

    world.store.before["end_orphan"] = claimed_meanwhile
    report = world.passes(reconciler)[0]

    assert report.orphans == 0
    assert {world.status(i) for i in (again, returned)} == {Status.RUNNING}


def test_goes_through_all_open_rows_a_chunk_a_pass(world: World) -> None:
    world.insert(1200)
    (task_id,) = orphan(world)
    world.insert(600)
    reconciler = world.reconciler()

    world.passes(reconciler, 4 + int(world.settings.lease_s / world.settings.reconcile_s) + 1)

    assert world.status(task_id) is Status.PENDING


def test_a_finished_handback_is_no_orphan(world: World) -> None:
    (task_id,) = world.enqueue()
    token = next(world.tokens)
    claimed = world.store.claim(
        [task_id], token=token, worker_id=WORKER, lease_s=30, free=1, known=None, unknown_task_s=60.0
    )
    world.store.finish([Settlement(claimed.leases[0], Release())], closing=[token], worker_id=WORKER)
    reconciler = world.reconciler()

    reports = world.passes(reconciler, 20)

    assert not any(report.orphans or report.alarms for report in reports)
