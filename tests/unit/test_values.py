"""Names, priorities, delays, instants, keys: stored as the one right value, or refused with a reason."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core import values
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.task import epoch_ms

LONDON = ZoneInfo("Europe/London")
HUGE = 10**400


class Queue(str, Enum):  # noqa: UP042 - what users have; str() of it is "Queue.FAST"
    FAST = "fast"


class Level(IntEnum):
    HIGH = 20


@pytest.mark.parametrize(
    ("value", "seconds"), [(0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0), (1e308, 1e308), (-0.0, 0.0)]
)
def test_seconds_are_finite_and_not_negative(value: Any, seconds: float) -> None:
    assert values.seconds(value, "delay") == seconds


#: B44: due times that no server could store.
@pytest.mark.scenario
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1e9, InvalidTask),
        (-1, InvalidTask),
        (float("nan"), InvalidTask),
        (float("inf"), InvalidTask),
        (HUGE, InvalidTask),
        (timedelta(seconds=-1), InvalidTask),
        ("5", InvalidType),
        (True, InvalidType),
        (None, InvalidType),
        ([5], InvalidType),
    ],
    ids=lambda v: str(v)[:20],
)
def test_odd_delays_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="delay"):
        values.seconds(value, "delay")


@pytest.mark.scenario
@pytest.mark.parametrize(
    ("given_", "utc"),
    [
        (datetime(300, 1, 1, tzinfo=UTC), datetime(300, 1, 1, tzinfo=UTC)),
        (datetime(1018, 6, 1, tzinfo=UTC), datetime(1018, 6, 1, tzinfo=UTC)),
        (datetime(2040, 1, 1, 12, tzinfo=UTC), datetime(2040, 1, 1, 12, tzinfo=UTC)),
        (
            datetime(2040, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            datetime(2040, 1, 1, 6, 30, tzinfo=UTC),
        ),
        (datetime(2027, 10, 31, 1, 30, tzinfo=LONDON, fold=0), datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
        (datetime(2027, 10, 31, 1, 30, tzinfo=LONDON, fold=1), datetime(2027, 10, 31, 1, 30, tzinfo=UTC)),
        (datetime(2027, 7, 1, 1, 0, 0, 7, tzinfo=LONDON), datetime(2027, 7, 1, 0, 0, 0, 7, tzinfo=UTC)),
        (datetime(9999, 12, 29, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)),
    ],
)
def test_an_instant_becomes_the_one_right_utc_time(given_: datetime, utc: datetime) -> None:
    stored = values.instant(given_, "run_at")

    assert stored == utc
    assert stored.tzinfo is UTC


@pytest.mark.scenario
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (datetime(2030, 1, 1), "no time zone"),
        (datetime(2027, 3, 28, 1, 30, tzinfo=LONDON), "does not exist"),
        (datetime(9999, 12, 31, tzinfo=UTC), "after 9999"),
        (datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12))), "out of range"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))), "out of range"),
        ("2030-01-01T00:00:00Z", "must be a datetime"),
        (1_900_000_000, "must be a datetime"),
        (None, "must be a datetime"),
    ],
)
def test_an_odd_instant_is_refused_with_its_reason(value: Any, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        values.instant(value, "run_at")


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.timezones()))
def test_every_existing_local_time_is_stored_as_the_same_instant(value: datetime) -> None:
    back = value.astimezone(UTC).astimezone(value.tzinfo)
    if back.replace(tzinfo=None) != value.replace(tzinfo=None):
        with pytest.raises(InvalidTask, match="does not exist"):
            values.instant(value, "run_at")
        return

    stored = values.instant(value, "run_at")

    assert stored == value.astimezone(UTC)
    assert values.parse_instant(values.rfc3339(stored), "run_at") == stored


@pytest.mark.parametrize("text", ["tomorrow", "", "2030-13-01T00:00:00Z", "2030-01-01", "2030-01-01T00:00:00"])
def test_text_that_is_no_rfc3339_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidTask, match="run_at"):
        values.parse_instant(text, "run_at")


def test_times_are_shown_with_z_and_six_digits() -> None:
    assert values.rfc3339(datetime(2026, 11, 30, 12, tzinfo=UTC)) == "2026-11-30T12:00:00.000000Z"
    assert values.rfc3339(datetime(300, 1, 1, tzinfo=UTC)) == "0300-01-01T00:00:00.000000Z"
    assert (
        values.rfc3339(datetime(2026, 11, 30, 13, tzinfo=timezone(timedelta(hours=1)))) == "2026-11-30T12:00:00.000000Z"
    )
    assert values.rfc3339(None) is None


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC)))
def test_an_id_is_never_due_before_its_row(instant: datetime) -> None:
    exact_us = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    assert 0 <= epoch_ms(instant) * 1000 - exact_us < 1000


@pytest.mark.parametrize(
    ("value", "level"),
    [("low", 0), ("medium", 10), ("high", 20), ("critical", 30), (15, 15), (-1000, -1000), (1000, 1000)],
)
def test_priorities_are_labels_or_integers(value: Any, level: int) -> None:
    assert values.priority(value) == level


@pytest.mark.parametrize("value", ["urgent", "High", "", "10", 1001, -1001])
def test_unknown_priorities_are_refused(value: Any) -> None:
    with pytest.raises(InvalidTask, match="priority"):
        values.priority(value)


@pytest.mark.parametrize("value", [1.0, True, None, Level.HIGH, [1]])
def test_priorities_of_another_type_are_refused(value: Any) -> None:
    with pytest.raises(InvalidType, match="priority"):
        values.priority(value)


@pytest.mark.parametrize("name", ["default", "a", "A.b_c-9", "x" * 64, "..", "-"])
def test_queue_names(name: str) -> None:
    assert values.queue_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a\n", "a:b", "{a}", "é", "a/b", "\U0001f600", "a\x00"])
def test_odd_queue_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTask, match="queue"):
        values.queue_name(name)


@pytest.mark.parametrize("name", ["order.process", "a:b", "x" * 100])
def test_task_types(name: str) -> None:
    assert values.task_type(name) == name


@pytest.mark.parametrize("name", ["", "x" * 101, "a b", "shop.<lambda>", "a\n", "ä"])
def test_odd_task_types_are_refused(name: str) -> None:
    with pytest.raises(InvalidTask, match="type"):
        values.task_type(name)


def test_text_enums_count_by_their_value() -> None:
    for check in (values.queue_name, values.task_type, values.idempotency_key):
        stored = check(Queue.FAST)

        assert stored == "fast"
        assert type(stored) is str


@pytest.mark.parametrize("check", [values.queue_name, values.task_type, values.idempotency_key, values.priority])
@pytest.mark.parametrize("value", [None, b"x", 1.5, object()])
def test_other_types_are_refused(check: Any, value: Any) -> None:
    with pytest.raises(InvalidType):
        check(value)


@pytest.mark.parametrize("key", ["k1", "k1 ", "Order-1", "é", "e\u0301", "\U0001f600", " ", "\n", "x" * 255, "é" * 127])
def test_idempotency_keys_are_kept_byte_for_byte(key: str) -> None:
    assert values.idempotency_key(key) == key


@pytest.mark.scenario
@pytest.mark.parametrize("key", ["", "x" * 256, "x" * 300, "é" * 128, "\ud800"])
def test_odd_keys_are_refused_never_cut(key: str) -> None:
    with pytest.raises(InvalidTask, match="idempotency_key"):
        values.idempotency_key(key)


@pytest.mark.parametrize("value", [0, 1, 3, 1_000_000])
def test_max_retries(value: int) -> None:
    assert values.max_retries(value) == value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, InvalidTask),
        (1_000_001, InvalidTask),
        ("3", InvalidType),
        (2.5, InvalidType),
        (True, InvalidType),
        (None, InvalidType),
    ],
)
def test_odd_max_retries_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_retries"):
        values.max_retries(value)


@pytest.mark.parametrize(("value", "limit_s"), [(None, None), (30, 30.0), (0.25, 0.25), (timedelta(seconds=2), 2.0)])
def test_time_limits(value: Any, limit_s: float | None) -> None:
    assert values.timeout(value) == limit_s


@pytest.mark.parametrize(
    "value", [0, -1, float("nan"), float("inf"), True, "30", 1e300, HUGE], ids=lambda v: str(v)[:9]
)
def test_odd_time_limits_are_refused(value: Any) -> None:
    with pytest.raises(InvalidTask, match="timeout"):
        values.timeout(value)
