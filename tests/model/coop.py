"""Threads without threads: the real code of a worker runs in greenlets that stop at every call of a server.

A test decides which of them goes on, what becomes of the call at which it stands, and when time passes. So every
interleaving is a list of choices, and the same list gives the same run. ``installed`` puts these classes in the place
of ``threading`` and ``queue`` in the modules that start threads or wait.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import greenlet
import pytest

from tandemq.core import ids
from tandemq.core.clock import Clock

FOREVER = float("inf")


class Dead(greenlet.GreenletExit):
    """Ends the code of a process that died long ago, when it is thrown away."""


@dataclass(eq=False)
class Process:
    """What dies, is stopped and is resumed together."""

    name: str
    alive: bool = True
    paused: bool = False


@dataclass(eq=False)
class Call:
    """A call of a server that an actor is about to make."""

    kind: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by: Actor | None = None
    answer: Any = None

    def __str__(self) -> str:
        return f"{self.kind}.{self.method}"


class Actor:
    """One thread of the product. It stands before a ``call``, or waits for something or until a time, or is done."""

    def __init__(self, scene: Scene, process: Process, name: str, target: Callable[[], object]) -> None:
        self.process, self.name = process, name
        self.call: Call | None = None
        self.is_held = False
        self.is_done = False
        self._scene = scene
        self._ready: Callable[[], bool] | None = None
        self._until = 0.0
        self._greenlet = greenlet.greenlet(lambda _fate: self._run(target))

    def _run(self, target: Callable[[], object]) -> None:
        try:
            target()
        except Exception as error:  # as in a thread: it ends, and the test is told
            self._scene.crashed.append(f"{self}: {error!r}")
        self.is_done = True

    def __str__(self) -> str:
        return f"{self.process.name}.{self.name}"

    @property
    def can_go_on(self) -> bool:
        """Its process runs, and what it waits for is there."""
        if self.is_done or self.is_held or not self.process.alive or self.process.paused:
            return False
        return self._until <= self._scene.clock.monotonic() or (self._ready is not None and self._ready())

    def resume(self, fate: str = "ok") -> None:
        """Go on to the next stop. ``fate``: what becomes of the call at which it stands."""
        before, self._scene.current = self._scene.current, self
        try:
            self._greenlet.parent = greenlet.getcurrent()  # not whoever started it: its stops lead back here
            self._greenlet.switch(fate)
        finally:
            self._scene.current = before

    def stop(self, *, until: float = 0.0, ready: Callable[[], bool] | None = None, call: Call | None = None) -> str:
        """Called by its own code: let the others run. Returns the fate."""
        self._until, self._ready, self.call = until, ready, call
        if call is not None and call.method in self._scene.barriers:
            self._scene.barriers.remove(call.method)
            self.is_held = True
        fate: str = self._greenlet.parent.switch()
        self._until, self._ready, self.call = 0.0, None, None
        return fate


class Scene:
    """All actors of one run, and the clock that they live by."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.actors: list[Actor] = []
        self.crashed: list[str] = []
        self.is_over = False
        #: Methods: the next actor that is about to call one is held there until a test lets it go.
        self.barriers: set[str] = set()
        self._dead: list[Actor] = []
        self.current: Actor | None = None
        self._starting: Process | None = None
        self._numbers = itertools.count(1)

    def new_token(self) -> int:
        """In no order, as the product's are."""
        return next(self._numbers) * 0x9E3779B97F4A7C15 % 2**62 | 1

    def new_random(self) -> Random:
        """Jitter."""
        return Random(next(self._numbers))

    def start(self, process: Process, name: str, target: Callable[[], object]) -> Actor:
        """A new actor, which has not run yet."""
        actor = Actor(self, process, name, target)
        self.actors.append(actor)
        return actor

    @contextmanager
    def starting(self, process: Process) -> Iterator[None]:
        """Threads that are started inside belong to this process."""
        before, self._starting = self._starting, process
        yield
        self._starting = before

    @property
    def process(self) -> Process:
        """Whose code runs now."""
        if self._starting is not None:
            return self._starting
        assert self.current is not None
        return self.current.process

    def wait(self, ready: Callable[[], bool] | None, timeout_s: float | None) -> None:
        """What every blocking call comes down to."""
        if ready is not None and ready():
            return
        if self.is_over:
            raise Dead
        assert self.current is not None, "only an actor may wait"
        until = FOREVER if timeout_s is None else self.clock.monotonic() + timeout_s
        self.current.stop(until=until, ready=ready)

    def kill(self, process: Process) -> None:
        """Its memory is gone, whatever it was doing."""
        process.alive = False
        # Kept: a greenlet that is thrown away is ended by an exception, and what catches that would go on running.
        self._dead += [actor for actor in self.actors if actor.process is process]
        self.actors = [actor for actor in self.actors if actor.process is not process]

    def close(self) -> None:
        """Throw all of it away."""
        self.is_over = True
        self.actors, self._dead = [], []


#: The scene whose code is running: the product's classes below have no other way to it.
scenes: list[Scene] = []


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        scenes[-1].wait(self.is_set, timeout)
        return self._is_set


class SimpleQueue:
    """``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            scenes[-1].wait(lambda: bool(self._items), timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


class Thread:
    """``threading.Thread``."""

    def __init__(
        self, target: Callable[..., object], name: str, args: Sequence[Any] = (), daemon: bool = False
    ) -> None:
        self._target, self._name, self._args = target, name.removeprefix("tandemq-"), args
        self._actor: Actor | None = None

    def start(self) -> None:
        scene = scenes[-1]
        self._actor = scene.start(scene.process, self._name, lambda: self._target(*self._args))

    def join(self, timeout: float | None = None) -> None:
        actor = self._actor
        assert actor is not None
        scenes[-1].wait(lambda: actor.is_done, timeout)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.is_done


_THREADING = SimpleNamespace(
    **{name: getattr(threading, name) for name in ("Lock", "local", "current_thread", "get_ident")},
    Thread=Thread,
    Event=Event,
)


@contextmanager
def installed() -> Iterator[None]:
    """The worker's threads become actors; tokens and jitter become the same in every run."""
    import tandemq.service
    from tandemq.worker import acker, child, inbox

    with pytest.MonkeyPatch.context() as patch:
        for module in (acker, child, inbox, tandemq.service):
            patch.setattr(module, "threading", _THREADING)
        for module in (acker, inbox):
            patch.setattr(module, "SimpleQueue", SimpleQueue)
        patch.setattr(child, "queue", SimpleNamespace(SimpleQueue=SimpleQueue))
        patch.setattr(ids, "lease_token", lambda: scenes[-1].new_token())  # noqa: PLW0108 - of the scene that runs then
        patch.setattr(ids, "new_random", lambda: scenes[-1].new_random())  # noqa: PLW0108
        yield
