"""Many workers at once, each with a crash point of its own and a queue of that name: one wait serves them all."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.truth import redis_ids, sql
from tests.waiting import eventually
from tests.workers import Bench, Worker, bench

PACE = {"lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "grace_s": 1.5}
DIED = "died (exit code -9)"
PATIENCE_S, EVERY_S = 120.0, 0.1

#: Where the points lie: in a child, in a supervisor, in a mover or reconciler, in a producer, in an operator's command.
FETCHING = ("pop.before", "pop.after", "claim.before_commit", "claim.after_commit", "claim.after_hand_over")
RUNNING = ("run.before_begin", "run.before_handler", "run.after_handler", "run.after_end")
FINISHING = ("finish.before_commit", "finish.after_commit", "retry.after_commit", "retry.after_push")
RELEASING = ("shutdown.before_release", "shutdown.after_release")
CHILD = (*FETCHING, *RUNNING, *FINISHING)
SUPERVISOR = ("renew.before", "renew.after", "shutdown.signal")
MOVER = ("promote.before", "promote.after")
EXPIRY = ("expire.after_select", "expire.before_commit", "expire.after_commit", "expire.after_push")
REFILL = ("repush.before", "repush.after", "rebuild.after_begin", "rebuild.after_chunk")
PRODUCER = ("enqueue.before_insert", "enqueue.before_commit", "enqueue.after_commit", "enqueue.after_push")
REPLAY = ("replay.before_commit", "replay.after_commit", "replay.after_push")
PRUNE = ("prune.before_commit", "prune.after_commit")
PURGE = ("purge.after_archive",)
CANCEL = ("cancel.before_commit",)
OPERATOR = (*CANCEL, *REPLAY, *PRUNE)
#: Of a handler's own transaction: tests/crash/test_tx_points.py.
TX_POINTS = ("finish.before_tx_commit", "finish.after_tx_commit")
ALL = (*CHILD, *RELEASING, *SUPERVISOR, *MOVER, *EXPIRY, *REFILL, *PRODUCER, *OPERATOR, *PURGE, *TX_POINTS)


class Marks:
    """The files that crash points leave (see ``tandemq.core.crash``): the proof that one was reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def arming(self, spec: str) -> dict[str, str]:
        """The variables of a process that shall meet ``spec``."""
        return {"TANDEMQ_CRASH": spec, "TANDEMQ_CRASH_DIR": str(self.folder)}

    def hit(self) -> set[str]:
        """The points that were reached so far."""
        return {mark.name.rsplit(".", 2)[0] for mark in self.folder.iterdir()}

    def stopped(self) -> set[str]:
        """Those where a process has stopped itself: the mark comes a moment before that."""
        marks = [mark.name.rsplit(".", 2) for mark in self.folder.iterdir()]
        return {point for point, pid, _ in marks if psutil.Process(int(pid)).status() == psutil.STATUS_STOPPED}


class Fleet:
    """Workers on one database and Redis. The queue of a point's tasks has the point's name."""

    def __init__(self, work: Bench, probe: Probe) -> None:
        self.work, self.probe = work, probe
        self.marks = Marks(work.folder / "marks")
        self.workers: dict[str, Worker] = {}

    def enqueue(
        self, point: str, n: int = 8, kind: str = "noop", delay: float | None = None, **payload: Any
    ) -> list[int]:
        """Tasks of this point's queue."""
        news = [NewTask(kind, payload, queue=point, max_retries=5, delay=delay) for _ in range(n)]
        return [handle.id for handle in self.work.app.enqueue_many(news)]

    def heal(self) -> None:
        """Start what is nobody's target here: a mover and a reconciler."""
        self.work.worker(verb="mover")
        self.work.worker(verb="reconcile")

    def start(self, point: str, spec: str, *flags: str) -> Worker:
        """A worker of this point's queue that meets ``spec``."""
        flags = ("-q", point, "--name", point, "-c", "2", "--no-mover", "--no-reconcile", *flags)
        self.workers[point] = worker = self.work.worker(*flags, **self.marks.arming(spec))
        return worker

    def replace(self, points: Iterable[str], *flags: str) -> Worker:
        """A worker that nothing happens to, for all these queues."""
        return self.work.worker("-q", ",".join(points), "-c", "4", *flags)

    def wait_hit(self, points: Iterable[str]) -> None:
        """Until each point was reached somewhere."""
        wanted = set(points)
        eventually(lambda: wanted <= self.marks.hit(), PATIENCE_S, lambda: self._lacking(wanted - self.marks.hit()))

    def _lacking(self, points: Iterable[str]) -> str:
        return "\n".join(f"{p}: {self.workers[p].text()[-1500:] if p in self.workers else ''}" for p in points)

    def wait_begun(self, ids: Iterable[int]) -> None:
        """Until the handler of each was entered."""
        wanted = set(ids)
        eventually(lambda: wanted <= set(self.probe.starts()), PATIENCE_S, lambda: self._lacking(self.workers))

    def states(self) -> dict[str, Counter[str]]:
        """Per queue: how many rows have which status."""
        found: dict[str, Counter[str]] = {}
        for queue, status, n in sql(self.work, "SELECT queue, status, COUNT(*) FROM {t}tasks GROUP BY queue, status"):
            found.setdefault(queue, Counter())[status] = n
        return found

    def unended(self) -> set[str]:
        """Queues with open rows."""
        return {queue for queue, states in self.states().items() if states["pending"] or states["running"]}

    def check(self) -> None:
        """Every task succeeds, was begun, and never oftener than its attempts say; nothing is left behind.

        An attempt of a task that had begun is given back if its process was stopped or ended for another one.
        """
        eventually(
            lambda: not self.unended(),
            PATIENCE_S,
            lambda: (self.states(), self._lacking(self.unended())),
            every_s=EVERY_S,
        )
        handed_back = "(SELECT COUNT(*) FROM {t}task_attempts a WHERE a.task_id = t.id AND a.outcome = 'interrupted')"
        rows = sql(self.work, f"SELECT id, queue, status, attempts + {handed_back} FROM {{t}}tasks t")
        starts = self.probe.starts()
        assert [row for row in rows if row[2] != "succeeded"] == []
        assert [(row, starts[row[0]]) for row in rows if not 1 <= starts[row[0]] <= row[3]] == []
        eventually(lambda: redis_ids(self.work) == [], PATIENCE_S, lambda: redis_ids(self.work)[:10])
        # Without a worker: it stands for an hour in the way of a claim whose answer was lost, should that still arrive.
        left = "SELECT worker_id, ids, expires_at, UTC_TIMESTAMP(6) FROM {t}claims WHERE worker_id <> ''"
        eventually(lambda: sql(self.work, left) == [], PATIENCE_S, lambda: f"claims are left: {sql(self.work, left)}")

    def stop(self, point: str) -> None:
        """SIGSTOP to the supervisor and all its children."""
        os.killpg(self.workers[point].pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all workers."""
        for worker in self.workers.values():
            os.killpg(worker.pid, signal.SIGCONT)


def open_fleet(settings: Settings, folder: Path, probe: Probe) -> Iterator[Fleet]:
    """For fixtures."""
    with bench(settings, folder, probe.environ) as work:
        yield Fleet(work, probe)
