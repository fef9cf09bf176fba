"""A process dies at every arrow of a task's life; the next one goes on, nothing is lost, nothing is stuck."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core import crash
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.store.answers import Filter
from tests.probe import Probe
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.workers import ROOT, Bench, bench, environment

FAST = {"lease_s": 2.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "grace_s": 1.0}
DEFAULT = Level("default", 0)
DIED = "died (exit code -9)"


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **FAST), tmp_path, probe.environ) as made:
        yield made


def check(work: Bench, probe: Probe, ids: list[int]) -> None:
    """Every task has succeeded, was begun, and never oftener than its attempts say; nothing is left behind."""
    assert work.ended(ids) == {"succeeded": len(ids)}
    starts = probe.starts()
    for task_id in ids:
        task = work.app.get(task_id)
        assert task is not None
        assert 1 <= starts[task_id] <= task.attempts, task
    eventually(lambda: work.app.broker.depth(DEFAULT) == 0)
    eventually(lambda: not work.app.store.busy(["default"]))


CHILD_POINTS = {
    "pop.after": "noop",
    "claim.after_commit": "noop",
    "run.before_handler": "noop",
    "run.after_handler": "noop",
    "finish.before_commit": "noop",
    "finish.after_commit": "noop",
    "retry.after_commit": "flaky",
}


@pytest.mark.parametrize("point", sorted(CHILD_POINTS))
def test_a_child_dies_and_the_next_one_goes_on(work: Bench, probe: Probe, point: str) -> None:
    ids = [work.app.enqueue(CHILD_POINTS[point], {}, max_retries=5).id for _ in range(40)]
    worker = work.worker("-c", "2", TANDEMQ_CRASH=f"{point}:2:kill9")
    if point == "run.before_handler":
        # The mark "begun" is set before the handler is entered, so an attempt is used although nothing ran.
        assert work.ended(ids) == {"succeeded": 40}
    else:
        check(work, probe, ids)
    assert DIED in worker.text()
    assert worker.process.poll() is None


def test_the_supervisor_dies_after_a_promotion(work: Bench, probe: Probe) -> None:
    ids = [work.app.enqueue("noop", {}, delay=0.5).id for _ in range(20)]
    first = work.worker("-c", "2", TANDEMQ_CRASH="promote.after:1:kill9")
    assert first.wait() == -9
    work.worker("-c", "2")
    check(work, probe, ids)


@pytest.mark.parametrize("point", ["expire.before_commit", "expire.after_commit"])
def test_the_reconciler_dies_while_it_ends_a_lease(work: Bench, probe: Probe, point: str) -> None:
    handle = work.app.enqueue("flaky", {"fails": 0}, max_retries=5)
    dying = work.worker("-c", "1", TANDEMQ_CRASH="run.after_handler:1:stop")
    eventually(lambda: probe.starts()[handle.id] == 1, 60, dying.text)
    dying.kill_group()
    second = work.worker("-c", "1", TANDEMQ_CRASH=f"{point}:1:kill9")
    assert second.wait() == -9
    work.worker("-c", "1")
    check(work, probe, [handle.id])


def test_the_reconciler_dies_before_it_pushes_lost_ids_again(
    work: Bench, probe: Probe, redis_server: RedisServer
) -> None:
    work.ids("noop", 1)
    earlier = work.worker("-c", "1").ready()
    eventually(lambda: (work.app.broker.generation("default") or "").endswith(":ready"), 60, earlier.text)
    earlier.process.terminate()  # from here on a lost id is the window's to find, there is nothing to rebuild
    assert earlier.wait() == 0
    ids = work.ids("noop", 20)
    redis_server.client().delete(f"{work.settings.namespace}:{{default}}:ready:0")
    first = work.worker("-c", "1", TANDEMQ_CRASH="repush.before:1:kill9")
    assert first.wait() == -9
    work.worker("-c", "1")
    check(work, probe, ids)
    assert "rebuilt=1" not in work.workers[-1].text()


@pytest.mark.parametrize("point", ["enqueue.before_commit", "enqueue.after_commit"])
def test_the_producer_dies_around_its_commit(work: Bench, probe: Probe, point: str) -> None:
    worker = work.worker("-c", "1").ready()
    program = "from tests.apps.work import app; app.enqueue('noop', {})"
    died = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(work.settings, **probe.environ, TANDEMQ_CRASH=f"{point}:1:kill9"),
        check=False,
    )
    assert died.returncode == -9
    rows = [task.id for task in work.app.admin.find(Filter(), limit=10).items]
    if point == "enqueue.before_commit":
        assert rows == []
        return
    assert len(rows) == 1
    assert work.app.broker.depth(DEFAULT) == 0
    check(work, probe, rows)
    assert worker.process.poll() is None


def test_the_operator_dies_after_a_replay_has_been_committed(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("flaky", {"fails": 1}, max_retries=0)
    work.burst()
    assert handle.state() == "dead"
    died = subprocess.run(
        [sys.executable, "-m", "tandemq", "dead", "replay", str(handle.id)],
        cwd=ROOT,
        env=environment(work.settings, TANDEMQ_CRASH="replay.after_commit:1:kill9"),
        check=False,
    )
    assert died.returncode == -9
    assert handle.state() == "ready"
    work.worker("-c", "1")
    assert work.ended([handle.id]) == {"dead": 1}  # it failed again: attempts start anew, and it allows one
    assert probe.starts()[handle.id] == 2


def test_the_operator_dies_in_the_middle_of_a_prune(work: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [work.app.enqueue("noop", {}).id for _ in range(3)]
    for task_id in ids:
        work.app.cancel(task_id)
    program = "import tandemq.pruning as p; p.BATCH = 1; from tests.apps.work import app; app.prune(0)"
    died = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(work.settings, TANDEMQ_CRASH="prune.after_commit:2:kill9"),
        check=False,
    )
    assert died.returncode == -9
    assert [i for i in ids if work.app.get(i)] == ids[2:]
    assert work.app.prune(0).removed == 1
    assert work.app.stats()["ended"]["purged"] == 3


def test_the_operator_dies_between_the_archive_and_the_deletion_of_a_purge(work: Bench, tmp_path: Path) -> None:
    """What is gone is in the file; what is in the file only may be there still, and is written once more."""
    ids = [work.app.enqueue("noop", {"n": n}).id for n in range(4)]
    for task_id in ids:
        work.app.cancel(task_id)
    path = tmp_path / "gone.ndjson"
    purge = f"app.dead.purge(where=Filter(state='cancelled'), archive={str(path)!r}, reason='test data')"
    program = (
        f"import tandemq.deadletters as d; d.PAGE = 1; from tests.apps.work import app; Filter = d.Filter; {purge}"
    )
    died = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(work.settings, TANDEMQ_CRASH="purge.after_archive:3:kill9"),
        check=False,
    )
    assert died.returncode == -9
    left = [i for i in ids if work.app.get(i)]
    assert left == ids[2:]
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ids[:3]
    assert sum(record.n for record in work.app.audit().items if record.action == "purge") == 2

    assert work.app.dead.purge(where=Filter(state="cancelled"), archive=path).purged == 2
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [*ids[:3], *ids[2:]]


def test_a_child_dies_while_it_hands_back_what_waits(work: Bench, probe: Probe, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    long = work.app.enqueue("hold", {"until": str(gate)})
    ids = work.ids("noop", 30)
    worker = work.worker("-c", "1", TANDEMQ_CRASH="shutdown.before_release:1:kill9").ready()
    eventually(probe.starts, message=worker.text)
    worker.process.terminate()
    assert worker.wait() == 0
    gate.touch()
    work.worker("-c", "2")
    check(work, probe, [long.id, *ids])


def test_every_point_of_the_registry_has_its_test() -> None:
    text = Path(__file__).read_text()
    missing = [point for point in crash.POINTS if f'"{point}"' not in text and f"{point}:" not in text]
    assert not missing


def test_every_point_is_reached_by_some_line_of_the_product() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "crash.py")
    assert [point for point in crash.POINTS if f'"{point}"' not in source] == []


def test_a_misspelt_point_is_refused() -> None:
    with pytest.raises(ValueError, match="no crash point"):
        crash.arm("claim.never:1:kill9")
    crash.arm(None)
