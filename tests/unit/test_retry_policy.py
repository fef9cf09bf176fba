"""Properties of every policy, and what ``Retry-After`` may say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.core.codec import encode
from tandemq.core.errors import Retry, Snooze
from tandemq.core.retry import (
    MAX_DELAY_S,
    Constant,
    Delays,
    Exponential,
    Linear,
    RetryPolicy,
    policy_of,
    policy_options,
)
from tandemq.core.retryafter import seconds_from, wait

SECONDS = st.floats(0, 1e6) | st.integers(0, 10**6)
ATTEMPTS = st.integers(1, 10_000)
CAPPED = st.builds(Exponential, base=SECONDS, factor=st.floats(1, 50), cap=SECONDS) | st.builds(
    Linear, base=SECONDS, step=SECONDS, cap=SECONDS
)
BACKOFFS = CAPPED | st.builds(Constant, SECONDS) | st.lists(SECONDS, min_size=1, max_size=9)
JITTERS = st.floats(0, 1) | st.just("full")
NOW = datetime(2027, 3, 28, 12, tzinfo=UTC)


@given(BACKOFFS, JITTERS, ATTEMPTS, st.integers())
def test_a_delay_is_never_negative_and_never_raises(backoff: Any, jitter: Any, attempt: int, seed: int) -> None:
    assert 0 <= RetryPolicy(backoff=backoff, jitter=jitter).delay(attempt, Random(seed)) <= MAX_DELAY_S


@given(CAPPED, JITTERS, ATTEMPTS, st.integers())
def test_the_cap_holds_jitter_included(backoff: Any, jitter: Any, attempt: int, seed: int) -> None:
    assert RetryPolicy(backoff=backoff, jitter=jitter).delay(attempt, Random(seed)) <= float(backoff.cap)


@given(CAPPED, st.integers(1, 9_999))
def test_without_jitter_delays_never_shrink(backoff: Any, attempt: int) -> None:
    policy = RetryPolicy(backoff=backoff, jitter=0)
    assert policy.delay(attempt) <= policy.delay(attempt + 1)


@given(st.builds(Constant, st.floats(0.001, 1e6)), st.floats(0, 1), ATTEMPTS, st.integers())
def test_jitter_moves_by_its_share_and_no_more(backoff: Constant, jitter: float, attempt: int, seed: int) -> None:
    moved = RetryPolicy(backoff=backoff, jitter=jitter).delay(attempt, Random(seed))
    assert backoff.delay * (1 - jitter) * 0.999999 <= moved <= backoff.delay * (1 + jitter) * 1.000001


@given(BACKOFFS, ATTEMPTS, st.integers())
def test_full_jitter_is_anything_up_to_the_delay(backoff: Any, attempt: int, seed: int) -> None:
    whole = RetryPolicy(backoff=backoff, jitter=0).delay(attempt)
    assert 0 <= RetryPolicy(backoff=backoff, jitter="full").delay(attempt, Random(seed)) <= whole


@given(BACKOFFS, JITTERS, ATTEMPTS, st.integers() | st.text(max_size=20))
def test_the_same_seed_gives_the_same_delays(backoff: Any, jitter: Any, attempt: int, seed: int | str) -> None:
    one, two = (RetryPolicy(backoff=backoff, jitter=jitter, seed=seed) for _ in range(2))
    assert one.delay(attempt, Random(1)) == two.delay(attempt, Random(2)) == one.delay(attempt)


def test_a_seed_gives_each_attempt_a_delay_of_its_own() -> None:
    policy = RetryPolicy(backoff=10, seed="orders")
    assert len({policy.delay(n) for n in range(1, 50)}) > 45
    # Written down: another process, another version of Python and another day must give the same.
    assert [round(policy.delay(n), 6) for n in (1, 2, 3)] == PINNED


PINNED = [9.057649, 11.681026, 8.24902]


def test_what_jitter_moves_beyond_the_cap_does_not_gather_there() -> None:
    policy = RetryPolicy(backoff=Exponential(base=100, cap=100), jitter=0.2)
    delays = [policy.delay(9, Random(n)) for n in range(1000)]
    assert max(delays) <= 100
    assert min(delays) < 82
    assert sum(delay > 99 for delay in delays) < 100  # an even share of 20 s is 50


def test_full_jitter_spreads_over_all_of_it() -> None:
    policy = RetryPolicy(backoff=100, jitter="full")
    delays = [policy.delay(1, Random(n)) for n in range(2000)]
    assert all(abs(sum(low <= d < low + 10 for d in delays) - 200) < 70 for low in range(0, 100, 10))


def test_fractions_of_a_second_are_kept() -> None:
    assert RetryPolicy(backoff=0.000_125, jitter=0).delay(1) == 0.000_125
    assert RetryPolicy(backoff=[0.25], jitter=0).delay(7) == 0.25


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"jitter": 1.5}, ValueError),
        ({"jitter": "half"}, (ValueError, TypeError)),
        ({"max_age": -1}, ValueError),
        ({"max_age": "1h"}, TypeError),
        ({"seed": 1.5}, TypeError),
        ({"seed": True}, TypeError),
    ],
)
def test_a_nonsense_policy_is_refused(options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error, match=next(iter(options))):
        RetryPolicy(**options)


def test_max_age_may_be_a_timedelta() -> None:
    assert RetryPolicy(max_age=timedelta(hours=2)).max_age_s == 7200


@settings(max_examples=200)
@given(BACKOFFS, JITTERS, st.none() | st.floats(0, 1e9), st.none() | st.integers(-(2**40), 2**40) | st.text(max_size=9))
def test_what_travels_with_a_row_gives_the_same_policy_anywhere(
    backoff: Any, jitter: Any, max_age: float | None, seed: Any
) -> None:
    policy = RetryPolicy(backoff=backoff, jitter=jitter, max_age=max_age, seed=seed)
    other = RetryPolicy(backoff=[99], jitter=0.5, max_age=7, seed=3)
    assert policy_of(encode(policy_options(policy, whole=True), "options"), other) == policy
    options = policy_options(policy)
    assert policy_of(encode(options, "options") if options else "") == policy


def test_a_default_policy_leaves_nothing_in_the_row() -> None:
    assert policy_options(RetryPolicy()) == {}
    assert policy_options(RetryPolicy(backoff=lambda n: 3.0, when=lambda e, n: True)) == {}
    assert policy_options(RetryPolicy(max_age=5)) == {"max_age": 5.0}


@pytest.mark.parametrize("options", ['{"jitter":"x"}', '{"max_age":-5}', '{"seed":[]}', '{"max_age":"soon"}'])
def test_a_broken_row_is_judged_by_the_task(options: str) -> None:
    task = RetryPolicy(backoff=[7], jitter=0)
    assert policy_of(options, task) == task


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1.5, 1.5),
        ("120", 120),
        (" 7 ", 7),
        (timedelta(minutes=2), 120),
        (NOW + timedelta(seconds=30), 30),
        (NOW - timedelta(days=1), 0),
        ("Sun, 28 Mar 2027 12:00:30 GMT", 30),
        ("Sunday, 28-Mar-27 12:00:30 GMT", 30),
        ("Sun Mar 28 12:00:30 2027", 30),
        ("Sun, 28 Mar 2027 14:00:30 +0200", 30),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_retry_after(value: Any, seconds: float) -> None:
    assert seconds_from(wait(value), NOW) == seconds
    assert Retry(value).delay == Snooze(value).delay == wait(value)


@pytest.mark.parametrize(
    "value",
    ["", "soon", "-5", "1.5", "٣", -1, float("nan"), True, b"5", [], datetime(2027, 1, 1), timedelta(seconds=-1)],
)
def test_what_is_no_retry_after_is_refused_where_it_is_written(value: Any) -> None:
    for cls in (Retry, Snooze):
        with pytest.raises((TypeError, ValueError), match="delay"):
            cls(value)


def test_lists_of_delays_repeat_their_last_one() -> None:
    assert [Delays((1.0, 5.0))(n) for n in (0, 1, 2, 3, 9)] == [1, 1, 5, 5, 5]
