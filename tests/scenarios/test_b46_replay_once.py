"""B46: "replay all", from ten clients at once and with a double click, begins one new series per task and wave.

Required: each dead task runs once more, however many ask for it; the number of dead ones never exceeds what it was;
attempts begin anew and the history stays; what is not dead is refused, and the answer says how many moved and how many
did not. A client that is killed between the change of the rows and the push loses nothing.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from tandemq import Filter, TandemQ
from tandemq.replaying import Replayed
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.letters import dead_letters, replays_of
from tests.scenarios.sizes import FULL, size
from tests.scenarios.truth import T_REC, sql
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200), pytest.mark.usefixtures("calm")]

COUNT = size(240, 1000)
CLIENTS = 10
APP = "tests.apps.replays:app"


def at_once(work: Bench, gate: Path) -> list[Replayed]:
    """Replay all, from ten clients with connections of their own, one of which clicks twice.

    Nothing ends before all have begun: what dies again after that is no part of this wave.
    """
    gate.unlink(missing_ok=True)
    before = len(work.app.dead.replays.list())
    given = {f.name: getattr(work.settings, f.name) for f in fields(work.settings)}
    apps = [TandemQ(**given) for _ in range(CLIENTS)]
    answers: list[Replayed] = []
    start = threading.Barrier(CLIENTS + 1)

    def click(app: TandemQ) -> None:
        start.wait()
        answers.append(app.dead.replay(where=Filter()))

    threads = [threading.Thread(target=click, args=(app,)) for app in [*apps, apps[0]]]
    for thread in threads:
        thread.start()
    eventually(lambda: len(work.app.dead.replays.list()) == before + CLIENTS + 1, 60)
    gate.touch()
    for thread in threads:
        thread.join()
    for app in apps:
        app.close()
    return answers


def test_ten_clients_replay_each_task_once_a_wave(work: Bench, probe: Probe, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fine = dead_letters(work, COUNT // 2, "r.gated", payload={"gate": str(gate), "fails": False})
    bad = dead_letters(work, COUNT // 2, "r.gated", payload={"gate": str(gate), "fails": True})
    ids = [*fine, *bad]
    over, most = threading.Event(), [0]

    def count() -> None:
        while not over.wait(0.05):
            most[0] = max(most[0], sql(work, "SELECT COUNT(*) FROM {t}tasks WHERE status = 'dead'")[0][0])

    watcher = threading.Thread(target=count)
    watcher.start()
    work.worker("-c", "4", app=APP).ready()

    first = at_once(work, gate)
    assert len(first) == CLIENTS + 1
    assert sum(answer.moved for answer in first) == COUNT
    assert {(answer.failed, answer.left, answer.state) for answer in first} == {(0, 0, "done")}
    skipped = Counter[str]()
    for answer in first:
        for (outcome, why), n in answer.reasons.items():
            assert outcome == "skipped"
            skipped[why] += n
    allowed = {"it is pending", "it is running", "it is succeeded", "it ended after the replay began"}
    assert set(skipped) <= allowed, "their rows are locked for moments only"
    assert work.ended(ids) == {"succeeded": len(fine), "dead": len(bad)}
    assert probe.starts() == dict.fromkeys(ids, 1)

    second = at_once(work, gate)
    assert sum(answer.moved for answer in second) == len(bad)
    eventually(lambda: probe.starts() == dict.fromkeys(fine, 1) | dict.fromkeys(bad, 2), 90)
    assert work.ended(ids) == {"succeeded": len(fine), "dead": len(bad)}
    assert replays_of(work) == {1: len(fine), 2: len(bad)}
    over.set()
    watcher.join()
    assert most[0] <= COUNT
    task = work.app.get(bad[0])
    assert task is not None
    assert (task.attempts, [(a.replays, a.attempt) for a in task.attempts_log]) == (1, [(1, 1), (2, 1)])

    refused = tandemq(work.settings, "dead", "replay", fine[0], "--json", code=1).json
    assert (refused["moved"], refused["reasons"]) == (0, [{"outcome": "skipped", "why": "it is succeeded", "n": 1}])


def test_a_client_killed_before_the_push_loses_nothing(work: Bench, probe: Probe, weather: Weather) -> None:
    ids = dead_letters(work, 150, "r.fine")
    work.worker("-c", "4", app=APP).ready()

    tandemq(work.settings, "dead", "replay", "--all", code=-signal.SIGKILL, TANDEMQ_CRASH="replay.after_commit:1:kill9")
    eventually(lambda: probe.starts() == dict.fromkeys(ids, 1), T_REC + weather.slack_s)
    assert work.ended(ids) == {"succeeded": len(ids)}
    (run,) = work.app.dead.replays.list()
    if not FULL:  # otherwise the worker's reconciler does it, once the dead client's hold has run out
        work.app.dead.replays.follow(run.id, take_over=True)
    eventually(lambda: work.app.dead.replays.show(run.id).state == "done", 60)
    assert replays_of(work) == {1: len(ids)}
