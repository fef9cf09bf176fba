"""Replay runs on real servers: killed and continued, at their pace, with a fuse, over rows that somebody holds."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pymysql
import pytest

from tandemq import Filter
from tandemq.store import engines
from tandemq.store.replaying import LOCKED
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.letters import dead_letters, replays_of
from tests.scenarios.sizes import FULL, size
from tests.scenarios.truth import redis_ids
from tests.waiting import eventually
from tests.workers import Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1800), pytest.mark.usefixtures("calm")]

COUNT = size(3_000, 100_000)
MB = 1024 * 1024
APP = "tests.apps.replays:app"


class Memory:
    """The greatest resident size of a process, and what it was when ``begin`` was called."""

    def __init__(self, pid: int) -> None:
        self._process, self.first, self.most = psutil.Process(pid), 0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def begin(self) -> None:
        self.first = self._process.memory_info().rss

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            try:
                self.most = max(self.most, self._process.memory_info().rss)
            except psutil.NoSuchProcess:
                return

    def grown(self) -> int:
        self._over.set()
        self._thread.join()
        return self.most - self.first


def moved(work: Bench) -> int:
    runs = work.app.dead.replays.list()
    return runs[0].moved if runs else 0


def test_killed_half_way_and_continued_each_is_replayed_once(work: Bench) -> None:
    ids = dead_letters(work, COUNT, "r.fine")

    first = work.worker("replay", "--all", "--rate", "2000/s", verb="dead")
    eventually(lambda: moved(work) > 0 or first.process.poll() is not None, 300, first.text, every_s=0.05)
    memory = Memory(first.pid)
    memory.begin()
    eventually(lambda: moved(work) >= COUNT // 2 or first.process.poll() is not None, 300, first.text, every_s=0.02)
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    grown = memory.grown()
    half = moved(work)
    assert COUNT // 2 <= half < COUNT
    assert replays_of(work) == {0: COUNT - half, 1: half}
    told = re.search(r"tandemq dead replays continue (\d+)", first.text())
    assert told, first.text()

    begun = time.monotonic()
    second = work.worker("replays", "continue", told.group(1), "--json", verb="dead")
    assert second.wait(600) == 0, second.text()
    answer = json.loads(second.text()[second.text().index("{") :])
    took = time.monotonic() - begun
    assert (answer["moved"], answer["skipped"], answer["failed"], answer["left"]) == (COUNT, 0, 0, 0)
    assert answer["state"] == "done"
    assert replays_of(work) == {1: COUNT}
    (record,) = [one for one in work.app.admin.audit().items if one.action == "replay"]
    assert (record.n, record.run_id) == (COUNT, int(told.group(1)))
    in_redis = redis_ids(work)
    assert len(in_redis) == len(set(in_redis))
    assert 0 <= COUNT - len(set(in_redis)) <= 200, "what was committed and not pushed is one chunk at most"
    # What was not pushed is found when its turn comes, so somebody has to work.
    work.worker("-c", "8", app=APP)
    assert work.ended(ids, 300) == {"succeeded": COUNT}
    assert took > (COUNT - half) / 2000 * 0.9
    if FULL:
        assert grown < 8 * MB


@pytest.mark.parametrize("point", ["replay.before_commit", "replay.after_commit", "replay.after_push"])
def test_the_same_command_goes_on_after_a_death_at(work: Bench, point: str) -> None:
    ids = dead_letters(work, 60, "r.fine")
    command = ("dead", "replay", "--all", "--rate", "200/s")

    tandemq(work.settings, *command, code=-signal.SIGKILL, TANDEMQ_CRASH=f"{point}:2:kill9")
    done = replays_of(work)[1]  # one chunk or two, as large as the pace has allowed
    assert 0 < done < 60
    answer = tandemq(work.settings, *command, "--continue", "--json").json
    assert (answer["moved"], answer["left"], answer["state"]) == (60, 0, "done")
    assert replays_of(work) == {1: 60}
    pushed = len(redis_ids(work))
    assert 60 - done <= pushed < 60 if point == "replay.after_commit" else pushed == 60
    assert len(work.app.dead.replays.list()) == 1
    work.worker(verb="reconcile")
    eventually(lambda: redis_ids(work) == ids, 60)


def test_the_fuse_stops_what_is_not_mended_and_lets_through_what_is(work: Bench, probe: Probe, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    ids = dead_letters(work, 100, "r.pay", payload={"mended": str(mended)})
    work.worker("-c", "4", "--no-reconcile", app=APP).ready()
    fuse = ("--canary", "5%", "--stop-if-failing", "20%")

    answer = tandemq(work.settings, "dead", "replay", "--all", *fuse, "--json", code=1).json
    assert (answer["moved"], answer["left"], answer["state"]) == (5, 95, "paused")
    assert re.fullmatch(r"[2-5] of 5 replayed tasks died again \(\d+%\), more than 20%: .*", answer["note"])
    assert work.ended(ids) == {"dead": 100}
    assert sum(probe.starts().values()) == 5
    assert "paused" in tandemq(work.settings, "dead", "replays").out

    mended.touch()
    answer = tandemq(work.settings, "dead", "replays", "continue", answer["run_id"], "--json").json
    assert (answer["moved"], answer["left"], answer["state"]) == (100, 0, "done")
    assert work.ended(ids) == {"dead": 5, "succeeded": 95}
    assert probe.starts() == dict.fromkeys(ids, 1)


@pytest.fixture
def holder(work: Bench) -> Iterator[Any]:
    """A session of somebody else, with a transaction open."""
    url = engines.url_of(work.settings)
    login = {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}
    with pymysql.connect(**login, database=url.database, autocommit=False) as connection:
        yield connection


def lock(holder: Any, work: Bench, ids: list[int]) -> None:
    some = ",".join(map(str, ids))
    holder.cursor().execute(f"SELECT id FROM {work.settings.table_prefix}tasks WHERE id IN ({some}) FOR UPDATE")


def test_rows_that_stay_locked_are_left_out_and_the_rest_goes_on(work: Bench, holder: Any) -> None:
    ids = dead_letters(work, 300, "r.fine")
    lock(holder, work, ids[:2])

    answer = work.app.dead.replay(where=Filter())
    assert (answer.moved, answer.skipped, answer.left) == (298, 2, 0)
    assert answer.reasons == {("skipped", LOCKED): 2}
    few = work.app.dead.replay(ids[:3])
    assert (few.moved, few.skipped) == (0, 3)
    assert few.reasons == {("skipped", LOCKED): 2, ("skipped", "it is pending"): 1}


@pytest.mark.parametrize("few", [True, False], ids=["by id", "as a run"])
def test_rows_that_are_locked_for_a_moment_are_waited_for(work: Bench, holder: Any, few: bool) -> None:
    ids = dead_letters(work, 5, "r.fine")
    lock(holder, work, ids)
    threading.Timer(0.7, holder.rollback).start()

    answer = work.app.dead.replay(ids) if few else work.app.dead.replay(where=Filter())
    assert (answer.moved, answer.skipped) == (5, 0)


def test_ctrl_c_pauses(work: Bench) -> None:
    dead_letters(work, 50, "r.fine")
    client: Worker = work.worker("replay", "--all", "--rate", "10/s", verb="dead")
    eventually(lambda: moved(work) > 0, 60, client.text)
    client.signal(signal.SIGINT)

    assert client.wait() == 130
    (run,) = work.app.dead.replays.list()
    assert (run.state, run.note.startswith("paused by")) == ("paused", True)
    assert f"run {run.id} is paused; to go on: tandemq dead replays continue {run.id}" in client.text()
    assert 0 < run.moved < 50
