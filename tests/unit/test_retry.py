"""When to try again, and after how long."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.errors import NonRetryable, Retry, Retryable, ValidationFailed
from tandemq.core.retry import (
    JITTER,
    MAX_DELAY_S,
    Constant,
    Delays,
    Exponential,
    Linear,
    RetryPolicy,
    as_backoff,
    backoff_from_spec,
    backoff_spec,
    check_max_retries,
    policy_of,
)

seconds = st.floats(min_value=0, max_value=1e300)
backoffs = st.one_of(
    st.builds(Exponential, seconds, seconds, seconds),
    st.builds(Linear, seconds, seconds, seconds),
    st.builds(Constant, seconds),
    st.builds(Delays, st.lists(seconds, min_size=1).map(tuple)),
)
attempts = st.integers(min_value=-5, max_value=10**9)


class _Middle(Random):
    """No jitter at all: every draw lies in the middle."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def test_the_default_waits_5_10_20_seconds_and_never_more_than_300() -> None:
    policy = RetryPolicy(jitter=0)

    assert [policy.delay(n, Random(1)) for n in range(1, 9)] == [5, 10, 20, 40, 80, 160, 300, 300]


def test_a_list_of_delays_repeats_its_last() -> None:
    policy = RetryPolicy(backoff=[1, 5, 15])

    assert [policy.delay(n, _Middle()) for n in range(1, 6)] == [1, 5, 15, 15, 15]


def test_the_other_backoffs() -> None:
    assert [Linear(2, 3, 10)(n) for n in (1, 2, 3, 4, 5)] == [2, 5, 8, 10, 10]
    assert [RetryPolicy(backoff=7).delay(n, _Middle()) for n in (1, 2)] == [7, 7]
    assert [RetryPolicy(backoff=lambda attempt: attempt * 1.5).delay(n, _Middle()) for n in (1, 2)] == [1.5, 3]


@given(backoffs, st.floats(0, 1), attempts, st.integers())
def test_no_policy_and_no_attempt_number_gives_an_impossible_delay(
    backoff: Any, jitter: float, attempt: int, seed: int
) -> None:
    delay = RetryPolicy(backoff=backoff, jitter=jitter).delay(attempt, Random(seed))

    assert 0 <= delay <= MAX_DELAY_S


@given(attempts, st.integers())
def test_jitter_moves_a_delay_by_at_most_a_fifth(attempt: int, seed: int) -> None:
    plain = RetryPolicy(jitter=0).delay(attempt, Random(seed))
    moved = RetryPolicy().delay(attempt, Random(seed))

    assert plain * (1 - JITTER) <= moved <= plain * (1 + JITTER)


@given(backoffs, st.floats(0, 1), attempts, st.integers())
def test_jitter_keeps_the_cap(backoff: Any, jitter: float, attempt: int, seed: int) -> None:
    delay = RetryPolicy(backoff=backoff, jitter=jitter).delay(attempt, Random(seed))

    assert delay <= getattr(backoff, "cap", MAX_DELAY_S)


def test_failures_at_the_cap_do_not_come_back_together() -> None:
    rng, policy = Random(7), RetryPolicy(backoff=Exponential(2.0, 2.0, 20.0))

    slots = [int(policy.delay(9, rng) * 10) for _ in range(1000)]

    assert max(slots.count(slot) for slot in set(slots)) < 60
    assert 160 <= min(slots) <= max(slots) < 200


def test_a_thousand_failures_do_not_come_back_together() -> None:
    rng = Random(7)

    slots = [int(RetryPolicy(backoff=2.0).delay(1, rng) * 10) for _ in range(1000)]

    assert max(slots.count(slot) for slot in set(slots)) < 160
    assert min(slots) >= 16
    assert max(slots) <= 24


def test_the_same_seed_gives_the_same_delays() -> None:
    assert [RetryPolicy().delay(n, Random(3)) for n in (1, 2, 3)] == [
        RetryPolicy().delay(n, Random(3)) for n in (1, 2, 3)
    ]


@pytest.mark.parametrize("broken", [float("nan"), float("-inf"), -1.0])
def test_a_callable_that_returns_nonsense_means_now(broken: float) -> None:
    assert RetryPolicy(backoff=lambda _attempt: broken).delay(1, Random(1)) == 0.0


def test_a_callable_that_returns_infinity_means_the_longest_delay() -> None:
    assert RetryPolicy(backoff=lambda _attempt: float("inf"), jitter=0).delay(1, Random(1)) == MAX_DELAY_S


@given(backoffs)
def test_a_backoff_survives_its_trip_through_a_rows_options(backoff: Any) -> None:
    spec = backoff_spec(backoff)

    assert spec is not None
    assert backoff_from_spec(spec) == backoff


