"""B19: a task that kills its process is buried after its allowed attempts, and nobody else pays for it.

Required: however the process dies (killed, as by the kernel when memory is short, a fault in C code, an exit), each
death costs the task one attempt, so that no more than ``max_retries`` + 1 processes die; then it is dead with the
reason ``lease_lost``, and can be replayed. All other tasks succeed, and lose an attempt only where they were in the
middle of running when their process died: not while they waited, and not when they had ended but were not yet
recorded. A task that asks for too much memory is an ordinary failure; one that keeps memory costs nobody anything.
"""

from __future__ import annotations

import itertools
import time

import psutil
import pytest

from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import SLACK, T_REC, assert_settled
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_leases:app"
RETRIES = 2
SLOTS = 4
NORMAL = 50
#: Between the last line of a handler and the mark that it has ended, and between the poison's mark and its death.
MOMENT_S = 0.1


def lost_attempts(work: Bench, task_id: int) -> list[int]:
    """The numbers of the attempts that it lost with its process."""
    task = work.app.get(task_id)
    assert task is not None
    return [a.attempt for a in task.attempts_log if a.outcome == "lease_lost"]


def in_the_middle(probe: Probe, task_id: int, lost: list[int], deaths: dict[int, float], moment_s: float) -> int:
    """At how many deaths (process -> instant) a handler of this task was running in that process.

    A lost attempt that has not even noted its start had just been begun: it is one more.
    """
    starts, ends = probe.marks("start", task_id), probe.marks("end", task_id)
    found = len(set(lost) - {m.attempt for m in starts})
    for pid, died in deaths.items():
        begun = [m for m in starts if m.pid == pid]
        over = [m for m in ends if m.pid == pid and m.at < died - moment_s]
        found += len(begun) > len(over)
    return found


