"""The release before and this one side by side on one database, there and back: docs/upgrade.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tandemq.store.migrate import files, migrate
from tests.probe import Probe
from tests.releases import MissingRelease, OldWorker, old_environment, old_tandemq, unpack
from tests.scenarios.command_line import tandemq
from tests.waiting import eventually
from tests.workers import Bench, Worker, bench

PACE = {"lease_s": 3.0, "heartbeat_s": 0.5, "reconcile_s": 0.3, "mover_s": 0.1}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def settings(mysql_url: str, redis_url: str, namespace: str) -> Settings:
    """Nothing is migrated yet."""
    return Settings.load({}, database_url=mysql_url, redis_url=redis_url, namespace=namespace, **PACE)


@pytest.fixture
def work(settings: Settings, release: Path, tmp_path: Path, probe: Probe) -> Iterator[Bench]:
    """The old release made the tables."""
    old_tandemq(release, settings, "migrate")
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def old(work: Bench, release: Path, probe: Probe) -> Callable[..., OldWorker]:
    """Starts a worker of the old release, which ends with the test."""

    def start(*arguments: str) -> OldWorker:
        log = work.folder / f"old{len(work.workers)}.log"
        worker = OldWorker(release, work.settings, log, *arguments, **probe.environ)
        work.workers.append(worker)
        return worker

    return start


def enqueued_by_old(release: Path, settings: Settings, n: int, seconds: float = 0.05) -> list[int]:
    """Stored by the old release's producer."""
    lines = "".join(json.dumps({"type": "sleep", "payload": {"seconds": seconds}}) + "\n" for _ in range(n))
    before = _last(release, settings)
    old_tandemq(release, settings, "enqueue", "--file", "-", stdin=lines)
    return list(range(before + 1, before + 1 + n))


def _last(release: Path, settings: Settings) -> int:
    items = json.loads(old_tandemq(release, settings, "list", "--limit", 1, "--json"))["items"]
    return int(items[0]["id"]) if items else 0


def enqueued_by_new(work: Bench, n: int, seconds: float = 0.05) -> list[int]:
    return [work.app.enqueue("sleep", {"seconds": seconds}).id for _ in range(n)]


def ran_by(worker: Worker, probe: Probe) -> set[int]:
    """Tasks that a child of this worker began."""
    children = {child.pid for child in worker.children()}
    return {mark.task_id for mark in probe.marks("start") if mark.pid in children}


def test_the_old_release_is_really_another_one(release: Path, settings: Settings, work: Bench) -> None:
    pending = json.loads(tandemq(settings, "migrate", "--check", "--json", code=1).out)
    old_names = {path.stem for path in (release / "sql/mysql").glob("*.sql")}
    new_names = {migration.name for migration in files("mysql")}

    assert old_names < new_names
    assert set(pending["pending"]) == new_names - old_names
    command = [sys.executable, "-c", "import tandemq; print(tandemq.__file__)"]
    done = subprocess.run(command, cwd=release, env=old_environment(release, settings), capture_output=True, check=True)
    assert done.stdout.decode().startswith(str(release))


def test_new_code_on_the_old_schema_says_what_to_do_and_runs_nothing(work: Bench, release: Path) -> None:
    (task_id,) = enqueued_by_old(release, work.settings, 1)
    worker = work.worker()

    assert worker.wait() != 0
    assert "tandemq migrate" in worker.text()
    assert json.loads(old_tandemq(release, work.settings, "show", task_id, "--json"))["status"] == "pending"


def test_old_and_new_share_the_work_and_each_heals_what_the_other_leaves(
    work: Bench, release: Path, old: Callable[..., OldWorker], probe: Probe
) -> None:
    settings = work.settings
    first = old("-c", "4").ready()
    running = enqueued_by_old(release, settings, 4, seconds=3)
    eventually(lambda: set(running) <= set(probe.starts()), 60, first.text)

    # Migrated while the old workers are at it, and old producers go on.
    assert set(migrate(settings)) == {m.name for m in files("mysql")} - {
        p.stem for p in (release / "sql/mysql").glob("*")
    }
    before = enqueued_by_old(release, settings, 20) + enqueued_by_new(work, 20)
    assert work.ended([*running, *before]) == {"succeeded": 44}
    assert first.process.poll() is None

    # Side by side: tasks of either producer are done by either worker.
    second = work.worker("-c", "4").ready()
    ids = enqueued_by_old(release, settings, 60, seconds=0.1) + enqueued_by_new(work, 60, seconds=0.1)
    retried = [work.app.enqueue("flaky", {"fails": 1}).id for _ in range(10)]
    later = work.ids("noop", 10, delay=1.5)
    assert work.ended([*ids, *retried, *later]) == {"succeeded": 140}
    assert ran_by(first, probe) & set(ids)
    assert ran_by(second, probe) & set(ids)

    # The old one dies with tasks in hand: the new one heals; and the other way round, which is the way back.
    for dying, heir in ((first, None), (second, old)):
        held = enqueued_by_new(work, 8, seconds=1.5)
        eventually(lambda held=held, dying=dying: ran_by(dying, probe) & set(held), 60, dying.text)
        if heir is not None:
            heir("-c", "4").ready()
        dying.kill_group()
        assert work.ended(held) == {"succeeded": 8}
    assert all("Traceback" not in worker.text() for worker in work.workers), [w.text() for w in work.workers]


def test_back_again_the_old_release_runs_on_the_new_schema(
    work: Bench, release: Path, old: Callable[..., OldWorker], settings: Settings
) -> None:
    migrate(settings)
    new = work.worker("-c", "4").ready()
    dead = [work.app.enqueue("final", {}).id for _ in range(3)]
    assert work.ended(dead) == {"dead": 3}
    tandemq(settings, "pause", "default", "--for", "1h")
    left = enqueued_by_new(work, 20)
    new.signal(15)
    assert new.wait() == 0

    # Old code is content with a schema that is ahead of it.
    old_tandemq(release, settings, "migrate", "--check")
    assert "fault" not in {
        f["level"] for f in json.loads(old_tandemq(release, settings, "doctor", "--json"))["findings"]
    }
    # It does not know of the pause, which docs/upgrade.md says.
    old("-c", "4").ready()
    left += enqueued_by_old(release, settings, 20)
    assert work.ended(left) == {"succeeded": 40}
    old_tandemq(release, settings, "dead", "replay", *dead)
    eventually(lambda: work.statuses(dead) == {"dead": 3} and work.app.get(dead[0]).replays == 1, 60)

    # And forward once more.
    tandemq(settings, "resume", "default")
    work.worker("-c", "4").ready()
    assert work.ended(enqueued_by_old(release, settings, 10)) == {"succeeded": 10}


def test_a_release_that_git_does_not_have_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingRelease, match="unshallow"):
        unpack(tmp_path, "0" * 40)
