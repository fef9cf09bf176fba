"""A worker as the model runs it: the real child, keeper, ender, mover and reconciler, without processes and threads.

``Tree`` does what ``worker.supervisor`` and ``tandemq.child`` do around them, in as few lines as that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from types import SimpleNamespace
from typing import Any

from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, StoreUnavailable, StoreUnknown
from tandemq.core.settings import Settings
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.registry import Registry
from tandemq.service import Loop
from tandemq.worker.arena import Arena, Snapshot, State
from tandemq.worker.child import Child
from tandemq.worker.leases import LeaseEnder, LeaseKeeper, endings
from tandemq.worker.options import WorkerOptions
from tandemq.worker.process import ChildProcess
from tests.model.coop import Actor, Call, Dead, Event, Process, Scene

SLOTS = 2
TURN_S = 0.1


class ProcessClock:
    """One process's clock: its wall time may jump."""

    def __init__(self, scene: Scene, base: Clock) -> None:
        self._scene, self._base = scene, base
        self.jumped_s = 0.0

    def now(self) -> datetime:
        return self._base.now() + timedelta(seconds=self.jumped_s)

    def monotonic(self) -> float:
        return self._base.monotonic()

    def sleep(self, seconds: float) -> None:
        self._scene.wait(None, seconds)


class Link:
    """A store or broker as one process has it: an actor stops before each call, and its answer may be lost.

    Fates: ``ok``; ``before``: the server was never asked; ``after``: it did it, the answer is lost; ``late``: it will
    do it some time, and the caller has given up by then.
    """

    def __init__(self, kind: str, target: Any, servers: Servers) -> None:
        self._kind, self._target, self._servers = kind, target, servers

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(Call(self._kind, method, args, kwargs, self._servers.scene.current))

        return call

    def _call(self, call: Call) -> Any:
        actor, servers = self._servers.scene.current, self._servers
        if servers.scene.is_over:
            raise Dead
        if actor is None:
            return servers.perform(call)
        if call.method == "pop" and not servers.any_ready(call.args[0]):
            # BRPOP waits in the server. Not in real time here, and only then as a call that can be lost.
            servers.scene.wait(None, call.kwargs["wait_s"])
            call.kwargs["wait_s"] = 0.0
        fate = actor.stop(call=call)
        if fate == "before" or servers.is_away(self._kind):
            raise self._away("nothing was done")
        if fate == "late":
            servers.late.append((servers.scene.clock.monotonic(), call))
            raise self._away("unknown", unknown=True)
        answer = servers.perform(call)
        if fate == "after":
            raise self._away("unknown", unknown=True)
        return answer

    def _away(self, text: str, *, unknown: bool = False) -> Exception:
        if self._kind == "broker":
            return BrokerUnavailable(text)
        return StoreUnknown(text) if unknown else StoreUnavailable(text)


class Servers:
    """Both servers as the test breaks them. ``wrote`` is told of every call of the store that was performed."""

    def __init__(self, scene: Scene, store: Any, broker: Any, wrote: Callable[[Call], None]) -> None:
        self.scene, self._wrote = scene, wrote
        self._targets = {"store": store, "broker": broker}
        self.away: set[str] = set()
        self.late: list[tuple[float, Call]] = []

    def link(self, kind: str) -> Any:
        return Link(kind, self._targets[kind], self)

    def is_away(self, kind: str) -> bool:
        return kind in self.away

    def any_ready(self, levels: Any) -> bool:
        return any(self._targets["broker"].depth(level) for level in levels)

    def perform(self, call: Call) -> Any:
        """Now, whoever asked for it, and whether or not he still waits."""
        try:
            call.answer = getattr(self._targets[call.kind], call.method)(*call.args, **call.kwargs)
            return call.answer
        finally:
            if call.kind == "store":
                self._wrote(call)


class ChildSide:
    """A child as its supervisor sees it: the ``ChildProcess`` of the model."""

    def __init__(self, tree: Tree, number: int) -> None:
        self.process = Process(f"{tree.name}.{number}")
        self.arena = Arena.create()
        self.ready, self.queues = True, tree.queues
        self.culprits: set[int] = set()
        self.unwanted: set[int] = set()
        self.stopping = False
        self._asked: dict[tuple[int, int], float] = {}
        self._doomed: frozenset[tuple[int, int]] = frozenset()
        orders = {
            "worker_id": tree.worker_id,
            "queues": tree.queues,
            "slots": SLOTS,
            "fair": False,
            "max_tasks": 0,
            "max_memory_mb": 0,
        }
        with tree.scene.starting(self.process):
            self.child = Child(
                tree.registry, tree.settings, orders, store=tree.store, broker=tree.broker, arena=self.arena,
                clock=tree.clock, encoder=None,
            )  # fmt: skip
            self.child.start()
        self._scene = tree.scene
        self._scene.start(self.process, "control", lambda: self._control(tree.is_gone))
        self._scene.start(self.process, "exit", self._exit)

    def _control(self, is_gone: Event) -> None:
        is_gone.wait()
        self.child.drain()
        self.child.wait_over(self.child.leases_stand_s())
        self.die()

    def _exit(self) -> None:
        self.child.wait_over(None)
        self.die()

    def die(self) -> None:
        self._scene.kill(self.process)

    def tell(self, word: str) -> None:
        assert word == "cancel"
        self.child.executor.stop_unwanted()

    def asked_to_stop(self, *given: Any) -> None:
        ChildProcess.asked_to_stop(self, *given)  # type: ignore[arg-type]  # a ChildProcess by its shape

    def unstoppable(self, now: float) -> set[int]:
        return ChildProcess.unstoppable(self, now)  # type: ignore[arg-type]

    def leases(self) -> list[Snapshot]:
        return self.arena.snapshots()

    def begun(self) -> set[int]:
        return {r.id for snapshot in self.leases() for r in snapshot.records if r.state is State.BEGUN}