@pytest.mark.parametrize("how", size(["kill9", "exit 0"], ["kill9", "segfault", "abort", "exit 0", "exit 1"]))
def test_a_task_that_kills_its_process(work: Bench, probe: Probe, weather: Weather, how: str) -> None:
    workers = [work.worker("-c", f"{SLOTS}", app=APP).ready() for _ in range(2)]
    normal = [work.app.enqueue("sleep", {"seconds": 0.1}, max_retries=3).id for _ in range(NORMAL // 2)]
    poison = work.app.enqueue("l.die", {"how": how}, max_retries=RETRIES, backoff=[0.05])
    normal += [work.app.enqueue("sleep", {"seconds": 0.1}, max_retries=3).id for _ in range(NORMAL // 2)]

    assert work.ended([*normal, poison.id]) == {"succeeded": NORMAL, "dead": 1}
    task = work.app.get(poison.id)
    assert task is not None
    assert (task.dead_reason, task.attempts) == ("lease_lost", RETRIES + 1)
    assert [(a.attempt, a.outcome, a.error_type) for a in task.attempts_log] == [
        (n, "lease_lost", "ProcessLost") for n in range(1, RETRIES + 2)
    ]
    killed = probe.marks("start", poison.id)
    deaths = {m.pid: m.at for m in killed}
    assert len(deaths) == RETRIES + 1
    assert len(probe.pids()) <= len(workers) + RETRIES + 1, "more processes have died than the poison killed"
    assert sum(w.text().count(" died (exit code ") for w in workers) == RETRIES + 1
    between = [later.at - earlier.at for earlier, later in itertools.pairwise(killed)]
    assert max(between) < T_REC + SLACK + weather.slack_s

    lost = {i: lost_attempts(work, i) for i in normal}
    assert sum(map(len, lost.values())) <= len(deaths) * (SLOTS - 1), lost
    moment_s = MOMENT_S + weather.slack_s
    too_many = {i: n for i, n in lost.items() if len(n) > in_the_middle(probe, i, n, deaths, moment_s)}
    assert not too_many, f"innocent, and yet they lost these attempts: {too_many}"

    probe.path.with_name(f"{probe.path.name}.mended").touch()
    assert work.app.dead.replay([poison.id]).moved == 1
    assert work.ended([poison.id]) == {"succeeded": 1}
    task = work.app.get(poison.id)
    assert task is not None
    assert (task.attempts, task.replays) == (1, 1)
    assert_settled(work, probe, [*normal, poison.id])


def test_who_had_ended_and_who_waited_does_not_pay(work: Bench, probe: Probe) -> None:
    """The results of tasks that have ended are held back until the poison acts; others wait behind a full house."""
    worker = work.worker("-c", "3", app=APP, TANDEMQ_CRASH="finish.before_commit:1:sleep:300").ready()
    gate, later = work.folder / "gate", work.folder / "later"

    def running() -> int:
        return work.app.enqueue("l.late", {"gate": str(later), "then": "done"}, backoff=[0.05]).id

    poison = work.app.enqueue("l.die", {"how": "kill9", "gate": str(gate)}, max_retries=0).id
    in_the_middle = [running()]
    eventually(lambda: len(probe.starts()) == 2, message=worker.text)
    ended = work.ids("noop", 20, max_retries=1)
    eventually(lambda: set(probe.ends()) == set(ended), message=worker.text)
    in_the_middle.append(running())
    eventually(lambda: len(probe.starts()) == 23, message=worker.text)  # also: the last end is in the shared memory
    waiting = work.ids("noop", 5, max_retries=1)
    time.sleep(0.2)
    gate.touch()

    every = [poison, *in_the_middle, *ended, *waiting]
    assert work.ended(every) == {"dead": 1, "succeeded": 27}
    logs = {}
    for task_id in every:
        task = work.app.get(task_id)
        assert task is not None
        logs[task_id] = (task.attempts, [a.outcome for a in task.attempts_log])
    assert logs == {
        poison: (1, ["lease_lost"]),
        **dict.fromkeys(in_the_middle, (2, ["lease_lost"])),
        **dict.fromkeys(ended, (1, ["interrupted"])),
        **dict.fromkeys(waiting, (1, [])),
    }
    once, twice = [poison, *waiting], [*in_the_middle, *ended]
    assert dict(probe.starts()) == {**dict.fromkeys(once, 1), **dict.fromkeys(twice, 2)}


def test_a_task_that_wants_more_memory_than_there_is(work: Bench, probe: Probe) -> None:
    worker = work.worker("-c", "2", app=APP).ready()
    (child,) = worker.children()
    room = child.memory_info().vms + (256 << 20)
    child.rlimit(psutil.RLIMIT_AS, (room, room))
    greedy = work.app.enqueue("l.greedy", {"megabytes": 1024}, max_retries=RETRIES, backoff=[0.05])
    normal = work.ids("noop", NORMAL)

    assert work.ended([greedy.id, *normal]) == {"dead": 1, "succeeded": NORMAL}
    task = work.app.get(greedy.id)
    assert task is not None
    assert (task.dead_reason, task.error_type, task.attempts) == ("retries_exhausted", "MemoryError", RETRIES + 1)
    assert probe.pids() == {child.pid}
    assert {probe.starts()[i] for i in normal} == {1}
    assert_settled(work, probe, [greedy.id, *normal])


def test_a_task_that_keeps_memory_has_its_process_replaced_in_order(work: Bench, probe: Probe) -> None:
    worker = work.worker("-c", "2", "--max-memory", "150", app=APP).ready()
    leaking = [work.app.enqueue("l.leak", {"megabytes": 60}).id for _ in range(6)]
    normal = [work.app.enqueue("sleep", {"seconds": 0.02}).id for _ in range(NORMAL)]

    assert work.ended([*leaking, *normal]) == {"succeeded": NORMAL + 6}
    probe.assert_once([*leaking, *normal])
    assert len(probe.pids()) >= 2, "nothing was replaced"
    assert " died " not in worker.text()
    assert_settled(work, probe, [*leaking, *normal])
