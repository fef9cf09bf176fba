"""The stage of the model: servers, workers, a clock, the handler; and the commands that let somebody go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from tandemq.core.errors import NonRetryable, Snooze, TaskCancelled
from tandemq.core.retry import Constant, RetryPolicy
from tandemq.core.task import Level
from tandemq.dispatch import Pusher
from tandemq.registry import RegisteredTask, Registry, TaskOptions, current_task
from tandemq.testing import FakeClock
from tests.healing import World
from tests.model.coop import Actor, Call, Process, Scene, scenes
from tests.model.ledger import WRITES, Ledger
from tests.model.records import Run
from tests.model.tree import Servers, Tree, links

LEASE_S, RECONCILE_S = 10.0, 2.0
#: Short, so that a run of minutes is a run of few passes.
TIMES = {"lease_s": LEASE_S, "heartbeat_s": 2.0, "reconcile_s": RECONCILE_S, "mover_s": 0.5, "unknown_task_s": 60.0}
QUEUES = ("default", "other")
PRIORITIES = (0, 10, 7)
LEVELS = [Level(queue, priority) for queue in QUEUES for priority in PRIORITIES]
OUTCOMES = ("ok", "ok", "fail", "fail", "snooze", "bury", "stop")
MAX_TREES = 3
#: Steps that one actor may take in a row.
MANY = 400
Command = Sequence[Any]


class Broken(AssertionError):
    """An invariant does not hold."""


class DatabaseClock(FakeClock):
    """The database's clock; those of processes are made of the same passing time, without its jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped_s = 0.0
        self.steady = FakeClock()

    def now(self) -> Any:
        return super().now() + timedelta(seconds=self.jumped_s)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self.steady.advance(seconds)


class Complaints(logging.Handler):
    """What the product logs as an error is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


class Stage:
    """The servers, the workers on them, and how they go on. ``do`` raises Broken."""

    def __init__(self, world: World, clock: DatabaseClock) -> None:
        self.world, self.clock, self.commands = world, clock, list[Command]()
        self.scene = Scene(clock.steady)
        scenes.append(self.scene)
        self._complaints = Complaints()
        logging.getLogger("tandemq").addHandler(self._complaints)
        self._engine = sa.create_engine(
            world.settings.database_url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"
        )
        self.ledger = Ledger(self._engine, world.settings.table_prefix, clock.now)
        self.servers = Servers(self.scene, world.store, world.broker, self._wrote)
        self._trees: list[Tree] = []
        self._registry = Registry()
        policy = RetryPolicy(backoff=Constant(4.0), jitter=0.2)
        self._registry.add(RegisteredTask.of(self._work, TaskOptions(name="work", retry=policy, timeout=None)))
        self._snapshot: Callable[[], None] | None = None
        self._junk: set[bytes] = set()
        self._n = self._made = 0
        self._is_calm = False
        self._client = Process("client")
        self._links = links(self.servers)
        self._pusher = Pusher(self._links, clock.steady)
        self.spawn()
        self.spawn()

    def close(self) -> None:
        """Throw everything away."""
        logging.getLogger("tandemq").removeHandler(self._complaints)
        self.scene.close()
        for tree in self._trees:
            tree.close()
        self._trees = []
        scenes.remove(self.scene)
        self.ledger.close()
        self._engine.dispose()

    def do(self, name: str, *numbers: int) -> None:
        """One command."""
        self.commands.append([name, *numbers])
        getattr(self, name)(*numbers)
        self.check()

    def check(self) -> None:
        """Raise what was found broken."""
        broken = self.ledger.broken + self.scene.crashed + self._complaints.said
        if broken:
            raise Broken("; ".join(broken[:3]))

    def _wrote(self, call: Call) -> None:
        if call.method in WRITES:
            self.ledger.wrote(call)

    # the handler

    def _work(self, n: int) -> None:
        task = current_task()
        row = self.ledger.rows.get(task.id)
        process = self.scene.process
        run = Run(task.id, task.lease_token, task.fence, row.replays if row else -1, process)
        self.ledger.began(run, task.attempt, self.ledger.stamp())
        if self._is_calm or n % 4 == 1:  # some are so short that more are claimed ahead of the slots
            run.outcome = "ok"
        self.scene.wait(lambda: run.outcome is not None or self._is_calm, None)
        run.outcome = run.outcome or "ok"
        run.ended = True
        if run.outcome == "fail":
            raise ValueError("as the test wants it")
        if run.outcome == "bury":
            raise NonRetryable("as the test wants it")
        if run.outcome == "snooze":
            raise Snooze(1.0)
        if run.outcome == "stop":  # asked for or not
            raise TaskCancelled

    # who goes on

    def _run(self, actor: Actor, steps: int = MANY) -> None:
        for _ in range(steps):
            if not actor.can_go_on or self.ledger.broken:
                return
            actor.resume()

    def _do(self, name: str, target: Callable[[], object], at_once: int) -> None:
        """A client or operator does something; not ``at_once``: it gets as far as its first call."""
        self._made += 1
        actor = self.scene.start(self._client, f"{name}{self._made}", target)
        self._run(actor, MANY if at_once else 1)

    def step(self, tree: int, actor: int, steps: int) -> None:
        """An actor of a worker takes some steps."""
        if self._trees:
            can = [one for one in self._trees[tree % len(self._trees)].actors() if one.can_go_on]
            if can:
                self._run(can[actor % len(can)], steps + 1)

    def client(self, pick: int) -> None:
        """A client or operator that stands somewhere goes on."""
        can = [one for one in self.scene.actors if one.process is self._client and one.can_go_on]
        if can:
            self._run(can[pick % len(can)], 1)

    def turn(self, tree: int) -> None:
        """A worker does all that it can do now."""
        if self._trees:
            self._settle(self._trees[tree % len(self._trees)])

    def calm_turn(self) -> None:
        """Everybody does, and some time passes."""
        for tree in list(self._trees):
            self._settle(tree)
        self.clock.advance(1.0)

    def _settle(self, tree: Tree, rounds: int = 12) -> None:
        for _ in range(rounds):
            can = [actor for actor in tree.actors() if actor.can_go_on]
            for actor in can:
                self._run(actor, 60)
            if not can:
                return

    def end(self, pick: int, outcome: int) -> None:
        """A handler is about to end."""
        still = [run for run in self.ledger.runs if run.outcome is None and run.process.alive]
        if still:
            still[pick % len(still)].outcome = OUTCOMES[outcome % len(OUTCOMES)]

    # workers

    def spawn(self) -> None:
        """A worker starts."""
        self._bury()
        if len(self._trees) < MAX_TREES:
            self._made += 1
            tree = Tree(
                self.scene, self.servers, self._made, registry=self._registry, settings=self.world.settings,
                base=self.clock.steady, queues=QUEUES if self._made % 2 else QUEUES[::-1], leads=self._made % 2 == 0,
                on_kill=self.ledger.killed,
            )  # fmt: skip
            self._trees.append(tree)

    def _bury(self) -> None:
        for tree in [one for one in self._trees if one.is_over]:
            tree.close()
            self._trees.remove(tree)
