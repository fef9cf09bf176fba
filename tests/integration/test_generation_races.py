"""Reconcilers that race each other through flushes, deaths and old snapshots; deterministic, by seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import greenlet
import pytest

from tandemq.core.task import Level
from tandemq.reconciler import generation
from tests.healing import LOW, Tapped, World


class Interleaving:
    """Several reconcilers in one thread, switched at every call to MySQL or Redis by a seeded die; faults between."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world, self.rng = world, rng
        self.actors: list[greenlet.greenlet] = []
        self.snapshots: list[tuple[int, Callable[[], None]]] = []

    def start(self) -> None:
        """A new reconciler that makes passes until it is killed."""

        def pause(*_: object, **__: object) -> None:
            parent = greenlet.getcurrent().parent
            assert parent is not None
            parent.switch()

        store, broker = Tapped(self.world.store._inner), Tapped(self.world.broker._inner)
        store.before["*"] = broker.before["*"] = pause
        reconciler = self.world.reconciler(store=store, broker=broker)

        def live() -> None:
            while True:
                reconciler.run_once(looks=1)

        self.actors.append(greenlet.greenlet(live))

    def kill(self) -> None:
        """One of them dies where it stands; another starts."""
        actor = self.rng.choice(self.actors)
        self.actors.remove(actor)
        actor.throw()
        self.start()

    def snapshot(self) -> None:
        """Redis saves."""
        if len(self.snapshots) < 3:
            self.snapshots.append((self.world.store.epoch(), self.world.snapshot()))

    def restore(self) -> None:
        """Redis comes back from a save that is older than three passes."""
        old = [s for s in self.snapshots if s[0] < self.world.store.epoch() - 3]
        if old:
            chosen = self.rng.choice(old)
            self.snapshots.remove(chosen)
            chosen[1]()

    def run(self, steps: int, faults: float = 0.03) -> None:
        """Let them race; ``faults`` is how likely one is before a step."""
        kinds = [self.world.flush, self.kill, self.snapshot, self.snapshot, self.restore, self.restore]
        for _ in range(steps):
            if self.rng.random() < faults:
                self.rng.choice(kinds)()
            self.rng.choice(self.actors).switch()

    def end(self) -> None:
        """All die."""
        for actor in self.actors:
            actor.throw()


@pytest.mark.usefixtures("no_window")
@pytest.mark.parametrize("seed", range(12))
def test_two_reconcilers_racing_through_flushes_deaths_and_old_snapshots_heal_every_queue(
    fast_world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red under each naive reading of the generation. Only the key heals here; every due id must be back, in order."""
    race_and_heal(fast_world, seed, monkeypatch)


@pytest.mark.usefixtures("no_window")
def test_the_same_race_on_real_servers(server_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    race_and_heal(server_world, 3, monkeypatch)


def race_and_heal(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "CHUNK", 3)
    monkeypatch.setattr(generation, "CHUNKS_PER_PASS", 3)
    levels = [Level("a", 0), Level("a", 10), Level("b", 0)]
    ids = {level: world.enqueue(8, queue=level.queue, priority=level.priority) for level in levels}
    world.passes(world.reconciler(), 4)
    racing = Interleaving(world, Random(seed))
    racing.start()
    racing.start()

    racing.run(400)
    racing.end()
    world.passes(world.reconciler(), 20)

    for level in levels:
        assert list(dict.fromkeys(world.listed(level))) == ids[level]


@pytest.mark.usefixtures("no_window")
def test_two_reconcilers_racing_in_peace_do_not_duel(fast_world: World) -> None:
    """Red under: whoever finds a key that another moved meanwhile takes it for a flush."""
    ids = fast_world.enqueue(8)
    fast_world.enqueue(8, queue="other")
    fast_world.passes(fast_world.reconciler(), 2)
    fast_world.raw.rpush(fast_world.key(LOW, "ready"), 999)  # gone if the list is emptied
    racing = Interleaving(fast_world, Random(1))
    racing.start()
    racing.start()

    racing.run(600, faults=0)

    # Before they are killed: where that happens to both in two passes running, one rebuild follows and is harmless.
    assert fast_world.listed() == [999, *ids]
    racing.end()
