"""A producer or an operator's command dies, fails or sleeps at one of its points; a worker runs beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tandemq.core.task import Level
from tandemq.store.answers import Filter
from tests.crash.fleet import CANCEL, OPERATOR, PRODUCER, PRUNE, REPLAY, Fleet
from tests.scenarios.truth import sql
from tests.waiting import eventually
from tests.workers import ROOT, environment

ENQUEUE = "from tests.apps.work import app; app.enqueue('noop', {}, queue='POINT')"
#: Two tasks, one to a transaction: the point is met at the second.
PRUNING = "import tandemq.pruning as p; p.BATCH = 1; from tests.apps.work import app; app.prune(0, queue='POINT')"
COMMITTED = {"enqueue.after_commit", "enqueue.after_push", "replay.after_commit", "replay.after_push"}
IN_TRANSACTION = ("cancel.before_commit", "replay.before_commit", "prune.before_commit")


class Side:
    """Processes that each meet one point, all started at once, and the tasks that they are about."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.about: dict[str, list[int]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def plant(self) -> None:
        """Dead tasks to be replayed, ended ones to be pruned, one that nobody runs to be cancelled."""
        app = self.fleet.work.app
        for point in OPERATOR:
            self.about[point] = self.fleet.enqueue(point, 2 if point in PRUNE else 1)
        for point in (*REPLAY, *PRUNE):
            for task_id in self.about[point]:
                assert app.cancel(task_id) == "cancelled"
            app.broker.pop([Level(point, 0)], limit=10, wait_s=0.0)  # or a replay would find its id still there

    def start(self, action: str) -> None:
        """One process for each point."""
        for point in (*PRODUCER, *OPERATOR):
            n = 2 if point in PRUNE else 1
            spec = self.fleet.marks.arming(f"{point}:{n}:{action}")
            self.processes[point] = subprocess.Popen(
                [sys.executable, *self.command(point)],
                cwd=ROOT,
                env=environment(self.fleet.work.settings, **self.fleet.probe.environ, **spec),
                stdout=subprocess.DEVNULL,
                stderr=(self.fleet.work.folder / point).open("wb"),
            )

    def command(self, point: str) -> list[str]:
        if point in PRODUCER:
            return ["-c", ENQUEUE.replace("POINT", point)]
        if point in PRUNE:
            return ["-c", PRUNING.replace("POINT", point)]
        (task_id,) = self.about[point]
        return ["-m", "tandemq", *(["cancel"] if point in CANCEL else ["dead", "replay"]), str(task_id)]

    def run_again(self, point: str) -> None:
        """The command once more, with nothing armed."""
        log = (self.fleet.work.folder / point).open("ab")
        env = environment(self.fleet.work.settings, **self.fleet.probe.environ)
        self.processes[point] = subprocess.Popen([sys.executable, *self.command(point)], cwd=ROOT, env=env, stderr=log)

    def assert_all_ended(self, code: int) -> None:
        """Each with this exit code."""
        said = {
            p: (process.wait(60), (self.fleet.work.folder / p).read_text()) for p, process in self.processes.items()
        }
        assert {point: end for point, end in said.items() if end[0] != code} == {}

    def rows(self, point: str) -> list[str]:
        """The status of each task of this point, by id."""
        return [
            row[0] for row in sql(self.fleet.work, "SELECT status FROM {t}tasks WHERE queue = :q ORDER BY id", q=point)
        ]


@pytest.fixture
def side(fleet: Fleet) -> Iterator[Side]:
    made = Side(fleet)
    made.plant()
    yield made
    for process in made.processes.values():
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("action", "code"), [("kill9", -signal.SIGKILL), ("raise", 1)])
def test_a_side_process_ends_at_each_point(side: Side, action: str, code: int) -> None:
    """What it had committed is there and runs, by the reconciler's help; the rest has never happened."""
    side.start(action)
    side.assert_all_ended(code)
    assert side.fleet.marks.hit() == {*PRODUCER, *OPERATOR}
    for point in (*PRODUCER, *REPLAY):
        before = ["cancelled"] if point in REPLAY else []
        assert side.rows(point) == (["pending"] if point in COMMITTED else before), point
    assert side.rows("cancel.before_commit") == ["pending"]
    assert [len(side.rows(point)) for point in PRUNE] == [1, 0], "each batch is a transaction"

    side.fleet.heal()
    side.fleet.replace((*COMMITTED, *CANCEL))
    ran = {point: ["succeeded"] for point in (*COMMITTED, *CANCEL)}
    eventually(lambda: {point: side.rows(point) for point in ran} == ran, 90, side.fleet.states)
    assert set(side.fleet.probe.starts().values()) == {1}
    assert len(side.fleet.probe.starts()) == len(ran)
    # and again, by somebody who lives
    app = side.fleet.work.app
    assert app.dead.replay(where=Filter(queue="replay.before_commit", state="cancelled")).moved == 1
    assert app.prune(0, queue="prune.before_commit").removed == 1
    assert sql(side.fleet.work, "SELECT COUNT(*) FROM {t}task_counts WHERE outcome = 'purged'") != [(0,)]


def test_a_side_process_that_slept_for_longer_than_a_lease_does_no_harm_when_it_goes_on(side: Side) -> None:
    """Its rows are found by the reconciler and run; the ids that it pushes late are copies."""
    side.start("stop")

    def asleep() -> bool:
        return side.fleet.marks.stopped() == {*PRODUCER, *OPERATOR}

    eventually(asleep, 90, lambda: {*PRODUCER, *OPERATOR} - side.fleet.marks.stopped())
    side.fleet.heal()
    side.fleet.replace((*PRODUCER, *REPLAY))
    ran = {point: ["succeeded"] for point in COMMITTED}
    eventually(lambda: {point: side.rows(point) for point in ran} == ran, 90, side.fleet.states)

    for process in side.processes.values():
        os.kill(process.pid, signal.SIGCONT)
    for point in IN_TRANSACTION:
        # A transaction that sleeps for over ten seconds is cut by the server, and after twenty nothing is tried again.
        if side.processes[point].wait(60) == 3:
            side.run_again(point)
    side.assert_all_ended(0)

    ran = {point: ["succeeded"] for point in (*PRODUCER, *REPLAY)}
    eventually(lambda: {point: side.rows(point) for point in ran} == ran, 90, side.fleet.states)
    assert set(side.fleet.probe.starts().values()) == {1}
    assert (side.rows("cancel.before_commit"), [side.rows(point) for point in PRUNE]) == (["cancelled"], [[], []])
