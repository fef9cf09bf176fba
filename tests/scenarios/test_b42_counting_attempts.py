"""B42: as many runs as were asked for, not one more and not one less.

Required: a task that always fails with ``max_retries`` of 0, 1, 2, 24 or 299 begins 1, 2, 3, 25 or 300 times and is
then dead with that many attempts, and Python and the command line say so in the same words. A replay gives exactly as
many runs again. A ``max_retries`` that is negative, a text, a fraction, a boolean or a list is refused and nothing is
stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import InvalidTask, RetryPolicy, TandemQ
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import FULL, size
from tests.scenarios.truth import CALM, assert_settled, row_count, sql
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_b:app"
RETRIES = (0, 1, 2, 24, 299)
#: Of the 300 runs of the longest life, so many are taken as done when scaled down: it still passes 255 and 256.
SKIPPED = 0 if FULL else 250
REFUSED: dict[str, Any] = {
    "negative": -1,
    "text": "3",
    "fraction": 2.5,
    "whole fraction": 3.0,
    "boolean": True,
    "list": [3],
    "too many": 1_000_001,
    "huge": 2**63,
}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    """A retry costs a turn of the mover: its pace decides how long 300 runs take."""
    with bench(settings_for(mysql_url, redis_url, **CALM | {"mover_s": 0.02}), tmp_path, probe.environ) as made:
        yield made


def skip(work: Bench, task_id: int) -> None:
    """Pretend that a pending task has had so many attempts already."""
    sql(work, "UPDATE {t}tasks SET attempts = :n WHERE id = :id AND status = 'pending'", n=SKIPPED, id=task_id)


def test_exactly_so_many_runs_and_as_many_again_after_a_replay(work: Bench, probe: Probe) -> None:
    ids = {n: work.app.enqueue("b.fail", {}, max_retries=n).id for n in RETRIES}
    just = {n: work.app.enqueue("b.fail", {"times": n}, max_retries=n) for n in (0, 1, 5)}
    skip(work, ids[299])
    starts = {n: n + 1 for n in RETRIES} | {299: 300 - SKIPPED}
    worker = work.worker("-c", "8", app=APP).ready()

    assert work.ended(list(ids.values()), 90) == {"dead": len(RETRIES)}

    assert {n: handle.result(timeout=60) for n, handle in just.items()} == {n: n + 1 for n in just}
    assert {n: probe.starts()[handle.id] for n, handle in just.items()} == {n: n + 1 for n in just}
    assert {n: probe.starts()[i] for n, i in ids.items()} == starts
    for n, task_id in ids.items():
        task = work.app.get(task_id)
        assert task is not None
        assert (task.attempts, task.max_retries, task.retry_count) == (n + 1, n, n)
        assert (task.dead_reason, task.last_error) == ("retries_exhausted", f"attempt {n + 1}")
        assert [a.attempt for a in task.attempts_log] == list(range(n + 2 - starts[n], n + 2))
        assert f"after {n + 1} of {n + 1} runs" in work.app.why(task_id)
    items = {item["id"]: item for item in tandemq(work.settings, "dead", "list", "--json").json["items"]}
    assert {n: (items[i]["attempts"], items[i]["max_retries"]) for n, i in ids.items()} == {
        n: (n + 1, n) for n in RETRIES
    }
    assert_settled(work, probe, ids.values())

    again = ids if FULL else {n: i for n, i in ids.items() if n < 299}
    assert work.app.dead.replay(again.values()).moved == len(again)
    assert work.ended(list(again.values()), 90) == {"dead": len(again)}

    assert {n: probe.starts()[i] for n, i in again.items()} == {n: 2 * starts[n] for n in again}
    for n, task_id in again.items():
        task = work.app.get(task_id)
        assert task is not None
        assert (task.attempts, task.replays, task.last_error) == (n + 1, 1, f"attempt {n + 1}")
        assert len(task.attempts_log) == 2 * starts[n]
    assert worker.process.poll() is None


def test_a_counter_at_its_very_end_holds_up_nobody(work: Bench, probe: Probe) -> None:
    stuck = work.ids("b.noop", 70)  # more than a worker can hold batches of
    listed = ",".join(map(str, stuck))
    sql(work, f"UPDATE {{t}}tasks SET attempts = 2147483647 WHERE id IN ({listed})")  # as only foreign SQL can
    ids = work.ids("b.noop", 50)
    worker = work.worker("-c", "2", app=APP).ready()
    assert work.ended(ids) == {"succeeded": len(ids)}
    assert all(probe.starts()[task_id] == 1 for task_id in ids)
    assert not set(stuck) & set(probe.starts())
    assert "cannot be claimed" in worker.text()
    assert "Traceback" not in worker.text()
    assert len(worker.text().splitlines()) < 100


def test_bad_values_are_refused_in_python(work: Bench) -> None:
    app = TandemQ(database_url=work.settings.database_url, redis_url=work.settings.redis_url)
    for name, value in REFUSED.items():
        for way in (
            lambda value=value: app.task(name="t", max_retries=value)(lambda: None),
            lambda value=value: RetryPolicy(max_retries=value),
        ):
            with pytest.raises((ValueError, TypeError), match="max_retries"):
                way()
        with pytest.raises(InvalidTask) as refused:
            work.app.enqueue("b.fail", {}, max_retries=value)
        assert refused.value.field == "max_retries", name
        assert repr(value) in str(refused.value), name
    assert row_count(work) == 0


def test_bad_values_are_refused_by_the_command_line(work: Bench) -> None:
    # To JSON, 3.0 is an integer: some languages write all their numbers so.
    refused = [value for name, value in REFUSED.items() if name != "whole fraction"]
    bodies = [{"type": "b.fail", "payload": {}, "max_retries": value} for value in refused]
    good = {"type": "b.fail", "payload": {}, "max_retries": 0}
    null = {"type": "b.fail", "payload": {}, "max_retries": None}  # left out: the default
    lines = "".join(json.dumps(body) + "\n" for body in [*bodies, good, null])
    answer = tandemq(work.settings, "enqueue", "--file", "-", "--keep-going", "--json", stdin=lines, code=1)
    assert (answer.json["bad"], answer.json["stored"]) == (len(refused), 2)
    assert answer.err.count("max_retries") == len(refused)
    assert sql(work, "SELECT max_retries FROM {t}tasks ORDER BY id") == [(0,), (3,)]
    tandemq(work.settings, "enqueue", "--file", "-", stdin=json.dumps(bodies[0]), code=2)
    for text in size(("-1",), ("-1", "2.5", "null")):
        answer = tandemq(work.settings, "enqueue", "b.fail", "{}", f"--max-retries={text}", code=2)
        assert "max" in answer.err
        assert text in answer.err
    assert row_count(work) == 2
