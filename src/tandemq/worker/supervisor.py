"""The parent: spawns the children, renews their leases from outside the interpreter that runs the tasks, ends the
leases of a child that died there and then, and runs the mover and the reconciler beside them.

It needs no handler code: whatever it decides about a task follows from the row.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core import crash, ids
from tandemq.core.clock import Clock
from tandemq.core.errors import TandemQError
from tandemq.core.pausing import Paused
from tandemq.core.settings import Settings
from tandemq.monitoring import Installed
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.service import Loop, Throttle
from tandemq.store.answers import Moved
from tandemq.store.protocol import Store
from tandemq.worker.leases import IDLE_S, LeaseEnder, LeaseKeeper, endings
from tandemq.worker.options import WorkerOptions
from tandemq.worker.process import ChildProcess
from tandemq.worker.watching import Watch, last_pass

_log = logging.getLogger("tandemq.worker")
TURN_S = 0.1
BURST_LOOK_S = 0.2
#: After the grace time: how long a child may take to write what is finished before it is killed.
STOP_S = 1.5
RESPAWN_CAP_S = 10.0
SPAWN_PAUSE_S = 1.0
#: At the end of a burst nothing runs: the drain takes no time, and this is no time limit.
BURST_END_S = 3600.0


class Supervisor:
    """One worker as operators see it: one record, one name, ``processes`` children."""

    def __init__(
        self, app_spec: str, settings: Settings, options: WorkerOptions, *, store: Store, broker: Broker, clock: Clock,
        rng: Random,
    ) -> None:  # fmt: skip
        self._settings, self._options, self._clock, self._rng = settings, options, clock, rng
        self._store, self._broker = store, broker
        self.name = options.name or socket.gethostname()[:32] or "worker"
        self.worker_id = ids.worker_id(self.name)
        self._say = Throttle(_log, clock)
        self._children: list[ChildProcess] = []
        self._untold: deque[int] = deque(maxlen=10_000)  # dead letters whose hook no child has been told of yet
        self._selector = selectors.DefaultSelector()
        self._signals = 0
        self._stop_at: float | None = None
        self._signalled_at: float | None = None
        self._burst_at = 0.0
        self._deaths: deque[float] = deque(maxlen=5)
        self._spawn_at = 0.0
        self._exit_code = 0
        self._was_ready = False
        self._orders: dict[str, Any] = {
            "app": app_spec,
            "worker_id": self.worker_id,
            "queues": options.queues,
            "slots": options.slots,
            "fair": options.fair,
            "max_tasks": options.max_tasks,
            "max_memory_mb": options.max_memory_mb,
            "numbered": metrics.is_numbered(),
            "log_level": logging.getLogger().getEffectiveLevel(),
            "log_format": settings.log_format,
            "secrets": settings.secrets(),
        }
        self.keeper = LeaseKeeper(
            store, lambda: list(self._children), settings=settings, worker_id=self.worker_id, name=self.name,
            options=options, clock=clock, state=self._state,
        )  # fmt: skip
        self.ender = LeaseEnder(store, broker, worker_id=self.worker_id, clock=clock, on_dead=self._tell_dead)
        self._ending = Loop(self.ender, clock, rng, "lease-ender")
        self._beat = Loop(self.keeper, clock, rng, "heartbeat")
        every_s = {self._beat: settings.heartbeat_s, self._ending: IDLE_S}
        extra = []
        if options.mover:
            every_s[Loop(Mover(store, broker, clock, self.worker_id, settings), clock, rng, "mover")] = settings.mover_s
        if options.reconcile:
            reconciler = Reconciler(store, broker, clock, rng, settings, self.worker_id, on_dead=self._tell_dead)
            every_s[Loop(reconciler, clock, rng, "reconciler")] = settings.reconcile_s
            extra.append(last_pass(reconciler, clock))
        self._loops = list(every_s)
        self._watch = Watch(
            lambda: list(self._children), every_s, self.keeper, settings=settings, options=options, clock=clock,
            installed=Installed(store, broker, clock, alive_s=settings.lease_s),
        )  # fmt: skip
        port = options.metrics_port
        self._listener = None if port is None else self._watch.listener(port, extra)
        self._wake_r, self._wake_w = os.pipe()
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)

    def _state(self) -> str:
        if self._stop_at is not None:
            return "draining"
        return self._watch.state

    # life

    def run(self) -> int:
        """Until stopped (or, in a burst, until nothing is left); the process's exit code."""
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for loop in self._loops:
            loop.start()
        if self._listener is not None:
            self._listener.start()
        _log.info("worker %s starts: %d x %d slots", self.worker_id, self._options.processes, self._options.slots)
        while self._children or self._stop_at is None:
            self._spawn_missing()
            self._wait()
            for child in list(self._children):
                if not child.hear():
                    self._gone(child)
            self._note_ready()
            self._pass_on_dead()
            self._watch_limits()
            self._stop_turn()
            now = self._clock.monotonic()
            if self._options.burst and self._stop_at is None and now >= self._burst_at:
                self._burst_at = now + BURST_LOOK_S
                self._burst_turn()
        self._close()
        return self._exit_code

    def _on_signal(self, *_: object) -> None:
        self._signals += 1

    def _wait(self) -> None:
        if any(key.fd == self._wake_r for key, _ in self._selector.select(TURN_S)):
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_r, 4096)

    def _spawn_missing(self) -> None:
        if self._stop_at is not None or self._clock.monotonic() < self._spawn_at:
            return
        while len(self._children) < self._options.processes:
            try:
                taken = {child.number for child in self._children}
                number = next(n for n in range(1, self._options.processes + 1) if n not in taken)
                child = ChildProcess.spawn(self._orders, self._clock, number=number, armed=not self._deaths)
            except OSError as refused:  # no memory, no processes: as likely as not what killed the last child
                self._say(logging.ERROR, "spawn", f"a child cannot be started, trying again: {refused}")
                self._spawn_at = self._clock.monotonic() + SPAWN_PAUSE_S
                return
            self._selector.register(child.report_fd, selectors.EVENT_READ)
            self._children.append(child)

    def _gone(self, child: ChildProcess) -> None:
        """It is dead, or has closed its pipe and is ended here; leases are given up only after that."""
        self._selector.unregister(child.report_fd)
        code = child.reap()
        self._children.remove(child)
        self._after_death(child, code)
        for ending in endings(child, self._rng):
            self.ender.add(ending)
        child.arena.close()
        self._ending.wake()

    def _after_death(self, child: ChildProcess, code: int) -> None:
        now = self._clock.monotonic()
        if child.failed:
            _log.error("the application cannot be loaded: %s", child.failed)
            if not self._was_ready:  # it never could: do not go on trying
                self._exit_code = 2
                self._stop(0.0)
            self._spawn_at = now + RESPAWN_CAP_S
        elif child.away:
            self._spawn_at = now + SPAWN_PAUSE_S
        # Exit code 0 with tasks in hand is a handler's os._exit(0): a death like any other.
        elif (code or child.leases()) and not child.stopping and not child.culprits:
            _log.warning("child %d died (exit code %d), its tasks are handled now", child.pid, code)
            self._deaths.append(now)
            if len(self._deaths) == self._deaths.maxlen and now - self._deaths[0] < RESPAWN_CAP_S:
                self._spawn_at = now + SPAWN_PAUSE_S  # dying again and again: slower
        elif now - child.started < SPAWN_PAUSE_S:
            self._spawn_at = now + SPAWN_PAUSE_S  # used up at once, say by --max-memory below its size

    def _note_ready(self) -> None:
        if not self._was_ready and any(child.ready for child in self._children):
            self._was_ready = True
            self._beat.wake()  # the worker can be listed now

    def _watch_limits(self) -> None:
        now = self._clock.monotonic()
        for child in self._children:
            late = child.overdue(now, answering_since=self.keeper.answering_since)
            unwanted = child.unstoppable(now)
            if (late or unwanted) and not child.culprits:
                late |= unwanted
                _log.error("child %d is replaced: tasks %s do not end", child.pid, sorted(late))
                child.culprits, child.unwanted = late, unwanted
                child.kill()

    def _tell_dead(self, moved: Sequence[Moved]) -> None:
        """Called by the main and the reconciler's thread; passed on by the main thread when a child is there."""
        for row in moved:
            about = {"task_id": row.id, "queue": row.level.queue, "task_type": row.task_type, "attempt": row.attempt}
            _log.warning("task %s (%s) is dead: %s", row.id, row.task_type, row.dead_reason, extra=about)
            self._untold.append(row.id)

    def _pass_on_dead(self) -> None:
        ready = next((child for child in self._children if child.ready and not child.culprits), None)
        while self._untold and ready is not None:
            task_ids = [self._untold.popleft() for _ in range(min(100, len(self._untold)))]
            if not ready.tell("dead " + ",".join(map(str, task_ids))):
                self._untold.extendleft(reversed(task_ids))
                return

    # stopping

    def _stop_turn(self) -> None:
        now = self._clock.monotonic()
        if self._signals and self._signalled_at is None:
            crash.crash_point("shutdown.signal")
            self._signalled_at = now
            grace_s = self._settings.grace_s if self._options.grace_s is None else self._options.grace_s
            _log.info("worker %s stops: running tasks have %g s", self.worker_id, grace_s)
            self._stop(grace_s)
        if self._stop_at is None:
            return
        if self._signals > 1:
            self._stop_at = min(self._stop_at, now)
        for child in self._children:
            if not child.told_to_drain:
                child.told_to_drain = child.tell("drain")
            if now >= self._stop_at and not child.stopping:
                child.stopping = True
                child.tell("stop")
            if now > self._stop_at + STOP_S:
                child.kill()

    def _stop(self, grace_s: float) -> None:
        """Drain; a shorter time than one set before wins."""
        stop_at = self._clock.monotonic() + grace_s
        self._stop_at = stop_at if self._stop_at is None else min(self._stop_at, stop_at)

    def _burst_turn(self) -> None:
        """Ends when MySQL shows nothing due, running or retrying in its queues, and no child holds anything."""
        if not self._children or not all(child.ready for child in self._children):
            return
        queues = {queue for child in self._children for queue in child.queues}
        try:
            open_queues = sorted(queues - Paused.of(self._store.pauses()).queues)
            busy = bool(open_queues) and self._store.busy(open_queues)
        except TandemQError as away:
            self._burst_at = self._clock.monotonic() + SPAWN_PAUSE_S
            self._say(logging.WARNING, "burst", f"the database is away: {away}")
            return
        if not busy and not any(child.leases() for child in self._children):
            self._stop(BURST_END_S)

    def _close(self) -> None:
        deadline = self._clock.monotonic() + STOP_S
        while not self.ender.is_idle and self._clock.monotonic() < deadline:
            self._ending.wake()
            self._clock.sleep(0.01)
        for loop in self._loops:
            loop.stop(timeout_s=STOP_S)
        if self._listener is not None:
            self._listener.stop()
        self.keeper.stopped()
        _log.info("worker %s has stopped", self.worker_id)
