"""B17: two workers that look alike from outside are two workers.

Required: with the same host name, the same process id and the same configured name both workers are listed, and no
task runs twice. When one is killed only its tasks are given up; one that takes its place at once, under the same name,
is neither refused nor mistaken for the dead one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.probe import Probe
from tests.scenarios.truth import T_REC, assert_settled, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import APP, ROOT, Bench, Worker, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

HOST = "same"
SLOTS = 4
NAMESPACES = ["unshare", "--pid", "--fork", "--mount-proc", "--uts"]
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
#: Where namespaces are forbidden the processes only say that they are alike.
PRETENDED = str(ROOT / "tests" / "apps" / "pretending")


def container() -> list[str]:
    """The command that runs a program as process 1 of a host called ``same``, if this machine lets us."""
    command = [*NAMESPACES, *AS_ROOT, "sh", "-c", f'hostname {HOST} && exec "$@"', "sh"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else []


class Twin(Worker):
    """A worker with nothing of its own but its random id."""

    def __init__(self, work: Bench, probe: Probe) -> None:
        self.log = work.folder / f"worker{len(work.workers)}.log"
        contained = container()
        pretended = {} if contained else {"PYTHONPATH": PRETENDED, "TANDEMQ_TEST_HOST": HOST, "TANDEMQ_TEST_PID": "1"}
        verb = ["-A", APP, "worker", "-c", f"{SLOTS}", "--name", HOST]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*contained, sys.executable, "-m", "tandemq", *verb],
                cwd=ROOT,
                env=environment(work.settings, **probe.environ, **pretended),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        work.workers.append(self)

    def children(self) -> list[psutil.Process]:
        """See ``Worker``; ``unshare`` stands between."""
        try:
            every = psutil.Process(self.pid).children(recursive=True)
            return [p for p in every if "tandemq.child" in " ".join(p.cmdline())]
        except psutil.NoSuchProcess:
            return []

    @property
    def id(self) -> str:
        """As it says itself."""
        return self.text().split(" starts: ")[0].rsplit(" ", 1)[1]


def holders(work: Bench, ids: list[int]) -> dict[int, str]:
    """Which worker runs which task, by the rows."""
    rows = sql(work, "SELECT id, worker_id FROM {t}tasks WHERE status = 'running'")
    return {task_id: worker_id for task_id, worker_id in rows if task_id in ids}


def test_workers_that_look_alike(work: Bench, probe: Probe, weather: Weather) -> None:
    one, other = (Twin(work, probe) for _ in range(2))
    ids = [one.ready().id, other.ready().id]
    eventually(lambda: len(work.app.workers()) == 2, message=lambda: (one.text(), other.text()))
    assert {w.id for w in work.app.workers()} == set(ids)
    assert [(w.host, w.pid, w.name, w.alive) for w in work.app.workers()] == [(HOST, 1, HOST, True)] * 2

    small = work.ids("noop", 100)
    assert work.ended(small) == {"succeeded": 100}
    probe.assert_once(small)

    gate = work.folder / "gate"
    held = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(2 * SLOTS)]
    eventually(lambda: sum(probe.starts()[i] for i in held) == 2 * SLOTS, 60, one.text)
    by = holders(work, held)
    assert sorted(by.values()) == sorted(ids * SLOTS)
    one.kill_group()
    killed = time.time()
    again = Twin(work, probe).ready()
    assert again.id not in ids

    lost = {task_id for task_id, holder in by.items() if holder == ids[0]}
    eventually(lambda: all(probe.starts()[i] == 2 for i in lost), message=lambda: (again.text(), other.text()))
    starts_again = [probe.marks("start", i)[1].at - killed for i in lost]
    assert max(starts_again) < work.settings.lease_s + T_REC + weather.slack_s
    assert set(holders(work, list(lost)).values()) == {again.id}
    alive = {w.id: w.alive for w in work.app.workers()}
    assert alive == {one.id: False, other.id: True, again.id: True}
    gate.touch()

    assert work.ended(held) == {"succeeded": 2 * SLOTS}
    starts = probe.starts()
    assert {i: starts[i] for i in held} == {i: 2 if i in lost else 1 for i in held}
    for task_id in held:
        task = work.app.get(task_id)
        assert task is not None
        assert [(a.outcome, a.worker_id) for a in task.attempts_log] == [("lease_lost", one.id)] * (task_id in lost)
    probe.assert_never_twice_at_once()
    work.workers.remove(one)
    assert_settled(work, probe, [*small, *held])
