"""B36: an idempotency key belongs to its row, whatever becomes of the task, and to nothing else.

Required: seven endings of the task that holds a key, and the same task enqueued again after each: as long as the row is
there the answer is that row, with its id and state; once it is gone the key is free. No key is held by anything that
cannot be seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandemq.cli.entry import tandemq_command
from tests.probe import Probe
from tests.scenarios.truth import assert_settled, row_count, sql
from tests.waiting import eventually
from tests.workers import ROOT, Bench, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]


class Caller:
    """Enqueues the same task under the same key, as the command line does, in this process: starting one is slow."""

    def __init__(self, work: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self._work = work
        for name, value in environment(work.settings).items():
            monkeypatch.setenv(name, value)

    def say(self, *arguments: object, code: int = 0) -> str:
        """What the command prints."""
        done = CliRunner().invoke(tandemq_command, [str(a) for a in arguments], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, code), done.output
        return done.stdout

    def enqueue(self, key: str, name: str = "noop", payload: str = "{}") -> dict[str, Any]:
        """Its answer."""
        answer: dict[str, Any] = json.loads(
            self.say("enqueue", name, payload, "--key", key, "--max-retries", 2, "--json")
        )
        return answer

    def owners(self, key: str) -> list[int]:
        """Rows that hold the key."""
        found = sql(self._work, "SELECT id FROM {t}tasks WHERE idempotency_key = :key", key=key.encode())
        return [row[0] for row in found]

    def duplicate(self, key: str, task_id: int, state: str, name: str = "noop", payload: str = "{}") -> None:
        """The row that owns the key is named, with its state; nothing is stored."""
        rows = row_count(self._work)
        answer = self.enqueue(key, name, payload)
        assert answer == {"id": task_id, "id_str": str(task_id), "created": False, "state": state}
        said = self.say("enqueue", name, payload, "--key", key)
        assert said == f"duplicate of task {task_id}, state {state}: it has this key\n"
        assert self._work.app.enqueue(name, json.loads(payload), idempotency_key=key).id == task_id
        assert (row_count(self._work), self.owners(key)) == (rows, [task_id])


@pytest.fixture
def caller(work: Bench, monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(work, monkeypatch)


def test_the_holder_succeeds_dies_is_cancelled_or_purged(work: Bench, caller: Caller, probe: Probe) -> None:
    names = {"done": "noop", "dead": "final", "purge": "final"}
    ids = {key: caller.enqueue(key, name)["id"] for key, name in names.items()}
    assert len(set(ids.values())) == 3
    caller.duplicate("done", ids["done"], "ready")
    work.burst("-c", "2")
    caller.duplicate("done", ids["done"], "succeeded")
    caller.duplicate("dead", ids["dead"], "dead", "final")

    ids["cancel"] = caller.enqueue("cancel")["id"]
    assert work.app.cancel(ids["cancel"]) == "cancelled"
    caller.duplicate("cancel", ids["cancel"], "cancelled")

    # A purge frees the key when the row goes, and not before.
    assert caller.say("dead", "purge", ids["purge"], "--yes", code=1) == "0 purged, 1 kept\n"
    caller.duplicate("purge", ids["purge"], "dead", "final")
    sql(work, "UPDATE {t}tasks SET completed_at = completed_at - INTERVAL 25 HOUR WHERE id = :i", i=ids["purge"])
    assert caller.say("dead", "purge", ids["purge"], "--yes") == "1 purged, 0 kept\n"
    assert caller.owners("purge") == []
    new = caller.enqueue("purge", "final")
    assert (new["created"], new["id"] in ids.values()) == (True, False)
    caller.duplicate("purge", new["id"], "ready", "final")
    assert probe.starts() == {ids["done"]: 1, ids["dead"]: 1, ids["purge"]: 1}


def test_the_worker_of_the_holder_is_killed(work: Bench, caller: Caller, probe: Probe, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    call = ("hold", json.dumps({"until": str(gate)}))
    held = caller.enqueue("k", *call)["id"]
    worker = work.worker("-c", "1").ready()
    eventually(lambda: probe.starts().get(held) == 1, 60, worker.text)
    caller.duplicate("k", held, "running", *call)
    worker.kill_group()
    work.workers.remove(worker)

    assert caller.enqueue("k", *call)["id"] == held
    assert caller.owners("k") == [held]
    gate.touch()
    second = work.worker("-c", "1").ready()
    assert work.ended([held]) == {"succeeded": 1}, second.text()
    caller.duplicate("k", held, "succeeded", *call)
    assert_settled(work, probe, [held])


def test_the_enqueuer_is_killed_before_and_after_its_commit(work: Bench, caller: Caller, probe: Probe) -> None:
    ids = []
    for key in ("enqueue.before_insert", "enqueue.before_commit", "enqueue.after_commit"):
        command = [sys.executable, "-m", "tandemq", "enqueue", "noop", "{}", "--key", key, "--max-retries", "2"]
        variables = environment(work.settings, TANDEMQ_CRASH=f"{key}:1:kill9")
        killed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, timeout=90, check=False)
        assert killed.returncode == -9, killed.stderr
        # The server has noticed that the process is gone: no transaction of it is open.
        open_now = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0"
        eventually(lambda open_now=open_now: sql(work, open_now)[0][0] == 0, 60, every_s=0.2)

        stored = caller.owners(key)
        assert len(stored) == (key == "enqueue.after_commit")
        task_id = stored[0] if stored else caller.enqueue(key)["id"]
        caller.duplicate(key, task_id, "ready")
        ids.append(task_id)
    work.worker("-c", "1").ready()
    assert work.ended(ids) == {"succeeded": len(ids)}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
