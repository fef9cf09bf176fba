"""B23: forks and threads share an application, never a connection.

Required: a task that forks, by os.fork or multiprocessing, whatever the child does (ends in any way, closes all it can
find, uses the application), leaves its worker as it was: no answer of another's query, no protocol error, one result
per task. One application object serves eight threads, and goes on serving on both sides of a fork.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import assert_settled, row_count, sql
from tests.waiting import eventually
from tests.workers import ROOT, Bench, environment

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.forks:app"
THREADS, EACH = 8, size(100, 500)
CHILDREN = size(2, 8)
#: How the child ends: what its parent sees.
WAYS = {
    "_exit": 7, "exit": 7, "raise": 1, "return": 0, "close": 7, "dispose": 7, "query": 7, "enqueue": 7,
}  # fmt: skip


def assert_payloads(work: Bench, told: dict[int, tuple[str, int]]) -> None:
    """Each id that an enqueue returned is the row of that very call."""
    rows = {i: json.loads(payload) for i, payload in sql(work, "SELECT id, payload FROM {t}tasks")}
    wrong = {i: (rows.get(i), [who, n]) for i, (who, n) in told.items() if rows.get(i) != {"who": who, "n": n}}
    assert not wrong, list(wrong.items())[:5]


def test_eight_threads_share_one_application(work: Bench) -> None:
    told: dict[int, tuple[str, int]] = {}
    begin = threading.Barrier(THREADS)

    def run(who: str) -> None:
        begin.wait()
        for n in range(EACH):
            task_id = work.app.enqueue("tell", {"who": who, "n": n}).id
            told[task_id] = (who, n)
            found = work.app.get(task_id)
            assert found is not None
            assert found.id == task_id

    threads = [threading.Thread(target=run, args=(f"thread{i}",)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert row_count(work) == len(told) == THREADS * EACH
    assert_payloads(work, told)


def test_an_application_that_was_used_before_a_fork_serves_on_both_sides(work: Bench) -> None:
    """As under a web server that loads the application, and perhaps uses it, before it forks its workers."""
    arguments = [str(CHILDREN), str(THREADS // 2), str(EACH // 4)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.apps.forks", *arguments],
        cwd=ROOT, env=environment(work.settings), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    told = {int(i): (who, n) for line in lines for i, (who, n) in line.items()}
    assert len(lines) == CHILDREN + 1
    assert row_count(work) == len(told) + 1 == (CHILDREN + 1) * (THREADS // 2) * (EACH // 4) + 1
    assert_payloads(work, told)


def test_handlers_that_fork_leave_their_worker_as_it_was(work: Bench, probe: Probe) -> None:
    """Leases are renewed every second while handlers fork; tasks that do not fork run beside them."""
    forking = [
        (work.app.enqueue(kind, {"how": how}, max_retries=0), how, code)
        for _ in range(size(2, 20))
        for kind in ("forks", "aforks", "multiprocesses")
        for how, code in WAYS.items()
    ]
    plain = {work.app.enqueue("tell", {"who": "plain", "n": n}).id: f"plain {n}" for n in range(size(40, 400))}
    worker = work.worker("-c", "4", app=APP, PYTHONWARNINGS="always")
    ids = [handle.id for handle, _, _ in forking]
    ended = work.ended([*ids, *plain])
    assert ended == {"succeeded": len(ids) + len(plain)}, worker.text()[-3000:]

    results = {task.id: json.loads(task.result or "null") for task in tasks_of(work, [*ids, *plain])}
    assert {h.id: results[h.id] for h, _, _ in forking} == {h.id: {"how": w, "code": c} for h, w, c in forking}
    assert {i: results[i] for i in plain} == plain
    more = [i for (i,) in sql(work, "SELECT id FROM {t}tasks WHERE payload LIKE '%fork%' AND task_type = 'tell'")]
    assert len(more) == 3 * size(2, 20)
    assert work.ended(more) == {"succeeded": len(more)}

    own = {m.pid for m in probe.marks("end")}
    assert len(own) == 1, f"a child of a handler went on as a worker, or the worker was replaced: {own}"
    eventually(lambda: all(not child.children() for child in worker.children()), message="a fork lives on")
    assert_settled(work, probe, [*ids, *plain, *more])
    assert "Warning" not in worker.text(), worker.text()[-3000:]


def tasks_of(work: Bench, ids: list[int]) -> list[Any]:
    """The tasks, in the order of their ids."""
    return [work.app.get(task_id) for task_id in ids]
