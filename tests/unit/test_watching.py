"""What a worker knows of itself: slots and leases from the shared memory, and whether it is stuck or only idle."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tandemq.core.settings import Settings
from tandemq.reconciler import Report
from tandemq.testing import FakeClock
from tandemq.worker.arena import Arena
from tandemq.worker.leases import LeaseKeeper
from tandemq.worker.options import WorkerOptions
from tandemq.worker.watching import Watch, last_pass


class Up:
    def is_up(self) -> dict[str, bool]:
        return {"database": True, "redis": True}


class Keeper:
    answering_since: float | None = 0.0
    margin_s: float | None = None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def child(clock: FakeClock) -> Iterator[Any]:
    made = SimpleNamespace(arena=Arena.create(), ready=True, told_to_drain=False, started=clock.monotonic())
    yield made
    made.arena.close()


def watch_of(child: Any, clock: FakeClock, keeper: Any = None) -> Watch:
    return Watch(
        lambda: [child], {}, cast(Any, keeper or Keeper()), settings=Settings(), options=WorkerOptions(slots=4),
        clock=clock, installed=cast(Any, Up()),
    )  # fmt: skip


def values(watch: Watch) -> dict[tuple[str, ...], float]:
    return {(r.name.removeprefix("tandemq_"), *r.labels): r.value for r in watch()}


def test_slots_are_busy_while_their_tasks_have_begun(child: Any, clock: FakeClock) -> None:
    watch = watch_of(child, clock)
    batch = child.arena.open(7, [1, 2, 3], 1e12)
    batch.held([1, 2, 3])
    assert values(watch)["slots", "busy"] == 0
    batch.begin(1, clock.monotonic(), None)
    batch.begin(2, clock.monotonic(), None)
    assert (values(watch)["slots", "busy"], values(watch)["slots", "free"]) == (2, 2)
    batch.end(1, clock.monotonic())
    assert values(watch)["slots", "busy"] == 1


def test_a_child_that_looks_for_no_work_is_late_and_then_stuck(child: Any, clock: FakeClock) -> None:
    watch = watch_of(child, clock)
    child.arena.note_fetch(clock.monotonic())
    clock.advance(19)
    assert (watch.not_ready(), watch.state) == ([], "running")
    clock.advance(2)
    assert watch.not_ready() == ["a child has not looked for work for 21 s"]
    assert watch.state == "running"
    clock.advance(45)
    assert watch.state == "stuck"
    child.arena.note_fetch(clock.monotonic())
    assert watch.state == "running"


def test_without_the_database_nobody_can_look_for_work(child: Any, clock: FakeClock) -> None:
    keeper = Keeper()
    watch = watch_of(child, clock, keeper)
    child.arena.note_fetch(clock.monotonic())
    clock.advance(600)
    keeper.answering_since = None
    assert watch.state == "running"
    keeper.answering_since = clock.monotonic()  # just back: the child has to have time
    assert watch.not_ready() == []
    clock.advance(30)
    assert watch.not_ready() != []


def test_a_child_that_stops_or_is_gone_is_not_waited_for(child: Any, clock: FakeClock) -> None:
    watch = watch_of(child, clock)
    child.told_to_drain = True
    clock.advance(600)
    assert watch.state == "running"
    child.told_to_drain, child.ready = False, False
    assert watch.state == "running"
    assert watch.not_ready() == ["no child process is ready"]


def test_the_margin_is_the_least_of_the_last_minute(child: Any, clock: FakeClock) -> None:
    class Renewing:
        def renew(self, tokens: Any, **_: Any) -> set[int]:
            return set(tokens)

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: set()

    child.ready = False  # so no record is written
    child.asked_to_stop = lambda *_: None
    settings = Settings(lease_s=30.0)
    keeper = LeaseKeeper(
        cast(Any, Renewing()), lambda: [child], settings=settings, worker_id="w", name="w", options=WorkerOptions(),
        clock=clock, state=lambda: "running",
    )  # fmt: skip
    assert keeper.margin_s is None
    child.arena.open(7, [1], clock.monotonic() + 29.0).held([1])
    clock.advance(5)
    keeper.step()
    assert keeper.margin_s == pytest.approx(25)
    clock.advance(22)
    keeper.step()
    assert keeper.margin_s == pytest.approx(8)
    clock.advance(5)
    keeper.step()
    assert keeper.margin_s == pytest.approx(8)
    clock.advance(61)
    assert keeper.margin_s is None


def test_a_reconciler_is_told_of_while_it_leads(clock: FakeClock) -> None:
    reconciler: Any = SimpleNamespace(last_pass_at=None, last_report=Report(missing=3, repushed=2))
    read = last_pass(reconciler, clock)
    assert list(read()) == []
    reconciler.last_pass_at = clock.monotonic()
    clock.advance(4)
    found = {(r.name, *r.labels): r.value for r in read()}
    assert found["tandemq_reconciler_pass_age_seconds",] == 4
    assert found["tandemq_reconciler_drift", "repushed"] == 2
