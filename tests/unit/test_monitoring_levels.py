"""Levels without servers: bounded in time and cost, told with their age, and one server without the other."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tandemq.broker.facts import Sample
from tandemq.core.errors import BrokerUnavailable, StoreUnavailable
from tandemq.core.task import Level
from tandemq.monitoring import Installed, Look
from tandemq.monitoring.gauges import GAUGES
from tandemq.monitoring.installed import MAX_NAMES, Shown
from tandemq.series import MAX_SERIES, OTHER
from tandemq.store.facts import Levels
from tandemq.testing import FakeClock
from tests.waiting import eventually

# A look


def test_an_answer_is_good_for_a_second_and_one_that_took_long_for_longer() -> None:
    clock, asked, cost_s = FakeClock(), [0], 0.0

    def ask() -> int:
        asked[0] += 1
        clock.advance(cost_s)
        return asked[0]

    look = Look("x", ask, clock)
    assert look.get() == look.get() == 1
    clock.advance(1.01)
    cost_s = 0.5
    assert look.get() == 2
    clock.advance(9.0)
    assert look.get() == 2
    clock.advance(1.1)
    assert look.get() == 3


def test_many_that_want_to_know_ask_once_and_one_that_hangs_is_waited_for_once() -> None:
    gate, asked = threading.Event(), []

    def ask() -> str:
        asked.append(1)
        gate.wait(30)
        return "at last"

    look = Look("x", ask, FakeClock(), wait_s=0.05)
    answers: list[str | None] = []
    threads = [threading.Thread(target=lambda: answers.append(look.get())) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [None] * 10
    assert asked == [1]
    gate.set()
    assert eventually(look.get) == "at last"


def test_a_look_that_fails_gives_no_old_answer() -> None:
    clock, away = FakeClock(), [False]

    def ask() -> int:
        if away[0]:
            raise StoreUnavailable("gone")
        return 1

    look = Look("x", ask, clock)
    assert look.get() == 1
    away[0] = True
    clock.advance(2)
    assert look.get() is None
    away[0] = False
    clock.advance(2)
    assert look.get() == 1


def test_no_answer_is_good_for_more_than_ten_seconds_however_long_it_took_while_a_scrape_waited() -> None:
    clock, asked = FakeClock(), [0]

    def ask() -> int:
        asked[0] += 1
        clock.advance(1.4)
        return asked[0]

    look = Look("x", ask, clock)
    assert look.get() == 1
    clock.advance(9.9)
    assert look.get() == 1
    clock.advance(0.2)
    assert look.get() == 2


def test_what_many_look_at_is_looked_at_by_each_more_seldom() -> None:
    clock, asked = FakeClock(), [0]

    def ask() -> int:
        asked[0] += 1
        clock.advance(0.02)
        return asked[0]

    look = Look("x", ask, clock, crowd=lambda _: 20)
    assert look.get() == 1
    clock.advance(7.5)
    assert look.get() == 1
    clock.advance(1)
    assert look.get() == 2


def test_while_a_count_takes_long_the_last_one_is_shown_with_its_age_and_both_servers_are_up() -> None:
    gate, store, clock = threading.Event(), Store(dead=3), FakeClock()
    gate.set()

    class Slow(Store):
        def levels_now(self, *, alive_s: float) -> Levels:
            gate.wait(30)
            return store.levels

    installed = Installed(Slow(), Broker(), clock, alive_s=30)  # type: ignore[arg-type]
    installed._levels._wait_s = 0.05

    def shown() -> dict[tuple[str, ...], float]:
        return {(r.name.removeprefix("tandemq_"), *r.labels): r.value for r in installed()}

    assert shown()["levels_age_seconds", "tasks"] == pytest.approx(0, abs=0.01)
    gate.clear()
    clock.advance(20)
    try:
        found = shown()
        assert found["database_up",] == 1
        assert found["dead_tasks",] == 3
        assert found["levels_age_seconds", "tasks"] == pytest.approx(20, abs=0.01)
        assert installed.is_up() == {"database": True, "redis": True}
        clock.advance(300)
        assert ("dead_tasks",) not in shown()
    finally:
        gate.set()


def test_after_an_absence_levels_are_read_anew_at_once() -> None:
    store, clock = Store(dead=1), FakeClock()
    cost_s = 60.0

    class Hung(Store):
        def levels_now(self, *, alive_s: float) -> Levels:
            clock.advance(cost_s)
            return store.levels

    hung = Hung()
    installed = Installed(hung, Broker(), clock, alive_s=30)  # type: ignore[arg-type]
    eventually(lambda: any(r.name == "tandemq_dead_tasks" for r in installed()))
    cost_s = 0.0
    hung.away, store.levels = True, Store(dead=2).levels
    clock.advance(2)
    assert not installed.is_up()["database"]
    hung.away = False
    clock.advance(2)
    eventually(lambda: any((r.name, r.value) == ("tandemq_dead_tasks", 2) for r in installed()))


def test_the_lag_of_an_old_look_does_not_grow() -> None:
    store, broker, clock = Store(), Broker(), FakeClock()

    class Moving(Store):
        def now(self) -> datetime:
            return store.levels.now + timedelta(seconds=clock.monotonic())

    broker.first_ms = {Level("q", 0): (Moving().now().timestamp() + 9) * 1000}
    installed = Installed(Moving(), broker, clock, alive_s=30)  # type: ignore[arg-type]
    ask = installed._ids._ask

    def slowly() -> Any:
        found = ask()
        clock.advance(1)
        return found

    installed._ids._ask = slowly

    def lag_s() -> float:
        return next(r.value for r in installed() if r.name == "tandemq_mover_lag_seconds")

    assert lag_s() == 0
    clock.advance(9.5)
    assert lag_s() == 0  # due for 1.5 s by now, but the look is from before


def test_counters_of_further_names_are_summed_and_no_name_moves() -> None:
    shown = Shown()
    first = [("q", f"t{n:04}", "succeeded", 1) for n in range(MAX_NAMES)]
    assert {r.labels[1] for r in shown.of(first)} == {f"t{n:04}" for n in range(MAX_NAMES)}
    more = [("a", "busy", "dead", 500), ("z", "late", "dead", 7), *first]
    found = {r.labels: r.value for r in shown.of(more)}
    assert found[OTHER, OTHER, "dead"] == 507
    assert found["q", "t0000", "succeeded"] == 1
    assert sum(labels[2] == "succeeded" for labels in found) == MAX_NAMES + 1


# The install


class Store:
    def __init__(self, **changes: Any) -> None:
        self.away = False
        self.levels = Levels(**({
            "now": datetime(2026, 12, 1, 12, tzinfo=UTC), "queues": {}, "dead": 0, "dead_capped": False,
            "oldest_s": {}, "workers": {}, "slots": {}, "paused": frozenset(), "unled_s": {},
        } | changes))  # fmt: skip
        self.counted: list[tuple[str, str, str, int]] = []

    def now(self) -> datetime:
        if self.away:
            raise StoreUnavailable("gone")
        return self.levels.now

    def levels_now(self, *, alive_s: float) -> Levels:
        if self.away:
            raise StoreUnavailable("gone")
        return self.levels

    def outcomes(self, limit: int) -> list[tuple[str, str, str, int]]:
        if self.away:
            raise StoreUnavailable("gone")
        return self.counted[:limit]


class Broker:
    def __init__(self) -> None:
        self.away = False
        self.first_ms: dict[Level, float] = {}

    def ping(self) -> None:
        if self.away:
            raise BrokerUnavailable("gone")

    def queues(self) -> frozenset[str]:
        return frozenset({"q"})

    def levels(self, queue: str) -> frozenset[int]:
        return frozenset({0, 10})

    def depth(self, level: Level) -> int:
        return 5

    def delayed_sample(self, level: Level, size: int) -> Sample:
        first = self.first_ms.get(level)
        return Sample((b"1",), 7, (first,)) if first is not None else Sample()


def readings(store: Store, broker: Broker, clock: FakeClock | None = None) -> dict[tuple[str, ...], float]:
    installed = Installed(store, broker, clock or FakeClock(), alive_s=30)  # type: ignore[arg-type]
    found = {(r.name.removeprefix("tandemq_"), *r.labels): r.value for r in installed()}
    for r in installed():
        assert len(r.labels) == len(GAUGES[r.name].labels)
    return found


def test_either_server_is_read_without_the_other() -> None:
    store, broker = Store(), Broker()
    both = readings(store, broker)
    assert both["database_up",] == both["redis_up",] == 1
    store.away = True
    found = readings(store, broker)
    assert (found["database_up",], found["redis_up",]) == (0, 1)
    assert found["redis_ids", "q", "10", "ready"] == 5
    assert not any(name[0] in {"dead_tasks", "mover_lag_seconds", "task_outcomes"} for name in found)
    store.away, broker.away = False, True
    found = readings(store, broker)
    assert (found["database_up",], found["redis_up",]) == (1, 0)
    assert found["dead_tasks",] == 0
    assert not any(name[0] == "redis_ids" for name in found)


def test_the_movers_lag_is_told_by_the_databases_clock() -> None:
    store, broker, clock = Store(), Broker(), FakeClock()
    now_ms = store.levels.now.timestamp() * 1000
    broker.first_ms = {Level("q", 0): now_ms - 4000, Level("q", 10): now_ms - 9000}
    assert readings(store, broker, clock)["mover_lag_seconds", "q"] == pytest.approx(9, abs=0.01)
    broker.first_ms = {Level("q", 0): now_ms + 60_000}
    assert readings(store, broker, clock)["mover_lag_seconds", "q"] == 0


def test_many_queues_are_folded_into_one() -> None:
    counts = {"ready": 1, "scheduled": 2, "retrying": 0, "running": 0}
    queues = {f"q{n:04}": counts | {"priorities": {"0": counts}} for n in range(1000)}
    found = readings(Store(queues=queues), Broker())
    assert sum(n for name, n in found.items() if name[0] == "open_tasks" and name[3] == "ready") == 1000
    assert found["open_tasks", OTHER, OTHER, "scheduled"] == 2 * (1000 - MAX_SERIES // 4)
    assert sum(name[0] == "open_tasks" for name in found) == MAX_SERIES + 4


def test_counts_that_are_not_exact_are_marked() -> None:
    counts = {"ready": 1, "scheduled": 2, "retrying": 0, "running": 0}
    queues = {"a": counts | {"priorities": {"0": counts}, "capped": True}, "b": counts | {"priorities": {"0": counts}}}
    found = readings(Store(queues=queues, dead=9, dead_capped=True), Broker())
    assert [found["open_tasks_capped", q] for q in "ab"] == [1, 0]
    assert found["dead_tasks_capped",] == 1


def test_what_has_not_happened_yet_is_zero() -> None:
    store = Store()
    store.counted = [("q", "t", "succeeded", 8)]
    found = readings(store, Broker())
    assert found["task_outcomes", "q", "t", "succeeded"] == 8
    assert found["task_outcomes", "q", "t", "dead"] == 0
    assert found["workers", "running"] == 0
