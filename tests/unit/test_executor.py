from __future__ import annotations

import asyncio
import ctypes
import random
import threading
import time

import pytest

from tandemq import registry as reg
from tandemq.core.clock import SystemClock
from tandemq.core.errors import NonRetryable, Retry, Snooze, ValidationFailed
from tandemq.core.lifecycle import (
    Bury,
    DeadReason,
    Invalid,
    Raised,
    RetryIn,
    Returned,
    Snoozed,
    Succeed,
    TimedOut,
)
from tandemq.core.retry import RetryPolicy
from tandemq.core.task import Lease
from tandemq.worker.executor import Executor


def lease(task_type: str, payload: str = "{}", *, attempt: int = 1, max_retries: int = 3, options: str = "") -> Lease:
    return Lease(1, "default", 0, task_type, payload, options, attempt, max_retries, 0, 1, 99)


def _no_transaction(_: float | None):
    raise AssertionError("no handler here takes tx")


def make(fn, **options) -> Executor:
    registry = reg.Registry()
    registry.add(reg.RegisteredTask.of(fn, reg.TaskOptions(name="t", **options)))
    return Executor(
        registry,
        clock=SystemClock(),
        rng=random.Random(1),
        max_result_bytes=1000,
        transaction=_no_transaction,
    )


def run(executor: Executor, limit_s: float | None = None, **kwargs):
    return executor.run(lease("t", **kwargs), lambda: False, limit_s)


def test_a_returned_value_is_kept_as_json():
    assert run(make(lambda: {"a": [1, "é"]})) == Returned('{"a":[1,"é"]}')


@pytest.mark.parametrize(
    "exc",
    [SystemExit(0), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("x")],
)
def test_base_exceptions_are_failed_attempts_in_def_and_async_handlers(exc):
    def sync():
        raise exc

    async def coroutine():
        raise exc

    for fn in (sync, coroutine):
        executor = make(fn)
        outcome = run(executor)
        assert isinstance(outcome, Raised)
        assert outcome.failure.error_type == type(exc).__name__
        assert isinstance(executor.verdict(lease("t"), outcome), RetryIn)
        executor.stop()


def test_an_async_handler_runs_after_one_that_raised_system_exit():
    state = {"first": True}

    async def fn():
        if state.pop("first", False):
            raise SystemExit(1)
        return "ok"

    executor = make(fn)
    assert isinstance(run(executor), Raised)
    assert run(executor) == Returned('"ok"')
    executor.stop()


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), {"a": (1,)}, b"x"])
def test_a_result_that_json_cannot_carry_ends_the_task_once_with_a_note(value):
    executor = make(lambda: value)
    outcome = run(executor)
    assert isinstance(outcome, Returned)
    assert outcome.result is None
    assert "not storable" in outcome.note
    assert isinstance(executor.verdict(lease("t"), outcome), Succeed)


def test_a_result_over_the_limit_is_dropped_with_a_note():
    outcome = run(make(lambda: "x" * 2000))
    assert outcome == Returned(None, "result not storable: 2002 bytes, the limit is 1000")


def test_retry_asks_for_its_own_delay_and_snooze_uses_no_attempt():
    def retry():
        raise Retry(7.5)

    def snooze():
        raise Snooze(3)

    executor = make(retry)
    assert executor.verdict(lease("t"), run(executor)).delay_s == 7.5
    assert run(make(snooze)) == Snoozed(3.0)


def test_the_last_attempt_is_buried_and_non_retryable_at_once():
    def fail():
        raise ValueError("no")

    def never():
        raise NonRetryable("never")

    executor = make(fail)
    verdict = executor.verdict(lease("t", attempt=4), run(executor))
    assert isinstance(verdict, Bury)
    assert verdict.reason is DeadReason.RETRIES_EXHAUSTED
    executor = make(never)
    assert executor.verdict(lease("t"), run(executor)).reason is DeadReason.NON_RETRYABLE


def test_a_payload_that_does_not_fit_is_a_validation_failure():
    def fn(order_id: int) -> None: ...

    for payload in ("{}", '{"order_id":1,"x":2}', "[1]", "not json"):
        assert isinstance(run(make(fn), payload=payload), Invalid)
    assert run(make(fn), payload='{"order_id":1}') == Returned(None)


def test_a_raising_policy_callable_falls_back_to_the_default_policy():
    def fail():
        raise ValueError

    def when(exc, attempt):
        raise RuntimeError

    executor = make(fail, retry=RetryPolicy(when=when))
    assert isinstance(executor.verdict(lease("t"), run(executor)), RetryIn)


def test_a_thread_handler_is_ended_at_its_time_limit():
    def spin():
        while True:
            time.sleep(0.005)

    executor = make(spin)
    outcome = run(executor, limit_s=0.1)
    assert isinstance(outcome, TimedOut)
    assert "0.1 s" in outcome.failure.message
    executor.stop()


def test_an_async_handler_is_cancelled_at_its_time_limit():
    cancelled = threading.Event()

    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    executor = make(wait)
    assert isinstance(run(executor, limit_s=0.05), TimedOut)
    assert cancelled.is_set()
    executor.stop()


def test_a_timeout_error_of_the_handler_itself_is_an_ordinary_failure():
    async def fail():
        raise TimeoutError("the server did not answer")

    executor = make(fail)
    assert isinstance(run(executor, limit_s=5), Raised)
    executor.stop()


def test_no_late_task_timeout_hits_the_thread_after_the_handler_returned():
    """500 runs that end at their limit: the exception is delivered inside the call or never."""
    executor = make(lambda: ctypes.CDLL(None).usleep(2000))
    for _ in range(500):
        outcome = run(executor, limit_s=0.002)
        assert isinstance(outcome, TimedOut | Returned)
        for _ in range(50):
            pass
    executor.stop()


def test_current_task_is_visible_in_def_and_async_handlers():
    def sync():
        task = reg.current_task()
        return [task.id, task.attempt, task.cancelled]

    async def coroutine():
        await asyncio.sleep(0)
        return sync()

    for fn in (sync, coroutine):
        executor = make(fn)
        assert run(executor) == Returned("[1,1,false]")
        executor.stop()


def test_the_enqueues_timeout_wins_over_the_tasks():
    executor = make(lambda: None, timeout=9)
    assert executor.limit_s(lease("t")) == 9
    assert executor.limit_s(lease("t", options='{"timeout":0.5}')) == 0.5
    assert executor.limit_s(lease("t", options='{"timeout":null}')) is None
    assert executor.limit_s(lease("t", options="broken")) == 9


def test_validate_may_refuse():
    class Handler(reg.TaskHandler):
        def validate(self, payload):
            raise ValidationFailed("no order id")

        def process(self, payload):
            return 1

    executor = make(Handler)
    outcome = run(executor)
    assert isinstance(outcome, Invalid)
    assert executor.verdict(lease("t"), outcome).reason is DeadReason.VALIDATION


def test_a_stored_traceback_begins_in_the_handler():
    def fail():
        raise ValueError("no")

    async def afail():
        raise ValueError("no")

    for fn in (fail, afail):
        executor = make(fn)
        lines = run(executor).failure.traceback.splitlines()
        assert "test_executor.py" in lines[0]
        assert lines[0].endswith(fn.__name__)
        executor.stop()
