"""Handlers that take ``tx``: which they are, what the executor does with their transaction, a run without a worker."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import sqlalchemy as sa

from tandemq import IN_TRANSACTION, TandemQ, TaskHandler
from tandemq import registry as reg
from tandemq.core.clock import SystemClock
from tandemq.core.errors import (
    ConfigurationError,
    LeaseLost,
    Snooze,
    StoreUnavailable,
    StoreUnknown,
    ValidationFailed,
)
from tandemq.core.lifecycle import Lost, Raised, Recorded, Snoozed, TimedOut
from tandemq.core.task import Lease
from tandemq.testing import run_until_idle
from tandemq.worker.executor import Executor

if TYPE_CHECKING:
    from sqlalchemy import Connection


class FakeTransaction:
    """Remembers what is done with it."""

    connection = "the connection"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[Any] = []

    def succeed(self, lease: Lease, result: str | None, note: str = "") -> None:
        self.calls.append((lease.id, result, note))
        if self.error is not None:
            raise self.error

    def close(self, *, broken: bool = False) -> None:
        self.calls.append("broken" if broken else "closed")


def task_of(fn: Any, **options: Any) -> reg.RegisteredTask:
    return reg.RegisteredTask.of(fn, reg.TaskOptions(name="t", **options))


def run(fn: Any, tx: FakeTransaction, payload: str = "{}", limit_s: float | None = None) -> Any:
    registry = reg.Registry()
    registry.add(task_of(fn))
    executor = Executor(
        registry, clock=SystemClock(), rng=random.Random(1), max_result_bytes=100, transaction=lambda _: tx
    )
    try:
        return executor.run(Lease(1, "default", 0, "t", payload, "", 1, 3, 0, 1, 99), lambda: False, limit_s)
    finally:
        executor.stop()


def bare(n: int, tx): ...


def annotated(n: int, tx: Connection): ...


def dotted(n: int, tx: sa.Connection): ...


def defaulted(n: int, tx: Any = IN_TRANSACTION): ...


def chain_of_blocks(n: int, tx: str): ...


def without(n: int): ...


@pytest.mark.parametrize(
    ("fn", "takes"),
    [(bare, True), (annotated, True), (dotted, True), (defaulted, True), (chain_of_blocks, False), (without, False)],
)
def test_a_tx_is_the_transaction_unless_it_is_annotated_as_something_else(fn: Any, takes: bool) -> None:
    assert task_of(fn).takes_tx is takes


def test_an_evaluated_annotation_counts_too() -> None:
    def fn(tx): ...

    fn.__annotations__["tx"] = sa.Connection
    assert task_of(fn).takes_tx


def test_to_an_enqueue_the_parameter_does_not_exist() -> None:
    task = task_of(annotated)
    assert task.bind(5) == {"n": 5}
    with pytest.raises(TypeError, match="tx"):
        task.bind(5, tx="mine")
    assert task_of(chain_of_blocks).bind(5, "0xff") == {"n": 5, "tx": "0xff"}


def test_an_async_handler_cannot_have_it() -> None:
    async def fn(tx): ...

    with pytest.raises(ConfigurationError, match=r"async and takes tx.*plain def"):
        task_of(fn)


def test_called_without_a_worker_it_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="pass tx=connection"):
        IN_TRANSACTION.execute("SELECT 1")


def test_the_success_is_recorded_by_the_transaction() -> None:
    tx = FakeTransaction()
    assert run(lambda tx: {"got": tx}, tx) == Recorded()
    assert tx.calls == [(1, '{"got":"the connection"}', ""), "closed"]


def test_a_handler_class_may_take_it_too() -> None:
    class Pay(TaskHandler):
        name = "t"

        def process(self, payload: dict[str, Any], tx: Any = IN_TRANSACTION) -> Any:  # type: ignore[override]
            return [payload, tx]

    tx = FakeTransaction()
    assert run(Pay, tx, '{"a":1}') == Recorded()
    assert tx.calls[0] == (1, '[{"a":1},"the connection"]', "")


def test_a_result_that_cannot_be_kept_is_a_note() -> None:
    tx = FakeTransaction()
    assert run(lambda tx: "x" * 200, tx) == Recorded()
    assert tx.calls[0][1] is None
    assert "200" in tx.calls[0][2] or "202" in tx.calls[0][2]


def test_what_a_handler_raises_rolls_back() -> None:
    def fail(tx: Any) -> None:
        raise ValueError("no")

    def come_back(tx: Any) -> None:
        raise Snooze(7)

    tx = FakeTransaction()
    assert isinstance(run(fail, tx), Raised)
    assert run(come_back, tx) == Snoozed(7)
    assert tx.calls == ["closed", "closed"]


def test_after_a_time_limit_the_connection_is_thrown_away() -> None:
    def busy(tx: Any) -> None:
        while True:
            time.sleep(0.001)

    tx = FakeTransaction()
    assert isinstance(run(busy, tx, limit_s=0.05), TimedOut)
    assert tx.calls == ["broken"]


@pytest.mark.parametrize(("error", "closed"), [(LeaseLost("gone"), "closed"), (StoreUnknown("cut"), "broken")])
def test_a_lost_lease_and_an_unknown_commit_are_lost_in_doubt(error: Exception, closed: str) -> None:
    tx = FakeTransaction(error)
    outcome = run(lambda tx: None, tx)
    assert isinstance(outcome, Lost)
    assert outcome.doubtful
    assert tx.calls[-1] == closed


def test_without_a_connection_it_comes_back_later_and_uses_no_attempt() -> None:
    registry = reg.Registry()
    registry.add(task_of(bare))

    def away(_: float | None) -> Any:
        raise StoreUnavailable("no connection")

    executor = Executor(registry, clock=SystemClock(), rng=random.Random(1), max_result_bytes=9, transaction=away)
    outcome = executor.run(Lease(1, "default", 0, "t", '{"n":1}', "", 1, 0, 0, 1, 99), lambda: False, None)
    assert outcome == Snoozed(1.0)


def test_it_runs_in_tests_of_applications_too(tandemq_app: TandemQ) -> None:
    engine = sa.create_engine(f"sqlite:///{tandemq_app.settings.data_path}/tandemq.db")
    assert tandemq_app.stats()  # makes the file
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE steps (n INTEGER)")

    @tandemq_app.task(name="step")
    def step(n: int, tx: Connection = IN_TRANSACTION) -> int:
        tx.execute(sa.text("INSERT INTO steps VALUES (:n)"), {"n": n})
        if n > 1:
            step.using(connection=tx).enqueue(n - 1)
        return n

    handle = step.enqueue(3)
    assert run_until_idle(tandemq_app) == 3
    assert handle.result(timeout=0) == 3
    with engine.connect() as connection:
        assert [n for (n,) in connection.exec_driver_sql("SELECT n FROM steps")] == [3, 2, 1]
    engine.dispose()


def test_a_time_limit_that_the_handler_swallows_rolls_back_all_the_same() -> None:
    def stubborn(tx: Any) -> str:
        try:
            while True:
                time.sleep(0.001)
        except Exception:
            return "as if nothing had happened"

    tx = FakeTransaction()
    assert isinstance(run(stubborn, tx, limit_s=0.05), TimedOut)
    assert tx.calls == ["broken"]
    assert run(lambda tx: None, FakeTransaction()) == Recorded()


def test_an_error_of_the_handlers_own_is_no_lost_lease() -> None:
    def enqueues_elsewhere(tx: Any) -> None:
        raise StoreUnknown("another database")

    tx = FakeTransaction()
    assert isinstance(run(enqueues_elsewhere, tx), Raised)
    assert tx.calls == ["closed"]


def maybe(n: int, tx: Connection | None = None): ...


def noted(n: int, tx: Annotated[sa.Connection, "ours"]): ...


def gathered(n: int, **tx): ...


def open_ended(n: int, tx, **more): ...


@pytest.mark.parametrize(("fn", "takes"), [(maybe, True), (noted, True), (gathered, False), (open_ended, True)])
def test_a_connection_is_found_inside_an_annotation(fn: Any, takes: bool) -> None:
    assert task_of(fn).takes_tx is takes


def test_a_payload_cannot_bring_a_tx() -> None:
    task = task_of(open_ended)
    with pytest.raises(TypeError, match="worker's to give"):
        task.bind(5, tx=5)
    with pytest.raises(ValidationFailed, match="'tx'"):
        task.validate({"n": 5, "tx": 5})
    task.validate({"n": 5, "other": 5})
