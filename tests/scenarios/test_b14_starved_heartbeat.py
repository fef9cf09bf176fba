"""B14: a lease stands as long as the process that holds it lives, and ends at once when that process dies.

Required: a task that holds the interpreter for three leases, so that no thread of its process could renew anything,
is begun once, as are the tasks that wait behind it. A child that dies is noticed by its supervisor: what it held
begins again within two seconds, however long the lease is. Only when the whole worker is dead does it take the lease.
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import redis

from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.sizes import size
from tests.scenarios.truth import T_REC, assert_settled, lease_ends
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

APP = "tests.apps.scenarios_leases:app"
LONG_LEASE_S = 30.0
AT_ONCE_S = 2.0


def test_a_handler_that_holds_the_interpreter_is_not_taken_for_dead(work: Bench, probe: Probe) -> None:
    held_s = 3 * work.settings.lease_s
    workers = [work.worker("-c", "2", app=APP).ready() for _ in range(2)]
    wedged = []
    for n in range(size(2, 5)):
        wedged.append(work.app.enqueue("l.gil", {"seconds": held_s}).id)
        eventually(lambda n=n: len(probe.starts()) > min(n, 1), message=workers[0].text)
    children = [child.pid for worker in workers for child in worker.children()]
    behind = work.ids("noop", 10)

    assert work.ended([*wedged, *behind]) == {"succeeded": len(wedged) + 10}
    probe.assert_once([*wedged, *behind])
    held = [(m.at, e.at) for i in wedged for m, e in zip(probe.marks("start", i), probe.marks("end", i), strict=True)]
    assert all(end - begin >= held_s for begin, end in held), "the interpreter was not held"
    assert children == [child.pid for worker in workers for child in worker.children()]
    for task_id in wedged:
        task = work.app.get(task_id)
        assert task is not None
        assert (task.attempts, task.attempts_log) == (1, ())
    assert_settled(work, probe, [*wedged, *behind])


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("how", size([signal.SIGKILL], [signal.SIGKILL, signal.SIGSEGV]))
def test_a_dead_child_is_noticed_at_once(
    work: Bench, probe: Probe, redis_client: redis.Redis, weather: Weather, how: signal.Signals
) -> None:
    assert work.settings.lease_s == LONG_LEASE_S
    first = work.worker("-c", "4").ready()
    gate = work.folder / "gate"
    ids = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(4)]
    eventually(lambda: len(probe.starts()) == 4, message=first.text)
    second = work.worker("-c", "8").ready()
    wait_until_blocked(redis_client, second)

    (child,) = first.children()
    os.kill(child.pid, how)
    killed = time.time()
    eventually(lambda: set(probe.starts().values()) == {2}, message=first.text)
    assert max(m.at for m in probe.marks("start")) - killed < AT_ONCE_S + weather.slack_s
    assert time.time() - killed < LONG_LEASE_S, "it was the lease that ended them"
    gate.touch()
    assert work.ended(ids) == {"succeeded": 4}
    for task_id in ids:
        task = work.app.get(task_id)
        assert task is not None
        assert [(a.attempt, a.outcome) for a in task.attempts_log] == [(1, "lease_lost")]
        assert task.attempts == 2
    assert_settled(work, probe, ids)


def test_a_dead_worker_is_noticed_after_its_lease_and_not_before(work: Bench, probe: Probe, weather: Weather) -> None:
    first = work.worker("-c", "4", "--name", "first", "--no-reconcile", "--no-mover").ready()
    second = work.worker("-c", "1", "-q", "elsewhere", TANDEMQ_RECONCILE_S="0.2").ready()
    time.sleep(work.settings.lease_s)  # its reconciler would be free to act at once
    gate = work.folder / "gate"
    ids = [work.app.enqueue("hold", {"until": str(gate)}).id for _ in range(4)]
    eventually(lambda: len(probe.starts()) == 4, message=first.text)
    third = work.worker("-c", "4", "--no-reconcile").ready()
    first.kill_group()
    killed, ends = time.time(), lease_ends(work, "first")
    assert ends, "its lease was taken while it lived"

    eventually(lambda: set(probe.starts().values()) == {2}, message=lambda: (second.text(), third.text()))
    again = [m.at for i in ids for m in probe.marks("start", i)[1:]]
    assert min(again) >= ends[0]
    assert max(again) < killed + work.settings.lease_s + T_REC + weather.slack_s
    gate.touch()
    assert work.ended(ids) == {"succeeded": 4}
    work.workers.remove(first)
    assert_settled(work, probe, ids)
