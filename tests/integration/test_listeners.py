"""Listeners in real workers: what they hear of tasks that end here, with their process, or without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.waiting import eventually
from tests.workers import Bench, Worker, bench

APP = "tests.apps.told:app"


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    settings = settings_for(mysql_url, redis_url, mover_s=0.05, reconcile_s=0.5, unknown_task_s=1)
    with bench(settings, tmp_path, probe.environ) as made:
        for task in list(made.app.registry):  # a producer that knows no handlers
            del made.app.registry._tasks[task.name]
        yield made


def heard(probe: Probe, task_id: int) -> list[tuple[str, int]]:
    """What was told of one task, with the attempt, in order."""
    return [(mark.what, mark.attempt) for mark in probe.marks(task_id=task_id)]


def until_heard(probe: Probe, worker: Worker, task_id: int, told: list[tuple[str, int]]) -> None:
    def look() -> bool:
        assert heard(probe, task_id) == told
        return True

    eventually(look, 60, worker.text)


def test_each_end_of_an_attempt_is_told_once_and_in_its_thread(work: Bench, probe: Probe) -> None:
    flaky = work.app.enqueue("flaky", {"fails": 1}, max_retries=2).id
    lost = work.app.enqueue("flaky", {"fails": 9}, max_retries=1).id
    final = work.app.enqueue("final", {}).id
    misfit = work.app.enqueue("typed", {"n": "5"}).id
    old = work.app.enqueue("old", {}).id
    late = work.app.enqueue("quick", {"n": 1}, expires=0.001).id
    unknown = work.app.enqueue("nobody.knows", {}).id
    unserved = work.app.enqueue("quick", {"n": 1}, queue="unserved", expires=0.2).id  # the reconciler finds it
    worker = work.worker("-c", "2", app=APP).ready()

    until_heard(
        probe, worker, flaky,
        [("before_attempt/-/2/slot", 1), ("on_retry/OSError/2/hooks", 1),
         ("before_attempt/-/2/slot", 2), ("on_success/-/2/slot", 2)],
    )  # fmt: skip
    until_heard(
        probe, worker, lost,
        [("before_attempt/-/1/slot", 1), ("on_retry/OSError/1/hooks", 1), ("before_attempt/-/1/slot", 2),
         ("on_failure/OSError/1/hooks", 2), ("on_dead_letter/OSError/1/hooks", 2)],
    )  # fmt: skip
    for task_id, raised in ((final, "NonRetryable"), (misfit, "ValidationFailed"), (old, "OSError")):
        until_heard(
            probe, worker, task_id,
            [("before_attempt/-/3/slot", 1), (f"on_failure/{raised}/3/hooks", 1),
             (f"on_dead_letter/{raised}/3/hooks", 1)],
        )  # fmt: skip
    for task_id in (late, unknown, unserved):
        until_heard(probe, worker, task_id, [("on_dead_letter/-/3/hooks", 0)])


def test_a_death_with_the_process_is_told_by_another_child(work: Bench, probe: Probe) -> None:
    poison = work.app.enqueue("poison", {}, max_retries=0).id
    worker = work.worker("-c", "1", app=APP).ready()

    until_heard(
        probe, worker, poison,
        [("before_attempt/-/0/slot", 1), ("on_failure/-/0/hooks", 1), ("on_dead_letter/-/0/hooks", 1)],
    )  # fmt: skip


def test_slow_listeners_hold_up_neither_other_records_nor_their_own(work: Bench, probe: Probe) -> None:
    worker = work.worker("-c", "3", app=APP, TOLD_DAWDLE_S="300").ready()
    # The first occupies the thread of the hooks with its on_retry, the second a slot with its on_success.
    slow = [work.app.enqueue("dawdling", {"n": n}).id for n in (0, 1)]
    quick = [h.id for h in work.app.enqueue_many([NewTask("quick", {"n": n}) for n in range(300)])]
    quick += [h.id for h in work.app.enqueue_many([NewTask("flaky", {"fails": 1}, backoff=[0.05]) for _ in range(20)])]

    assert work.ended(slow) == {"succeeded": 2}
    assert work.ended(quick) == {"succeeded": 320}
    eventually(lambda: len(probe.marks("dawdling")) == 3, 60, worker.text)  # of the first one's success, too
    assert probe.marks("dawdled") == []
    assert not [m for m in probe.marks("on_retry/OSError/3/hooks") if m.task_id in quick]  # their turn has not come
