"""B15: a worker that was stopped for longer than its lease comes back and changes nothing that was decided meanwhile.

Required: whole workers (supervisor and child) are stopped, in the middle of a task, just before its result is written,
just before it begins and just before its lease is renewed, for three leases. A second worker runs the tasks to their
end, done or dead, or is still at it. When the first ones go on their late results are refused and are on record as
such, a task that had not begun does not begin, there is one final state, and they go on with other tasks.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandemq.core.task import Task
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled
from tests.waiting import eventually
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_leases:app"
MIDDLE = ""


@dataclass(frozen=True)
class Pause:
    """Where the worker of this queue stops (a crash point), and what the second one makes of the task."""

    queue: str
    at: str
    then: str

    @property
    def begins_first(self) -> bool:
        """Whether the stopped worker had begun the handler."""
        return self.at != "run.before_begin"

    @property
    def ends_first(self) -> bool:
        """Whether the handler is through when the worker stops."""
        return self.at == "finish.before_commit"


PLACES = {
    "middle": MIDDLE,
    "before_finish": "finish.before_commit",
    "before_begin": "run.before_begin",
    "before_renewal": "renew.before",
}
#: The second one is done with the task when the first comes back, or has buried it, or is in the middle of it.
DONE, BURIED, RUNNING = "done", "bury", "run"
ALL = [Pause(f"{name}.{then}", at, then) for name, at in PLACES.items() for then in (DONE, BURIED, RUNNING)]
FEW = {"middle.bury", "middle.run", "before_finish.run", "before_begin.done", "before_renewal.done"}
PAUSES = size([p for p in ALL if p.queue in FEW], ALL)


class Paused:
    """The first worker of a queue, and its one task."""

    def __init__(self, work: Bench, pause: Pause, folder: Path) -> None:
        self.work, self.pause, self.folder = work, pause, folder
        folder.mkdir()
        armed = {"TANDEMQ_CRASH": f"{pause.at}:1:stop", "TANDEMQ_CRASH_DIR": str(folder)} if pause.at else {}
        self.worker: Worker = work.worker("-c", "1", "-q", pause.queue, "--name", pause.queue, app=APP, **armed)
        self.gate = folder / "gate"
        self.task_id = 0

    def enqueue(self) -> None:
        self.worker.ready()
        self.child = self.worker.children()[0].pid
        if self.pause.ends_first:
            self.gate.touch()
        body = {"gate": str(self.gate), "then": self.pause.then}
        handle = self.work.app.enqueue("l.late", body, queue=self.pause.queue, backoff=[0.05])
        self.task_id = handle.id

    def stop(self, probe: Probe) -> None:
        """All of it, once it is where it is to stop."""
        if self.pause.at:
            eventually(lambda: list(self.folder.glob(f"{self.pause.at}.*")), 60, self.worker.text)
        else:
            eventually(lambda: probe.starts()[self.task_id] == 1, 60, self.worker.text)
        os.killpg(self.worker.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        self.gate.touch()
        os.killpg(self.worker.pid, signal.SIGCONT)

    def end_second(self) -> None:
        self.gate.with_suffix(".second").touch()

    def starts(self, probe: Probe) -> int:
        """How often the handler was begun, and once more where the first one stopped just before that."""
        return probe.starts()[self.task_id] + (not self.pause.begins_first)

    def task(self) -> Task:
        task = self.work.app.get(self.task_id)
        assert task is not None
        return task

    def refused(self) -> bool:
        return any(a.outcome == "fenced" for a in self.task().attempts_log)


def test_a_late_worker_changes_nothing(work: Bench, probe: Probe, tmp_path: Path) -> None:
    firsts = [Paused(work, pause, tmp_path / pause.queue) for pause in PAUSES]
    for first in firsts:
        first.enqueue()
    for first in firsts:
        first.stop(probe)
    stopped = time.monotonic()
    ids = [first.task_id for first in firsts]
    assert work.statuses(ids) == {"running": len(ids)}
    begun = {f.task_id: 1 for f in firsts if f.pause.begins_first}
    assert dict(probe.starts()) == begun

    queues = [argument for first in firsts for argument in ("-q", first.pause.queue)]
    second = work.worker("-c", f"{len(firsts)}", "--name", "second", *queues, app=APP).ready()
    work.ended([first.task_id for first in firsts if first.pause.then != RUNNING])
    for first in firsts:
        eventually(lambda first=first: first.starts(probe) == 2, message=second.text)
    pause_s = 3 * work.settings.lease_s
    eventually(lambda: time.monotonic() - stopped > pause_s)
    decided = {first.task_id: first.task() for first in firsts}
    for first in firsts:
        expected = {DONE: "succeeded", BURIED: "dead", RUNNING: "running"}[first.pause.then]
        assert decided[first.task_id].status == expected

    for first in firsts:
        first.go_on()
    for first in firsts:
        eventually(first.refused, 60, first.worker.text)
        task, before = first.task(), decided[first.task_id]
        said = (first.pause, task)
        assert (task.status, task.result, task.attempts) == (before.status, before.result, 2), said
        assert (task.completed_at, task.fence) == (before.completed_at, before.fence), said
        last = ["failed"] if first.pause.then == BURIED else []
        assert sorted(a.outcome for a in task.attempts_log) == sorted(["lease_lost", "fenced", *last]), said
        (fenced,) = (a for a in task.attempts_log if a.outcome == "fenced")
        assert fenced.worker_id.startswith(first.pause.queue), said
        assert (fenced.attempt, fenced.fence) == (1, task.fence - 1), said
        eventually(lambda first=first: "refused" in first.worker.text(), message=first.worker.text)
        assert first.starts(probe) == 2, "one that had not begun began after all, or a third run"
        first.end_second()
    work.ended(ids)
    for first in firsts:
        task = first.task()
        expected = ("dead", None) if first.pause.then == BURIED else ("succeeded", '"attempt 2"')
        assert (task.status, task.result, task.attempts) == (*expected, 2), (first.pause, task)

    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    more = {first.task_id: work.ids("noop", 5, queue=first.pause.queue) for first in firsts}
    every = [task_id for made in more.values() for task_id in made]
    assert work.ended(every) == {"succeeded": len(every)}
    for first in firsts:
        ran = {m.pid for i in more[first.task_id] for m in probe.marks("start", i)}
        assert ran == {first.child}, "the same process goes on"
        assert first.worker.process.poll() is None
    assert_settled(work, probe, [*ids, *every])