class Tree:
    """A supervisor and its child."""

    def __init__(
        self, scene: Scene, servers: Servers, number: int, *, registry: Registry, settings: Settings, base: Clock,
        queues: tuple[str, ...], leads: bool, on_kill: Callable[[set[tuple[int, int]]], None],
    ) -> None:  # fmt: skip
        self._on_kill = on_kill
        self.scene, self.registry, self.settings, self.queues = scene, registry, settings, queues
        self.name = f"w{number}"
        self.worker_id = f"{self.name}-{number:012x}"
        self.process = Process(self.name)
        self.clock = ProcessClock(scene, base)
        self.store, self.broker = servers.link("store"), servers.link("broker")
        self.is_gone = Event()
        self.children: list[ChildSide] = []
        self.spawned = 0
        self.draining = False
        self._rng = Random(number)
        # One of two ignores who leads: two active movers and reconcilers must be harmless.
        mover_store = self.store if leads else _AlwaysLeads(self.store)
        options = WorkerOptions(slots=SLOTS)
        self.keeper = LeaseKeeper(
            self.store, lambda: list(self.children), settings=settings, worker_id=self.worker_id, name=self.name,
            options=options, clock=self.clock, state=lambda: "running",
        )  # fmt: skip
        self.ender = LeaseEnder(
            self.store, self.broker, worker_id=self.worker_id, clock=self.clock, on_dead=self._tell_dead
        )
        mover = Mover(mover_store, self.broker, self.clock, self.worker_id, settings)
        self.reconciler = Reconciler(
            self.store, self.broker, self.clock, self._rng, settings, self.worker_id, on_dead=self._tell_dead,
            lead=leads,
        )  # fmt: skip
        services = {"heartbeat": self.keeper, "ender": self.ender, "mover": mover, "reconciler": self.reconciler}
        with scene.starting(self.process):
            self._loops = {name: Loop(one, self.clock, self._rng, name) for name, one in services.items()}
            for loop in self._loops.values():
                loop.start()
        scene.start(self.process, "watch", self._watch)

    @property
    def is_over(self) -> bool:
        """Nothing of it lives."""
        return not self.process.alive and not any(child.process.alive for child in self.children)

    def actors(self) -> list[Actor]:
        mine = {self.process, *(child.process for child in self.children)}
        return [actor for actor in self.scene.actors if actor.process in mine]

    def pause(self, paused: bool, *, child: bool) -> None:
        for process in [one.process for one in self.children] if child else [self.process]:
            process.paused = paused

    def die(self) -> None:
        """The supervisor; its child notices."""
        self.scene.kill(self.process)
        self.is_gone.set()

    def close(self) -> None:
        for child in self.children:
            child.arena.close()
        self.children = []

    def _watch(self) -> None:
        while True:
            for child in [one for one in self.children if one.process.alive]:
                self._stop(child)
            for child in [one for one in self.children if not one.process.alive]:
                self._gone(child)
            if not self.children and not self.draining:
                self.spawned += 1
                self.children.append(ChildSide(self, self.spawned))
            if self.draining and not self.children and self.ender.is_idle:
                return self.die()
            self.clock.sleep(TURN_S)

    def _stop(self, child: ChildSide) -> None:
        unwanted = child.unstoppable(self.clock.monotonic())
        if unwanted and not child.culprits:
            begun = [(s.token, r.id) for s in child.leases() for r in s.records if r.state is State.BEGUN]
            self._on_kill({pair for pair in begun if pair[1] in unwanted})
            child.culprits, child.unwanted = set(unwanted), unwanted
            child.die()

    def _gone(self, child: ChildSide) -> None:
        self.children.remove(child)
        for ending in endings(child, self._rng):  # type: ignore[arg-type]  # a ChildProcess by its shape
            self.ender.add(ending)
        child.arena.close()
        self._loops["ender"].wake()

    def _tell_dead(self, moved: Any) -> None:
        for child in self.children:
            if child.process.alive:
                child.child.tell_dead([row.id for row in moved])


class _AlwaysLeads:
    """Believes that it leads, whatever MySQL says."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lead(self, *args: Any) -> bool:
        self._store.lead(*args)
        return True


#: What a producer needs to know of its app.
def links(servers: Servers) -> Any:
    return SimpleNamespace(store=servers.link("store"), broker=servers.link("broker"))
