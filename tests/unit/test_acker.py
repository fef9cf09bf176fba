from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tandemq import metrics
from tandemq.core.clock import SystemClock
from tandemq.core.errors import StoreUnavailable
from tandemq.core.lifecycle import Event, Failure, RetryIn, SnoozeIn, Status, Succeed
from tandemq.core.listening import Listeners
from tandemq.core.task import Lease, Level
from tandemq.store.answers import Moved, Settled, Settlement
from tandemq.worker.acker import Acker
from tandemq.worker.arena import Arena, Batch
from tandemq.worker.inbox import Held
from tests.waiting import eventually


class Store:
    """Answers verdicts; ``locked`` rows stay locked, ``away`` is raised, ``poison`` ids are refused for good."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[int], bool]] = []
        self.locked: set[int] = set()
        self.poison: set[int] = set()
        self.away: Exception | None = None

    def finish(self, settlements: Sequence[Settlement], *, closing: Any, worker_id: str, again: bool) -> Settled:
        if self.away is not None:
            raise self.away
        ids = [s.lease.id for s in settlements]
        if self.poison & set(ids):
            raise ValueError("refused")
        self.calls.append((ids, sorted(closing), again))
        moved = [Moved(i, Level("q", 0), "t", Event.SUCCEED, Status.SUCCEEDED) for i in ids if i not in self.locked]
        return Settled(tuple(moved), (), tuple(i for i in ids if i in self.locked))

    def written(self) -> list[int]:
        return [i for ids, _, _ in self.calls for i in ids if i not in self.locked]


class Broker:
    """Takes whatever becomes pending again."""

    def delay(self, level: Level, due: dict[int, int]) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.store, self.arena = Store(), Arena.create()
        self.told: list[tuple[str, int]] = []
        self.acker = Acker(
            self.store,  # type: ignore[arg-type]
            Broker(),  # type: ignore[arg-type]
            worker_id="w",
            clock=SystemClock(),
            on_dead=lambda held, _: self.told.append(("on_dead", held.lease.id)),
            on_answer=self.arena.note_flush,
            on_retry=lambda held: self.told.append(("on_retry", held.lease.id)),
        )
        self.thread = threading.Thread(target=self.acker.run, daemon=True)

    def batch(self, token: int, ids: list[int]) -> Batch:
        batch = self.arena.open(token, ids, 1e12)
        assert batch is not None
        batch.held(ids)
        return batch

    def add(self, batch: Batch, task_id: int) -> None:
        lease = Lease(task_id, "q", 0, "t", "{}", "", 1, 3, 0, 1, batch.token)
        self.acker.add(Held(lease, batch), Succeed())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.acker.close()
    made.store.away, made.store.locked = None, set()
    if made.thread.ident is not None:
        made.thread.join(10)
        assert not made.thread.is_alive()
    made.arena.close()


def test_a_retry_that_the_database_made_a_death_is_counted_as_one_and_told_as_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[str, Any]] = []
    for name in ("dead", "retried"):
        monkeypatch.setattr(metrics, name, lambda counts, name=name: counted.append((name, dict(counts))))
    monkeypatch.setattr(Listeners, "anybody", True)
    batch = bench.batch(7, [1, 2, 3])
    level = Level("q", 0)
    answer = Settled(
        (
            Moved(1, level, "t", Event.BURY, Status.DEAD, None, "retries_exhausted", 4),
            Moved(2, level, "t", Event.RETRY, Status.PENDING, 1, "", 4),
            Moved(3, level, "t", Event.RETRY, Status.PENDING, 1, "", 4),
        )
    )
    monkeypatch.setattr(bench.store, "finish", lambda *_, **__: answer)
    verdicts = [RetryIn(1.0, Failure("E", "x"), max_age_s=5.0), RetryIn(1.0, Failure("E", "x")), SnoozeIn(1.0)]
    for task_id, verdict in enumerate(verdicts, 1):
        bench.acker.add(Held(Lease(task_id, "q", 0, "t", "{}", "", 4, 9, 0, 1, 7), batch), verdict)
    bench.thread.start()
    assert bench.acker.wait_empty(10)

    assert sorted(counted) == [("dead", {("t", "retries_exhausted"): 1}), ("retried", {("t", 4): 1})]
    assert bench.told == [("on_retry", 2), ("on_dead", 1)]


def test_what_comes_during_a_commit_goes_into_the_next_one_together(bench: Bench) -> None:
    batch = bench.batch(7, [1, 2, 3])
    for task_id in (1, 2, 3):
        bench.add(batch, task_id)
    bench.thread.start()
    assert bench.acker.wait_empty(10)
    assert bench.store.calls == [([1, 2, 3], [7], False)]
    assert bench.arena.snapshots() == []


def test_the_claims_row_goes_with_the_last_verdict_of_its_token_only(bench: Bench) -> None:
    batch = bench.batch(7, [1, 2])
    bench.thread.start()
    bench.add(batch, 1)
    assert bench.acker.wait_empty(10)
    bench.add(batch, 2)
    assert bench.acker.wait_empty(10)
    assert bench.store.calls == [([1], [], False), ([2], [7], False)]


def test_a_locked_row_holds_up_nobody_else_and_is_tried_again_on_its_own(bench: Bench) -> None:
    locked, other = bench.batch(7, [1]), bench.batch(8, list(range(10, 40)))
    bench.store.locked = {1}
    bench.add(locked, 1)
    bench.thread.start()
    eventually(lambda: len(bench.store.calls) >= 2)
    for task_id in range(10, 40):
        bench.add(other, task_id)
        eventually(lambda i=task_id: i in bench.store.written(), 10)
    assert all(ids == [1] for ids, _, again in bench.store.calls if again)
    assert not bench.acker.wait_empty(0.05)
    bench.store.locked = set()
    assert bench.acker.wait_empty(10)
    assert bench.store.written().count(1) >= 1
    assert bench.arena.snapshots() == []


def test_results_are_kept_in_order_while_the_database_is_away(bench: Bench) -> None:
    batch = bench.batch(7, [1, 2, 3])
    bench.store.away = StoreUnavailable("away")
    bench.thread.start()
    for task_id in (1, 2, 3):
        bench.add(batch, task_id)
    assert not bench.acker.wait_empty(0.1)
    bench.store.away = None
    assert bench.acker.wait_empty(10)
    assert bench.store.written() == [1, 2, 3]


def test_a_verdict_that_is_refused_for_good_does_not_take_its_neighbours_with_it(bench: Bench) -> None:
    batch = bench.batch(7, [1, 2, 3, 4])
    bench.store.poison = {3}
    for task_id in (1, 2, 3, 4):
        bench.add(batch, task_id)
    for _ in range(2):
        bench.acker.step()
    assert sorted(bench.store.written()) == [1, 2, 4]
    bench.store.poison = set()
    bench.thread.start()
    assert bench.acker.wait_empty(10)
    assert sorted(bench.store.written()) == [1, 2, 3, 4]
