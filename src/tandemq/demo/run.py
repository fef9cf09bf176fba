"""Runs the demo: migrate, enqueue, work, compare, replay. Every part of it is what an application would do."""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import tandemq
from tandemq.app import TandemQ
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import TandemQError
from tandemq.core.settings import Settings
from tandemq.core.task import NewTask, Task
from tandemq.demo import report
from tandemq.demo.corpus import SourceFile, broken_files, standard_library
from tandemq.demo.measure import DoesNotParse, measure
from tandemq.demo.tasks import NAMESPACE, TABLE_PREFIX, TASK_TYPE, build
from tandemq.store.answers import Filter
from tandemq.store.migrate import migrate
from tandemq.workerprocess import WorkerProcess

PROCESSES, SLOTS = 2, 4
BATCH = 1000
PAGE = 500
POLL_S = 0.25
LONGEST_RUN_S = 600.0


class DemoFailed(TandemQError):
    """The demo did not show what it is there to show."""


def run(environ: Mapping[str, str]) -> int:
    """The demo on the servers that the variables name, or on none, in a temporary directory; exit code."""
    logging.getLogger("tandemq").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tandemq-demo-") as scratch:
        settings = Settings.load(environ)
        own = {"database_url": settings.database_url, "redis_url": settings.redis_url}
        if settings.is_embedded:
            own = {"data_dir": str(Path(scratch, "data"))}
        with contextlib.closing(build(**own)) as app:
            return Demo(app, environ, Path(scratch), SystemClock()).run()


class Demo:
    """One run; ``scratch`` is a directory for the workers' logs and, without servers, for all of the data."""

    def __init__(self, app: TandemQ, environ: Mapping[str, str], scratch: Path, clock: Clock) -> None:
        self._app, self._scratch, self._clock = app, scratch, clock
        self._environ = environ

    def run(self) -> int:
        """All of it; DemoFailed when the totals differ or a task did not end."""
        begun = self._clock.monotonic()
        self._prepare()
        files = [*broken_files(self._scratch), *standard_library()]
        self._enqueue(files)
        with self._bar(len(files), "working") as bar:
            self._work("-p", str(PROCESSES), "-c", str(SLOTS), bar=bar)
        outcome = report.Outcome.of(self._tasks())
        with self._bar(len(files), "counting directly") as bar:
            direct = _count(files, bar)
        click.echo()
        for line in report.summary(outcome, direct):
            click.echo(line)
        self._judge(outcome, direct, len(files))
        self._replay(outcome.dead[0])
        click.echo(f"\nThe totals are equal. All of it took {self._clock.monotonic() - begun:.0f} s.")
        self._farewell()
        return 0

    def _prepare(self) -> None:
        settings = self._app.settings
        migrate(settings)
        page = self._app.store.find(Filter(), limit=1)
        if page.items:
            raise DemoFailed(
                f"the tables {TABLE_PREFIX}* and the namespace {NAMESPACE!r} hold tasks of an earlier demo; look with"
                f" tandemq -A tandemq.demo:app list, or drop those tables and the keys {NAMESPACE}:* to run it again"
            )
        where = "the embedded default, no server" if settings.is_embedded else "the given servers"
        click.echo(f"tandemq {tandemq.__version__} on {where}; Python {sys.version.split()[0]}")

    def _enqueue(self, files: Sequence[SourceFile]) -> None:
        begun = self._clock.monotonic()
        with self._bar(len(files), "enqueueing") as bar:
            for start in range(0, len(files), BATCH):
                chunk = files[start : start + BATCH]
                self._app.enqueue_many([NewTask(TASK_TYPE, {"name": f.name, "path": f.path}) for f in chunk])
                bar.update(len(chunk))
        took_s = self._clock.monotonic() - begun
        click.echo(f"{len(files):,} tasks enqueued in {took_s:.2f} s: every .py file of the standard library, and more")

    def _work(self, *flags: str, bar: Any = None) -> None:
        """Real workers in processes of their own, until nothing is left to do."""
        worker = WorkerProcess(
            "tandemq.demo:app", self._app.settings, self._environ, self._scratch / "worker.log", "--burst", *flags
        )
        with worker:
            deadline = self._clock.monotonic() + LONGEST_RUN_S
            shown, code = 0, None
            while code is None:
                if self._clock.monotonic() > deadline:
                    raise DemoFailed(f"the workers had not ended after {LONGEST_RUN_S:.0f} s: {worker.tail()}")
                code = worker.wait(POLL_S)
                if bar is not None:
                    ended = self._app.stats()["ended"]
                    done = ended["succeeded"] + ended["dead"]
                    bar.update(done - shown)
                    shown = done
            if code:
                raise DemoFailed(f"the workers ended with exit code {code}: {worker.tail()}")

    def _tasks(self) -> Iterator[Task]:
        after = None
        while True:
            page = self._app.store.find(Filter(), limit=PAGE, after=after)
            yield from page.items
            if page.next is None:
                return
            after = page.next

    def _judge(self, outcome: report.Outcome, direct: report.Count, files: int) -> None:
        faults = outcome.count.differences(direct)
        if outcome.tasks != files:
            faults.append(f"{files} tasks were enqueued, {outcome.tasks} are there")
        faults += [f"task {task.id} has not ended: {task.state}" for task in outcome.unfinished[:5]]
        if not outcome.dead:
            faults.append("no dead letter to show")
        if faults:
            raise DemoFailed("; ".join(faults))

    def _replay(self, dead: Task) -> None:
        click.echo(f"\nreplaying dead letter {dead.id}: it starts again, and dies again")
        self._app.dead.replay([dead.id])
        self._work("-p", "1", "-c", "1")
        task = self._app.store.get(dead.id, attempts=True)
        if task is None or task.replays != 1 or task.state != "dead":
            raise DemoFailed(f"task {dead.id} should be dead again after its replay")
        for line in report.history(task):
            click.echo(line)

    def _farewell(self) -> None:
        if not self._app.settings.is_embedded:
            click.echo(f"It is all there: tandemq -A tandemq.demo:app list, or SQL on {TABLE_PREFIX}tasks_view.")

    def _bar(self, length: int, label: str) -> Any:
        hidden = not sys.stderr.isatty()
        return click.progressbar(length=length, label=f"{label:<18}", file=sys.stderr, hidden=hidden)


def _count(files: Sequence[SourceFile], bar: Any) -> report.Count:
    """The same sums without any queue."""
    count = report.Count()
    for file in files:
        try:
            count.total += measure(Path(file.path))
        except DoesNotParse as bad:
            count.broken[file.name] = str(bad)
        bar.update(1)
    return count
