"""A mover or reconciler meets an error at one of its points, or sleeps there for a lease while others do its work.

In one process with the clock in the test's hand: what it does when it goes on is done on what it had read before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core import crash
from tandemq.core.lifecycle import Status, Succeed
from tandemq.core.settings import Settings
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.store.answers import Settlement
from tandemq.testing import FakeClock
from tests.crash.fleet import EXPIRY, MOVER, REFILL
from tests.healing import LOW, WORKER, World, open_world

N = 5
#: The transaction is open there: in one process another would wait for it.
IN_TRANSACTION = "expire.before_commit"


@pytest.fixture
def world(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Iterator[World]:
    made = open_world(settings_for(mysql_url, redis_url), FakeClock(), real=True)
    yield made
    made.close()


@pytest.fixture
def fast_world(settings_for: Callable[..., Settings], tmp_path: Path) -> Iterator[World]:
    made = open_world(
        settings_for(f"sqlite:///{tmp_path / 'world.db'}", "redis://localhost:1/0"), FakeClock(), real=False
    )
    yield made
    made.close()


def plant(world: World, point: str) -> tuple[list[int], Callable[[], object]]:
    """Tasks in the state that brings a healer to this point, and its turn that does."""
    if point in MOVER:
        ids, mover = world.enqueue(N, delay_s=5), world.mover()
        mover.step()
        world.clock.advance(6)
        return ids, mover.step
    ids, reconciler = world.enqueue(N), world.reconciler()
    if point in EXPIRY:
        world.claim(world.broker.pop([LOW], limit=N, wait_s=0).ids)
        world.arm(reconciler)
        return ids, lambda: reconciler.run_once(looks=1)
    world.clock.advance(3)
    world.passes(reconciler)
    if point.startswith("rebuild."):
        world.flush()
    else:
        world.lose(ids)
    return ids, lambda: world.passes(reconciler, 2)


def work_all(world: World) -> list[int]:
    """What a worker would do: pop, claim and finish whatever is there. The ids that ran."""
    ran: list[int] = []
    while popped := world.broker.pop([LOW], limit=N, wait_s=0).ids:
        token = next(world.tokens)
        claimed = world.store.claim(
            list(dict.fromkeys(popped)),
            token=token,
            worker_id=WORKER,
            lease_s=30,
            free=N,
            known=None,
            unknown_task_s=60.0,
        )
        settlements = [Settlement(lease, Succeed()) for lease in claimed.leases]
        world.store.finish(settlements, closing=[token], worker_id=WORKER)
        ran += [lease.id for lease in claimed.leases]
    return ran


def heal_and_work(world: World) -> list[int]:
    """Other healers for two leases, and a worker beside them."""
    reconciler: Reconciler = world.reconciler()
    mover: Mover = world.mover()
    ran: list[int] = []
    for _ in range(2 * int(world.settings.lease_s / world.settings.reconcile_s)):
        reconciler.run_once(looks=1)
        mover.step()
        ran += work_all(world)
        world.clock.advance(world.settings.reconcile_s)
    return ran


def assert_done(world: World, ids: list[int], ran: list[int]) -> None:
    assert sorted(ran) == ids, "each once"
    assert {world.status(i) for i in ids} == {Status.SUCCEEDED}
    assert (world.listed(), world.scheduled()) == ([], {})
    assert world.store.expired_claims(10) == []


@pytest.mark.parametrize("point", [*MOVER, *EXPIRY, *REFILL])
def test_an_error_at_a_point_costs_a_turn(world: World, point: str) -> None:
    ids, turn = plant(world, point)
    crash.arm(f"{point}:1:raise")
    with pytest.raises(RuntimeError, match=f"crash point {point}"):
        turn()
    turn()

    assert_done(world, ids, heal_and_work(world))


@pytest.mark.parametrize("point", [p for p in (*MOVER, *EXPIRY, *REFILL) if p != IN_TRANSACTION])
def test_one_that_slept_at_a_point_does_no_harm_with_what_it_had_read(fast_world: World, point: str) -> None:
    ids, turn = plant(fast_world, point)
    ran: list[int] = []
    crash.arm_call(point, lambda: ran.extend(heal_and_work(fast_world)), 1)

    turn()

    assert ran, "it slept, and others worked meanwhile"
    for task_id in ids:  # whatever it did on waking up: what has ended stays as it is
        if task_id in ran:
            assert fast_world.status(task_id) is Status.SUCCEEDED
    assert_done(fast_world, ids, ran + heal_and_work(fast_world))
