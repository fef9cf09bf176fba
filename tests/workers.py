"""Real workers in their own process group, for tests that stop, kill and watch them."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import psutil

from tandemq import TandemQ
from tandemq.core.settings import Settings
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent
APP = "tests.apps.work:app"


def environment(settings: Settings, **extra: str) -> dict[str, str]:
    """The process environment that loads to these settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEMQ_")}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if value != f.default:
            env[f.metadata["var"]] = ("1" if value else "0") if isinstance(value, bool) else str(value)
    return env | {"PYTHONUNBUFFERED": "1"} | extra


class Worker:
    """``tandemq worker`` (or another verb that stays) as a subprocess; its output in ``log``."""

    def __init__(
        self, settings: Settings, log: Path, *arguments: str, app: str = APP, verb: str = "worker", **extra: str
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tandemq", "-A", app, verb, *arguments],
                cwd=ROOT,
                env=environment(settings, **extra),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[psutil.Process]:
        """The child processes that run handlers."""
        try:
            every = psutil.Process(self.pid).children()
            return [p for p in every if "tandemq.child" in " ".join(p.cmdline())]
        except psutil.NoSuchProcess:
            return []

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL to the supervisor and all its children at once."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, timeout_s: float = 90.0) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not end; its log:\n{self.text()[-4000:]}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ready(self, timeout_s: float = 60.0) -> Worker:
        """Wait until it says that it has started."""
        eventually(lambda: " starts: " in self.text(), timeout_s, self.text)
        eventually(self.children, timeout_s, self.text)
        return self

    def discard(self) -> None:
        if self.process.poll() is None:
            self.kill_group()
        else:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Bench:
    """An app for the test's side, the settings, the probe, and the workers started so far."""

    def __init__(self, settings: Settings, folder: Path, probe_environ: dict[str, str]) -> None:
        self.settings, self.folder, self._extra = settings, folder, probe_environ
        self.app = TandemQ(
            **{f.name: getattr(settings, f.name) for f in fields(settings) if getattr(settings, f.name) != f.default}
        )
        from tests.apps import work

        for task in work.app.registry:  # a producer that knows the tasks, as a user's would
            self.app.registry.add(task)
        self.workers: list[Worker] = []
        self._numbers = itertools.count()

    def worker(self, *arguments: str, app: str = APP, verb: str = "worker", **extra: str) -> Worker:
        """Start one; ``extra`` are variables of its environment."""
        # Counted, not by len(): two threads of a test may start one each, and shared a log (and the port read in it).
        log = self.folder / f"worker{next(self._numbers)}.log"
        worker = Worker(self.settings, log, *arguments, app=app, verb=verb, **(self._extra | extra))
        self.workers.append(worker)
        return worker

    def burst(self, *arguments: str, timeout_s: float = 100.0) -> Worker:
        """Run a worker until nothing is left."""
        worker = self.worker("--burst", *arguments)
        assert worker.wait(timeout_s) == 0, worker.text()[-4000:]
        return worker

    def ids(self, name: str, n: int, **options: object) -> list[int]:
        """Enqueue ``n`` tasks of a type with payload ``{"n": i}``."""
        from tandemq import NewTask

        news = [NewTask(name, {"n": i}, **options) for i in range(n)]
        return [handle.id for handle in self.app.enqueue_many(news)]

    def statuses(self, ids: list[int]) -> dict[str, int]:
        """How many of these rows have which status."""
        found: dict[str, int] = {}
        for task_id in ids:
            status = self.app.store.ending(task_id)[0].value
            found[status] = found.get(status, 0) + 1
        return found

    def ended(self, ids: list[int], timeout_s: float = 90.0) -> dict[str, int]:
        """Wait until all of these have ended."""

        def look() -> bool:
            now = self.statuses(ids)
            return not now.get("pending") and not now.get("running")

        eventually(
            look, timeout_s, lambda: (self.statuses(ids), *(w.text()[-3000:] for w in self.workers)), every_s=0.1
        )
        return self.statuses(ids)


@contextmanager
def bench(settings: Settings, folder: Path, probe_environ: dict[str, str]) -> Iterator[Bench]:
    made = Bench(settings, folder, probe_environ)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.discard()
        made.app.close()
