"""Three movers and three reconcilers as real threads on real servers, all at work at once, while Redis is flushed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest
import redis

import tandemq.broker
import tandemq.store
from tandemq.broker.protocol import Broker
from tandemq.core import ids
from tandemq.core.clock import SystemClock
from tandemq.core.lifecycle import Succeed
from tandemq.core.settings import Settings
from tandemq.core.task import Level, NewRow
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.service import Loop
from tandemq.store.answers import NotDue, Settlement
from tandemq.store.protocol import Store
from tests import recipes
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)

LEVEL = Level("default", 0)
TASKS = 3000


class Workers:
    """Threads that pop, claim and finish, and count what they began."""

    def __init__(self, store: Store, broker: Broker, n: int) -> None:
        self.store, self.broker = store, broker
        self.began: Counter[int] = Counter()
        self.early: list[NotDue] = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(f"worker-{k}",)) for k in range(n)]

    def start(self) -> None:
        """All of them."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """And wait."""
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, name: str) -> None:
        while not self.over.is_set():
            popped = self.broker.pop([LEVEL], limit=50, wait_s=0.2)
            if not popped.ids:
                continue
            token = ids.lease_token()
            claimed = self.store.claim(
                popped.ids, token=token, worker_id=name, lease_s=60, free=50, known=None, unknown_task_s=60
            )
            with self._lock:
                self.began.update(lease.id for lease in claimed.leases)
                self.early += claimed.not_due
            if claimed.leases:
                done = [Settlement(lease, Succeed()) for lease in claimed.leases]
                self.store.finish(done, closing=[token], worker_id=name)


@pytest.fixture
def settings(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Settings:
    return settings_for(mysql_url, redis_url, reconcile_s=0.3, mover_s=0.05)


@pytest.fixture
def workers(settings: Settings) -> Iterator[Workers]:
    store, broker = tandemq.store.connect(settings), tandemq.broker.connect(settings, SystemClock())
    made = Workers(store, broker, 4)
    yield made
    made.stop()
    broker.close()
    store.close()


def test_every_task_runs_once_none_early_and_nothing_is_left_in_redis(settings: Settings, workers: Workers) -> None:
    """Red under: two healers that harm each other (a copy that runs twice, a list emptied by both, an id lost)."""
    store, broker, clock = workers.store, workers.broker, SystemClock()
    raw = redis.Redis.from_url(recipes.administrator(settings.redis_url))
    loops = []
    for k in range(3):
        holder, rng = f"healer-{k}", Random(k)
        loops.append(Loop(Mover(store, broker, clock, holder, settings), clock, rng, "mover"))
        reconciler = Reconciler(store, broker, clock, rng, settings, holder, lead=False)
        loops.append(Loop(reconciler, clock, rng, "reconciler"))
    for at in range(0, TASKS, 1000):
        delay_s = at / 1000
        rows = [NewRow("noop", "{}", LEVEL.queue, LEVEL.priority, 3, delay_s=delay_s)] * 1000
        done = store.insert(rows)
        later = {d.id: d.due_ms for d in done if d.due_ms is not None}
        broker.delay(LEVEL, later)
        broker.push(LEVEL, [d.id for d in done if d.due_ms is None])

    for loop in loops:
        loop.start()
    workers.start()
    for share in (0.1, 0.4, 0.8):
        eventually(lambda share=share: len(workers.began) >= share * TASKS, 90, lambda: len(workers.began))
        raw.flushall()
    eventually(lambda: len(workers.began) == TASKS, 90, lambda: len(workers.began))
    eventually(lambda: broker.depth(LEVEL) + broker.delayed(LEVEL) == 0 and not store.busy([LEVEL.queue]), 60)
    assert all(loop.stop(30) for loop in loops)

    assert set(workers.began.values()) == {1}
    assert workers.early == []
