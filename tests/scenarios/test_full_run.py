"""Whole runs from the command line: many tasks in, each ends once, nothing is left, whatever is killed or flushed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, sql
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import APP, Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

SHORT_LEASE = {"TANDEMQ_LEASE_S": "5"}


def noops(n: int) -> list[dict[str, Any]]:
    """Lines of a file."""
    return [{"type": "noop", "payload": {"n": i}} for i in range(n)]


def holding(gate: Path) -> dict[str, Any]:
    """The line of a task that runs until this file exists: however slow the test is, the run is not over before."""
    return {"type": "hold", "payload": {"until": str(gate)}}


def enqueue_file(work: Bench, tasks: list[dict[str, Any]]) -> list[int]:
    """Through ``tandemq enqueue --file``; their ids."""
    lines = work.folder / "tasks.ndjson"
    lines.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    answer = tandemq(work.settings, "-A", APP, "enqueue", "--file", lines)
    assert answer.out == f"{len(tasks)} tasks stored\n"
    ids = [task_id for (task_id,) in sql(work, "SELECT id FROM {t}tasks ORDER BY id")]
    assert len(ids) == len(tasks)
    return ids


def assert_all_done(work: Bench, probe: Probe, ids: list[int]) -> None:
    assert Counter(dict(sql(work, "SELECT status, COUNT(*) FROM {t}tasks GROUP BY status"))) == {"succeeded": len(ids)}
    assert set(probe.ends()) == set(ids)
    assert sql(work, "SELECT lease_token, ids FROM {t}claims") == []
    assert_settled(work, probe, ids)


def test_every_task_of_a_file_runs_once_and_nothing_is_left(work: Bench, probe: Probe, tmp_path: Path) -> None:
    """A burst of two processes ends by itself when every task has run."""
    gate, more_than_the_slots_of_one = tmp_path / "gate", 9
    ids = enqueue_file(work, [*[holding(gate)] * more_than_the_slots_of_one, *noops(size(4_000, 20_000))])
    worker = work.worker("--burst", "-p", "2", "-c", "8")
    eventually(lambda: len(probe.starts()) >= more_than_the_slots_of_one, 90, worker.text)  # both are there
    gate.touch()
    assert worker.wait(240) == 0, worker.text()[-4000:]
    assert_all_done(work, probe, ids)
    probe.assert_once(ids)
    assert len(probe.pids()) == 2


def test_tasks_are_claimed_by_id_and_waited_for_in_redis(
    work: Bench, probe: Probe, mysql_server: MySQLServer, redis_client: redis.Redis
) -> None:
    """No statement looks for something to claim: ids come from BRPOP, and every claim names them."""
    ids = enqueue_file(work, noops(1000))
    redis_client.config_resetstat()
    mysql_server.general_log(True)
    work.burst("-p", "2", "-c", "8", "--no-reconcile")
    mysql_server.general_log(False)
    statements = [line for line in mysql_server.read_general_log().splitlines() if "tandemq_tasks" in line]
    locking = [s for s in statements if "FOR UPDATE" in s]
    taking = [s for s in statements if "UPDATE" in s and "SET status = 'running'" in s]
    assert len(locking) >= 2
    assert len(taking) >= 2
    assert [s for s in locking + taking if " WHERE id IN (" not in s] == []
    assert redis_client.info("commandstats")["cmdstat_brpop"]["calls"] >= 2
    assert_all_done(work, probe, ids)


def test_kill_9_of_the_whole_worker_in_the_middle(work: Bench, probe: Probe, tmp_path: Path) -> None:
    """What the killed processes had not recorded runs again, nothing else does, and nothing is lost."""
    gate = tmp_path / "gate"
    ids = enqueue_file(work, [*noops(size(1_000, 5_000)), holding(gate)])
    first = work.worker("-p", "2", "-c", "8", **SHORT_LEASE).ready()
    eventually(lambda: len(probe.ends()) > len(ids) // 4, 90, first.text)
    killed = {child.pid for child in first.children()}
    first.kill_group()
    work.workers.remove(first)
    assert len(killed) == 2
    assert len(probe.ends()) < len(ids)
    gate.touch()
    second = work.worker("--burst", "-p", "2", "-c", "8", **SHORT_LEASE)
    assert second.wait(120) == 0, second.text()[-4000:]
    again = {task_id for task_id, count in probe.starts().items() if count > 1}
    assert again <= {m.task_id for m in probe.marks("start") if m.pid in killed}
    assert max(probe.starts().values()) <= 2
    assert_all_done(work, probe, ids)


def test_redis_is_flushed_three_times_in_the_middle(
    work: Bench, probe: Probe, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The ids come back from MySQL, those of running tasks do not, and the burst still knows when it is done."""
    gate = tmp_path / "gate"
    ids = enqueue_file(work, [*noops(size(2_000, 5_000)), holding(gate)])
    worker = work.worker("--burst", "-p", "2", "-c", "8")
    for eighth in (1, 2, 3):
        eventually(lambda eighth=eighth: len(probe.ends()) >= len(ids) * eighth // 8, 60, worker.text, every_s=0.005)
        redis_server.flush()
    assert len(probe.ends()) < len(ids)
    gate.touch()
    assert worker.wait(120) == 0, worker.text()[-4000:]
    assert_all_done(work, probe, ids)
    probe.assert_once(ids)