def test_a_callable_does_not_travel() -> None:
    assert backoff_spec(lambda attempt: attempt) is None


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"kind": "mystery"},
        {"kind": "constant", "delay": "5"},
        {"kind": "constant", "delay": -5},
        {"kind": "constant", "delay": 10**400},
        {"kind": "delays", "delays": []},
        {"kind": "delays", "delays": 5},
        {"kind": "delays"},
        {"kind": ["x"]},
        {"kind": "linear", "unknown": 1},
        [],
        "exponential",
        7,
    ],
)
def test_a_broken_spec_is_the_default_never_an_error(spec: Any) -> None:
    assert backoff_from_spec(spec) == Exponential()


def test_a_rows_options_win_over_the_tasks_policy() -> None:
    task = RetryPolicy(max_retries=9, backoff=1, retry_on=(OSError,))

    policy = policy_of('{"backoff":{"kind":"constant","delay":60},"jitter":0}', task)

    assert policy.backoff == Constant(60)
    assert policy.jitter == 0
    assert (policy.max_retries, policy.retry_on) == (9, (OSError,))
    assert policy_of("", task) is task
    assert policy_of('{"timeout":5}', task).backoff == Constant(1)


@pytest.mark.parametrize(
    "options", ["{", "[]", "7", '"jitter"', "null", '{"jitter":7}', '{"jitter":"x"}', '{"backoff":7}', "[" * 100_000]
)
def test_broken_options_never_raise(options: str) -> None:
    assert policy_of(options).delay(1, _Middle()) == 5


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 10**400], ids=["-1", "nan", "inf", "huge"])
def test_impossible_seconds_are_refused(value: Any) -> None:
    for make in (Constant, lambda v: Delays((v,)), lambda v: Exponential(cap=v), lambda v: Linear(step=v), as_backoff):
        with pytest.raises(ValueError, match="seconds"):
            make(value)


@pytest.mark.parametrize("value", ["5", True, None, {}])
def test_what_is_no_number_of_seconds_is_refused(value: Any) -> None:
    for make in (Constant, lambda v: Delays((v,)), as_backoff):
        with pytest.raises(TypeError):
            make(value)


def test_an_empty_list_of_delays_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        RetryPolicy(backoff=[])


def test_integers_and_a_millionth_attempt_take_no_time() -> None:
    assert Exponential(5, 2, 300)(1_000_000) == 300
    assert isinstance(Exponential(5, 2, 300).base, float)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_jitter_is_a_share(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        RetryPolicy(jitter=jitter)


def test_retry_on_takes_a_class_or_several_and_nothing_else() -> None:
    assert RetryPolicy(retry_on=OSError).retry_on == (OSError,)  # type: ignore[arg-type]
    assert RetryPolicy(give_up_on=[OSError, KeyError]).give_up_on == (OSError, KeyError)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry_on"):
        RetryPolicy(retry_on=("OSError",))  # type: ignore[arg-type]


POLICIES = {
    "default": RetryPolicy(),
    "only OSError": RetryPolicy(retry_on=(OSError,)),
    "not KeyError": RetryPolicy(give_up_on=(KeyError,)),
    "both": RetryPolicy(retry_on=(LookupError,), give_up_on=(KeyError,)),
    "when first": RetryPolicy(when=lambda _exc, attempt: attempt == 1),
}


@pytest.mark.parametrize(
    ("name", "exc", "attempt", "retried"),
    [
        ("default", ValueError(), 1, True),
        ("default", NonRetryable(), 1, False),
        ("default", ValidationFailed(), 1, False),
        ("default", KeyboardInterrupt(), 1, True),
        ("only OSError", ConnectionError(), 1, True),
        ("only OSError", ValueError(), 1, False),
        ("only OSError", Retryable(), 1, True),
        ("only OSError", Retry(), 1, True),
        ("not KeyError", KeyError(), 1, False),
        ("not KeyError", IndexError(), 1, True),
        ("both", KeyError(), 1, False),
        ("both", IndexError(), 1, True),
        ("both", OSError(), 1, False),
        ("when first", ValueError(), 1, True),
        ("when first", ValueError(), 2, False),
        ("when first", Retryable(), 2, True),
        ("when first", NonRetryable(), 1, False),
    ],
)
def test_which_exceptions_are_retried(name: str, exc: BaseException, attempt: int, retried: bool) -> None:
    assert POLICIES[name].decision(exc, attempt) == ("retry" if retried else "give_up")


@pytest.mark.parametrize("value", [-1, 1_000_001])
def test_max_retries_has_a_range(value: int) -> None:
    with pytest.raises(ValueError, match="max_retries"):
        check_max_retries(value)
    with pytest.raises(ValueError, match="max_retries"):
        RetryPolicy(max_retries=value)


@pytest.mark.parametrize("value", ["3", 2.5, None, True])
def test_max_retries_is_an_integer(value: object) -> None:
    with pytest.raises(TypeError, match="max_retries"):
        check_max_retries(value)
