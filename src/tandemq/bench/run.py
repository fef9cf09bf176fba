"""Runs the bench: tables and keys of its own, the measurements one after the other, and all of it gone again."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median

from tandemq import broker as brokers
from tandemq.app import TandemQ
from tandemq.bench import tasks
from tandemq.bench.pace import at_once, each_call, in_a_row
from tandemq.bench.report import BULK, THREADS, Figures, Report
from tandemq.core import ids
from tandemq.core.clock import Clock
from tandemq.core.codec import decode
from tandemq.core.errors import BrokerUnavailable, TandemQError
from tandemq.core.percentile import percentile
from tandemq.core.settings import Settings
from tandemq.core.task import NewTask
from tandemq.handle import Handle
from tandemq.store.scratch import Bare, Scratch, Server
from tandemq.workerprocess import WorkerProcess

#: Longest time for one measurement, so that slow servers take about as long as fast ones; the drain has more.
ROUND_TRIP_S, COMMIT_S, ENQUEUE_S, DRAIN_S = 0.5, 1.0, 3.0, 300.0
ROUND_TRIPS, COMMITS = 1000, 1000
#: Idle latency: so many samples at this distance, after some that do not count.
SAMPLES, APART_S, WARM_UP = 100, 0.05, 5
POLL_S = 0.05


class BenchFailed(TandemQError):
    """There is no figure to show."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much: ``tasks`` are enqueued in bulk; one by one, and from threads, parts of that."""

    tasks: int
    processes: int
    slots: int

    @property
    def samples(self) -> int:
        """Tasks for the latency."""
        return max(10, min(SAMPLES, self.tasks // 20))


Say = Callable[[str], None]


def run(settings: Settings, plan: Plan, environ: Mapping[str, str], clock: Clock, say: Say, warn: Say) -> Report:
    """Measure the servers of these settings; nothing is left on them, however this ends.

    ``say`` is told what is measured now, ``warn`` what could not be removed (BenchFailed is raised then, too).
    """
    own = own_settings(settings)
    with tempfile.TemporaryDirectory(prefix="tandemq-bench-") as folder, _ground(own, clock, warn) as (app, scratch):
        return Bench(app, scratch, plan, environ, Path(folder) / "worker.log", clock, say).run()


def own_settings(settings: Settings) -> Settings:
    """The same servers, with a prefix and a namespace that nobody else has."""
    mark = ids.install_id()[:8]
    return replace(settings, table_prefix=f"tandemq_bench_{mark}_", namespace=f"tandemq-bench-{mark}", crash="")


@contextlib.contextmanager
def _ground(own: Settings, clock: Clock, warn: Say) -> Iterator[tuple[TandemQ, Scratch]]:
    """An application on tables and keys that are made here and removed at the end, also when they are half made."""
    app = tasks.build(**{f.name: getattr(own, f.name) for f in fields(own)})
    scratch = Scratch(own)
    _contact(scratch, own, clock)
    try:
        scratch.create()
        try:
            app.broker.mark_install(app.store.install_id())
        except BrokerUnavailable as refused:
            raise BrokerUnavailable(f"{refused}; the bench works on the keys {own.namespace}:*") from refused
        yield app, scratch
    finally:
        with _uninterrupted():
            app.close()
            left = _removed(scratch, own, clock, warn)
    if left:
        raise BenchFailed("the bench has left something behind")


def _contact(scratch: Scratch, own: Settings, clock: Clock) -> None:
    """Both servers answer. Before there is anything to remove."""
    with contextlib.closing(brokers.connect(own, clock)) as broker:
        broker.ping()
    with scratch.bare() as bare:
        bare.select()


def _removed(scratch: Scratch, own: Settings, clock: Clock, warn: Say) -> bool:
    """Remove tables and keys, each whatever becomes of the other; whether something is left."""
    parts: list[tuple[str, Callable[[], object]]] = [
        (f"the tables {own.table_prefix}*", scratch.drop),
        (f"the Redis keys {own.namespace}:*", lambda: brokers.clear(own, clock)),
    ]
    left = False
    for what, remove in parts:
        try:
            remove()
        except TandemQError as error:
            left = True
            warn(f"{what} may still be there, remove them by hand: {error}")
    return left


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave tables behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Bench:
    """The measurements, in the order in which they do not disturb each other."""

    def __init__(
        self, app: TandemQ, scratch: Scratch, plan: Plan, environ: Mapping[str, str], log: Path, clock: Clock, say: Say
    ) -> None:
        self._app, self._scratch, self._plan, self._clock, self._say = app, scratch, plan, clock, say
        flags = ("-q", tasks.QUEUE, "-p", str(plan.processes), "-c", str(plan.slots))
        self._worker = WorkerProcess("tandemq.bench:app", app.settings, environ, log, *flags)

    def run(self) -> Report:
        """All of it. BenchFailed when the worker ends, or does not come to an end."""
        begun, (load, _, _) = self._clock.monotonic(), os.getloadavg()
        server, trips = self._round_trips()
        rates = self._enqueue()
        with self._worker:
            self._say("draining")
            drain = self._drain()
            self._say("latency of an idle worker")
            p50, p99 = self._latency()
        figures = Figures(**trips, **rates, drain_per_s=drain, latency_p50_ms=p50, latency_p99_ms=p99)
        return Report(
            figures=figures,
            database=server.version,
            unsafe=server.unsafe,
            embedded=self._app.settings.is_embedded,
            tasks=self._plan.tasks,
            processes=self._plan.processes,
            slots=self._plan.slots,
            cores=os.cpu_count() or 1,
            load=load,
            took_s=self._clock.monotonic() - begun,
        )

    def _round_trips(self) -> tuple[Server, dict[str, float]]:
        self._say("round trips and commits")
        with self._scratch.bare() as bare:
            figures = self._bare_figures(bare)
            server = bare.server()
        redis = each_call(self._app.broker.ping, self._clock, n=ROUND_TRIPS, within_s=ROUND_TRIP_S)
        return server, figures | {"redis_round_trip_ms": 1000 * median(redis)}

    def _bare_figures(self, bare: Bare) -> dict[str, float]:
        bare.select()
        bare.commit()
        selects = each_call(bare.select, self._clock, n=ROUND_TRIPS, within_s=ROUND_TRIP_S)
        commits = each_call(bare.commit, self._clock, n=COMMITS, within_s=COMMIT_S)
        return {
            "database_round_trip_ms": 1000 * median(selects),
            "commit_ms": 1000 * median(commits),
            "commits_per_s": len(commits) / sum(commits),
        }

    def _enqueue(self) -> dict[str, float]:
        n, clock = self._plan.tasks, self._clock
        self._one(0)  # opens the connections
        self._say("enqueue from one thread")
        one = in_a_row(self._one, clock, n=n // 10, within_s=ENQUEUE_S)
        self._say(f"enqueue from {THREADS} threads")
        many = at_once(self._one, clock, n=n // 2, within_s=ENQUEUE_S, threads=THREADS)
        self._say("enqueue in bulk")
        step = min(BULK, n)
        bulk = in_a_row(lambda at: self._bulk(at, step), clock, n=n, within_s=ENQUEUE_S, step=step)
        self._queued = 1 + one.n + many.n + bulk.n
        return {
            "enqueue_per_s": one.per_s,
            "enqueue_threads_per_s": many.per_s,
            "enqueue_many_per_s": bulk.per_s,
        }

    def _one(self, n: int) -> Handle[object]:
        return self._app.enqueue(tasks.NOOP, {"n": n})

    def _bulk(self, at: int, n: int) -> None:
        self._app.enqueue_many([NewTask(tasks.NOOP, {"n": i}) for i in range(at, at + n)])

    def _drain(self) -> float:
        self._wait_until_done()
        n, seconds = self._scratch.drained(tasks.NOOP)
        if n != self._queued:
            raise BenchFailed(f"{self._queued} tasks were enqueued and {n} succeeded")
        return n / max(seconds, 1e-6)

    def _latency(self) -> tuple[float, float]:
        sent: list[tuple[float, Handle[object]]] = []
        at = self._clock.monotonic()
        for i in range(WARM_UP + self._plan.samples):
            sent.append((self._clock.now().timestamp(), self._app.enqueue(tasks.STAMP, {"n": i})))
            at += APART_S
            self._clock.sleep(max(0.0, at - self._clock.monotonic()))
        self._wait_until_done()
        took = sorted(1000 * (self._started(handle) - before) for before, handle in sent[WARM_UP:])
        return percentile(took, 0.50), percentile(took, 0.99)

    def _started(self, handle: Handle[object]) -> float:
        task = self._app.store.get(handle.id)
        if task is None or task.result is None:
            raise BenchFailed(f"task {handle.id} has no result: {task and task.state}")
        return float(decode(task.result)["started"])

    def _wait_until_done(self) -> None:
        deadline = self._clock.monotonic() + DRAIN_S
        while self._app.store.busy([tasks.QUEUE]):
            if (code := self._worker.wait(POLL_S)) is not None:
                raise BenchFailed(f"the worker ended with exit code {code}: {self._worker.tail()}")
            if self._clock.monotonic() > deadline:
                raise BenchFailed(f"the worker had not done it all after {DRAIN_S:.0f} s: {self._worker.tail()}")
