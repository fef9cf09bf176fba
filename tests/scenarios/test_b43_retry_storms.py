"""B43: tasks that fail together do not come back together, and no attempt number breaks the delay.

Required: of a thousand tasks that fail in the same second no slot of 100 ms gets more than a tenth back, none comes
before the smallest delay that its policy allows, and none after the cap. It holds whoever ends the attempt: the worker,
or the reconciler that finds a thousand lost leases in one pass. A delay exists for every attempt number, and a fixed
seed gives the same ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import pytest

from tandemq import Constant, Exponential, Linear, NewTask, RetryPolicy
from tandemq.core.codec import encode
from tandemq.core.retry import MAX_DELAY_S, backoff_spec
from tandemq.core.settings import Settings
from tandemq.testing import FakeClock
from tests.apps.storms import BASE_S, CAP_S, JITTER
from tests.healing import World, open_world
from tests.scenarios.truth import sql
from tests.waiting import eventually
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

TASKS = 1_000
SLOT_S, MOST = 0.1, 0.1
#: Runs that a task has begun, and the delay that its failure earns before jitter.
DELAYS = {1: 2.0, 2: 4.0, 4: 16.0, 5: 20.0, 32: 20.0, 64: 20.0, 1_024: 20.0, 10_000: 20.0, 60_000: 20.0}
OPTIONS = encode({"backoff": backoff_spec(Exponential(BASE_S, 2.0, CAP_S)), "jitter": JITTER}, "options")


def fullest_slot(times_s: Iterable[float]) -> float:
    """The share of the slot of 100 ms that holds most."""
    slots = Counter(int(at / SLOT_S) for at in times_s)
    return max(slots.values()) / slots.total()


def test_a_thousand_tasks_that_fail_in_a_worker_come_back_apart(work: Bench) -> None:
    """Without a mover nothing comes back, so that every row tells its first delay."""
    work.app.enqueue_many([NewTask("storm", {"n": n}, max_retries=9) for n in range(TASKS)])
    worker = work.worker("-c", "32", "--no-mover", "--no-reconcile", app="tests.apps.storms:app")
    delay = "TIMESTAMPDIFF(MICROSECOND, t.updated_at, t.run_at) / 1000000"
    at = "TIMESTAMPDIFF(MICROSECOND, '2026-01-01', t.run_at) / 1000000"
    failed = f"SELECT {delay}, {at} FROM {{t}}tasks t JOIN {{t}}task_attempts a ON a.task_id = t.id"
    eventually(lambda: len(sql(work, failed)) == TASKS, 120, worker.text, every_s=0.2)

    rows = [(float(d), float(t)) for d, t in sql(work, failed)]
    delays = [d for d, _ in rows]
    assert fullest_slot(t for _, t in rows) <= MOST
    assert fullest_slot(delays) <= MOST, "it is the delays that are spread, not only the failures"
    assert BASE_S * (1 - JITTER) <= min(delays) <= max(delays) <= BASE_S * (1 + JITTER)


@pytest.fixture
def world(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Iterator[World]:
    made = open_world(settings_for(mysql_url, redis_url), FakeClock(), real=True)
    yield made
    made.close()


def test_a_thousand_leases_that_end_in_one_pass_come_back_apart(world: World) -> None:
    """By the clock in the test's hand they fail in the same instant. Attempts of any number are among them."""
    ids: dict[int, list[int]] = {}
    for begun in DELAYS:
        ids[begun] = world.insert(TASKS if begun == 1 else 40, max_retries=100_000, options=OPTIONS)
        world.sql(
            "UPDATE {t}tasks SET attempts = :n WHERE id BETWEEN :a AND :b",
            n=begun - 1,
            a=ids[begun][0],
            b=ids[begun][-1],
        )
    reconciler = world.reconciler()
    for some in ids.values():
        for at in range(0, len(some), 100):
            world.claim(some[at : at + 100])
    world.arm(reconciler)
    world.clock.advance(1)
    failed_at = world.clock.now().timestamp()

    assert reconciler.run_once(looks=1).retried == sum(map(len, ids.values()))

    for begun, base in DELAYS.items():
        delays = [due(world, task_id).timestamp() - failed_at for task_id in ids[begun]]
        assert base * (1 - JITTER) - 0.001 <= min(delays), begun
        assert max(delays) <= min(base * (1 + JITTER), CAP_S) + 0.001, begun
        assert fullest_slot(delays) <= MOST or begun != 1, begun
        assert max(Counter(delays).values()) <= 2, f"{begun}: together at the cap"


def due(world: World, task_id: int) -> Any:
    """When the task may begin again."""
    task = world.store.get(task_id)
    assert task is not None
    return task.run_at


BACKOFFS = [
    Exponential(2.0, 2.0, 20.0),
    Exponential(0.0),
    Exponential(5.0, 2.0, 0.0),
    Exponential(0.1, 1.5, 7.25),
    Exponential(1e-300, 10.0, 1e300),
    Linear(0.0, 0.0, 0.0),
    Linear(1.5, 0.5, 20.0),
    Constant(0.0),
    Constant(2.5),
]


@pytest.mark.parametrize("jitter", [0, 0.2, 1])
@pytest.mark.parametrize("backoff", BACKOFFS, ids=str)
def test_every_attempt_number_has_a_delay_within_its_bounds(backoff: Any, jitter: float) -> None:
    policy, rng = RetryPolicy(backoff=backoff, jitter=jitter), Random(43)
    cap = min(getattr(backoff, "cap", MAX_DELAY_S), MAX_DELAY_S)

    for attempt in range(1, 10_001):
        base = min(backoff(attempt), MAX_DELAY_S)
        delay = policy.delay(attempt, rng)
        assert base * (1 - jitter) <= delay <= min(base * (1 + jitter), cap), attempt


def test_a_fixed_seed_gives_the_same_delays() -> None:
    policy = RetryPolicy(backoff=Exponential(BASE_S, 2.0, CAP_S), jitter=JITTER)

    def draw(seed: int) -> list[float]:
        rng = Random(seed)
        return [policy.delay(attempt, rng) for attempt in range(1, 101)]

    assert draw(43) == draw(43) != draw(44)
