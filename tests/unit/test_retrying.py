"""Retries without a queue."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from tandemq import Constant, NonRetryable, Retry, Retryable, RetryPolicy, Snooze
from tandemq.retrying import RetriesFailed, RetryExecutor, aretry_all, retry, retry_all, with_retry
from tandemq.testing import FakeClock


class Flaky:
    """Fails ``fails`` times, then returns how often it was called."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


class Clock(FakeClock):
    """Remembers how long it was asked to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        super().sleep(seconds)


def make(**policy: Any) -> tuple[RetryExecutor, Clock]:
    clock = Clock()
    given = {"backoff": [1, 5, 15], "jitter": 0, "max_retries": 3} | policy
    return RetryExecutor(RetryPolicy(**given), clock=clock, rng=Random(1)), clock


def test_it_is_called_again_after_the_delays_of_the_policy() -> None:
    executor, clock = make()
    assert executor.execute(Flaky(OSError("a"), OSError("b"))) == 3
    assert clock.slept == [1, 5]


def test_the_last_exception_is_raised_as_itself_with_the_earlier_ones_as_notes() -> None:
    executor, clock = make(max_retries=2)
    last = OSError("third")
    with pytest.raises(OSError, match="third") as raised:
        executor.execute(Flaky(OSError("first"), ValueError("second"), last, OSError("never")))
    assert raised.value is last
    assert last.__notes__ == ["attempt 1: OSError: first", "attempt 2: ValueError: second"]
    assert clock.slept == [1, 5]


def test_without_max_retries_it_is_three_as_in_the_queue() -> None:
    executor, _ = make(max_retries=None)
    fn = Flaky(*[OSError(str(n)) for n in range(9)])
    with pytest.raises(OSError, match="3"):
        executor.execute(fn)
    assert fn.calls == 4


@pytest.mark.parametrize(
    ("policy", "error", "calls"),
    [
        ({}, NonRetryable("no"), 1),
        ({"give_up_on": (KeyError,)}, KeyError("k"), 1),
        ({"retry_on": (OSError,)}, KeyError("k"), 1),
        ({"retry_on": (OSError,)}, Retryable("r"), 2),
        ({"when": lambda exc, attempt: "again" in str(exc)}, ValueError("again"), 2),
        ({"when": lambda exc, attempt: "again" in str(exc)}, ValueError("not"), 1),
        ({}, KeyboardInterrupt(), 1),
        ({}, SystemExit(3), 1),
    ],
)
def test_what_is_retried_is_the_policys_to_say(policy: dict[str, Any], error: BaseException, calls: int) -> None:
    executor, _ = make(**policy)
    fn = Flaky(error)
    if calls == 1:
        with pytest.raises(type(error)):
            executor.execute(fn)
    else:
        executor.execute(fn)
    assert fn.calls == calls


def test_retry_and_snooze_say_when_and_snooze_uses_no_attempt() -> None:
    executor, clock = make(max_retries=1)
    assert executor.execute(Flaky(Snooze(7), Snooze("8"), Retry(timedelta(seconds=2)))) == 4
    assert clock.slept == [7, 8, 2]


def test_a_retry_after_date_is_counted_from_now() -> None:
    executor, clock = make()
    executor.execute(Flaky(Retry(clock.now() + timedelta(seconds=90)), Retry(clock.now() - timedelta(days=1))))
    assert clock.slept == [90, 0]


def test_max_age_gives_up_before_a_wait_that_would_be_in_vain() -> None:
    executor, clock = make(max_age=5.5, max_retries=9)
    with pytest.raises(OSError, match="b") as raised:
        executor.execute(Flaky(OSError("a"), OSError("b"), OSError("c")))
    assert clock.slept == [1]
    assert "max_age" in raised.value.__notes__[0]


def test_one_line_is_logged_per_retry(caplog: pytest.LogCaptureFixture) -> None:
    executor, _ = make()
    with caplog.at_level(logging.WARNING):
        executor.execute(Flaky(OSError("disk"), OSError("disk")))
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "attempt 1 of 4, the next one in 1 s: OSError: disk" in texts[0]
    assert caplog.records[0].exc_info


def test_a_logger_of_ones_own() -> None:
    said: list[str] = []
    logger = logging.Logger("mine")
    logger.addHandler(type("H", (logging.Handler,), {"emit": lambda self, record: said.append(record.getMessage())})())
    RetryExecutor(RetryPolicy(backoff=[0]), logger=logger, clock=Clock()).execute(Flaky(OSError("x")))
    assert len(said) == 1


def test_listeners_hear_of_every_step_and_one_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    executor, _ = make(max_retries=1)
    heard: list[tuple[str, int, str]] = []

    def listen(event: str) -> Callable[..., None]:
        def hear(attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
            assert policy is executor.policy
            heard.append((event, attempt, str(exc)))
            raise RuntimeError("a bad listener")

        return hear

    for event in ("before_attempt", "on_success", "on_retry", "on_failure"):
        executor.add_listener(event, listen(event))
    executor.execute(Flaky(OSError("x")))
    with pytest.raises(OSError, match="z"):
        executor.execute(Flaky(OSError("y"), OSError("z")))
    assert heard == [
        *[
            ("before_attempt", 1, "None"),
            ("on_retry", 1, "x"),
            ("before_attempt", 2, "None"),
            ("on_success", 2, "None"),
        ],
        *[("before_attempt", 1, "None"), ("on_retry", 1, "y"), ("before_attempt", 2, "None"), ("on_failure", 2, "z")],
    ]
    assert "a bad listener" in caplog.text


@pytest.mark.parametrize(
    ("event", "callback", "error"),
    [
        ("on_faliure", lambda a, p, e: None, "on_faliure.*use one of before_attempt"),
        ("on_retry", lambda: None, "must take"),
        ("on_retry", 5, "must take"),
    ],
)
def test_a_listener_that_could_never_be_called_is_refused(event: str, callback: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        RetryExecutor().add_listener(event, callback)


def test_a_policy_that_raises_does_not_hide_the_error(caplog: pytest.LogCaptureFixture) -> None:
    executor, clock = make(when=lambda exc, attempt: 1 / 0)
    assert executor.execute(Flaky(OSError("x"))) == 2
    assert 4 <= clock.slept[0] <= 6
    assert "ZeroDivisionError" in caplog.text


def test_with_retry_is_the_short_way() -> None:
    clock, told = Clock(), []
    value = with_retry(
        Flaky(OSError("a"), OSError("b")),
        attempts=5,
        delay=1,
        multiplier=2,
        max_delay=1.5,
        on_retry=lambda attempt, delay, exc: told.append((attempt, delay, str(exc))),
        clock=clock,
    )
    assert value == 3
    assert clock.slept == [1, 1.5]
    assert told == [(1, 1.0, "a"), (2, 1.5, "b")]


def test_with_retry_stops_where_the_condition_says() -> None:
    fn = Flaky(ValueError("x"))
    with pytest.raises(ValueError, match="x"):
        with_retry(fn, retry_condition=lambda exc: isinstance(exc, OSError), clock=Clock())
    assert fn.calls == 1
    for attempts in (0, -1, 2.5, True, "3"):
        with pytest.raises(ValueError, match="attempts"):
            with_retry(fn, attempts=attempts)  # type: ignore[arg-type]


def test_jitter_moves_by_up_to_a_fifth() -> None:
    clock = Clock()
    with_retry(Flaky(*[OSError()] * 200), attempts=201, delay=10, multiplier=1, jitter=True, clock=clock, rng=Random(1))
    assert 8 <= min(clock.slept) < 8.5
    assert 11.5 < max(clock.slept) <= 12


def test_a_decorator_for_functions_and_coroutines() -> None:
    clock, slept = Clock(), []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    executor = RetryExecutor(RetryPolicy(backoff=[2], jitter=0), clock=clock, asleep=asleep)
    failing, also = Flaky(OSError()), Flaky(OSError(), OSError())

    @retry(executor=executor)
    def fetch(a: int, *, b: int = 1) -> tuple[int, int, int]:
        """Fetch."""
        return a, b, failing()

    @retry(executor=executor)
    async def afetch(a: int) -> tuple[int, int]:
        return a, also()

    assert fetch(5, b=6) == (5, 6, 2)
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch.")
    assert asyncio.run(afetch(7)) == (7, 3)  # type: ignore[arg-type]
    assert (clock.slept, slept) == ([2], [2, 2])
    with pytest.raises(TypeError, match="parentheses"):
        retry(fetch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="aexecute"):
        executor.execute(afetch)


def test_a_cancelled_coroutine_is_not_tried_again() -> None:
    calls = []

    async def hang() -> None:
        calls.append(1)
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(RetryExecutor().aexecute(hang))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert calls == [1]


def test_all_run_at_once_and_answer_by_key() -> None:
    together = threading.Barrier(3, timeout=20)

    def one(n: int) -> Callable[[], int]:
        return lambda: (together.wait(), n)[1]

    assert retry_all({"a": one(1), "b": one(2), "c": one(3)}) == {"a": 1, "b": 2, "c": 3}
    assert retry_all({}) == {}


def test_all_tell_every_key_that_failed_and_keep_the_other_results() -> None:
    policy = RetryPolicy(max_retries=1, backoff=Constant(0))
    with pytest.raises(RetriesFailed) as raised:
        retry_all(
            {"a": lambda: 1, "b": Flaky(*[OSError("x")] * 9), "c": Flaky(OSError()), 4: Flaky(NonRetryable("n"))},
            policy,
        )
    assert raised.value.results == {"a": 1, "c": 2}
    assert {key: str(exc) for key, exc in raised.value.errors.items()} == {"b": "x", 4: "n"}
    assert str(raised.value) == "2 of 4 failed: b: OSError: x; 4: NonRetryable: n"


def test_all_coroutines_too() -> None:
    policy = RetryPolicy(max_retries=1, backoff=Constant(0))

    async def fine() -> int:
        await asyncio.sleep(0)
        return 1

    async def bad() -> int:
        raise OSError("x")

    assert asyncio.run(aretry_all({"a": fine, "b": fine}, policy)) == {"a": 1, "b": 1}
    with pytest.raises(RetriesFailed, match="b: OSError: x"):
        asyncio.run(aretry_all({"a": fine, "b": bad}, policy))
