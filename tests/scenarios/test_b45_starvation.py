"""B45: while higher work keeps coming lower work gets its share with ``--fair``, and nothing in strict order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tandemq import NewTask
from tandemq.worker.fair import ONE_OF
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("calm")]
SLOTS, TASK_S = 4, 0.02
LOW = 100
FEED_S = size(5.0, 60.0)
#: Claimed before the first turn of the lower ones, or running: starts that the bound does not speak of.
AHEAD = 60


class Feeder:
    """Enqueues higher work at 110 % of what the worker has been seen to do, until the block ends."""

    def __init__(self, work: Bench, probe: Probe) -> None:
        self._work, self._probe = work, probe
        self.ids: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def push(self, n: int) -> None:
        news = [NewTask("sleep", {"seconds": TASK_S}, priority="high") for _ in range(n)]
        self.ids += [handle.id for handle in self._work.app.enqueue_many(news)]

    def _feed(self) -> None:
        while not self._over.wait(0.1):
            done = len(self._probe.order())
            self.push(max(1, int(1.1 * done) + 4 * AHEAD - len(self.ids)))

    @contextmanager
    def running(self) -> Iterator[None]:
        self.push(4 * AHEAD)
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


def low_tasks(work: Bench) -> list[int]:
    news = [NewTask("sleep", {"seconds": TASK_S}, priority="low") for _ in range(LOW)]
    return [handle.id for handle in work.app.enqueue_many(news)]


def places(probe: Probe, ids: list[int]) -> list[int]:
    """The how-manieth of all starts these were."""
    wanted = set(ids)
    return [place for place, task_id in enumerate(probe.order(), 1) if task_id in wanted]


def test_fair_gives_lower_work_its_share_and_keeps_its_bound(work: Bench, probe: Probe) -> None:
    low, feeder = low_tasks(work), Feeder(work, probe)
    with feeder.running():
        work.worker("-c", str(SLOTS), "--fair").ready()
        eventually(lambda: len(places(probe, low)) == LOW, 60 + FEED_S)
        assert work.app.workers()[0].options == "fair"
    found = places(probe, low)
    late = [(k, place) for k, place in enumerate(found, 1) if place > ONE_OF * k + AHEAD]
    assert late == []  # the k-th has begun when 5 k tasks have
    share = LOW / (found[-1] - found[0] + 1)
    print(f"share {share:.3f}, wait of the last {found[-1]} starts")
    assert 0.9 / ONE_OF < share < 1.5 / ONE_OF
    assert work.ended(low + feeder.ids) == {"succeeded": LOW + len(feeder.ids)}
    probe.assert_once(low + feeder.ids)


def test_strict_order_lets_lower_work_wait_as_long_as_higher_comes(work: Bench, probe: Probe) -> None:
    low, feeder = low_tasks(work), Feeder(work, probe)
    with feeder.running():
        work.worker("-c", str(SLOTS)).ready()
        eventually(probe.order, 60)
        time.sleep(FEED_S)  # the time that the report speaks of
        assert places(probe, low) == []
        assert work.app.workers()[0].options == ""
    assert work.ended(low + feeder.ids) == {"succeeded": LOW + len(feeder.ids)}
    assert places(probe, low)[0] > len(feeder.ids) - AHEAD


def test_long_lower_work_on_all_slots_and_a_worker_kept_free_for_higher(
    work: Bench, probe: Probe, weather: Weather
) -> None:
    """Nothing is stopped for what is more important: a slot is kept free by a queue and a worker of its own."""
    gates = [work.folder / f"go{i}" for i in range(SLOTS)]
    work.worker("-q", "default", "-c", str(SLOTS)).ready()
    long = [work.app.enqueue("hold", {"until": str(gate)}, priority="low").id for gate in gates]
    eventually(lambda: len(places(probe, long)) == SLOTS, 60)
    more = [work.app.enqueue("hold", {"until": str(gates[0])}, priority="low").id for _ in range(2)]
    high = work.ids("noop", 20, priority="high")
    work.worker("-q", "urgent", "-c", "1").ready()
    assert work.ended(work.ids("noop", 1, queue="urgent")) == {"succeeded": 1}

    asked_at = time.time()
    urgent = work.ids("noop", 20, queue="urgent", priority="high")
    assert work.ended(urgent) == {"succeeded": 20}
    assert probe.marks("start", urgent[0])[0].at - asked_at < 0.5 + weather.slack_s
    assert places(probe, high) == []

    gates[1].touch()  # one slot comes free: all that is higher goes first
    assert work.ended(high) == {"succeeded": 20}
    for gate in gates:
        gate.touch()
    assert work.ended(long + more) == {"succeeded": SLOTS + 2}
    assert max(places(probe, high)) < min(places(probe, more))
