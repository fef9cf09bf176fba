"""What a replay may be told, and how steadily it goes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tandemq.core.errors import InvalidTask
from tandemq.replaying.orders import Orders, merged, parse_canary, parse_edit, parse_rate, parse_share
from tandemq.replaying.pace import CHUNK, Pace
from tandemq.testing import FakeClock

WINDOW_S = 5.0


def times(rate: float, clock: FakeClock, seconds: float, stalls: list[float]) -> list[float]:
    """When each task was moved, by a runner that is stalled now and then."""
    rng, begun, moved = random.Random(rate), clock.monotonic(), list[float]()
    pace = Pace(rate, clock)
    while clock.monotonic() - begun < seconds:
        granted = pace.granted()
        assert granted <= CHUNK
        moved += [clock.monotonic() - begun] * granted
        pace.took(granted)
        clock.advance(rng.choice(stalls) if granted else pace.pause_s)
    return moved


def per_window(moved: list[float], seconds: float) -> list[int]:
    """Tasks in every window of 5 s, a quarter of a second apart."""
    starts = [at / 4 for at in range(int((seconds - WINDOW_S) * 4))]
    return [sum(1 for at in moved if start <= at < start + WINDOW_S) for start in starts]


@pytest.mark.parametrize("rate", [3.0, 10.0, 50.0, 333.0, 2000.0])
def test_the_rate_holds_within_a_tenth_over_every_five_seconds(rate: float) -> None:
    found = per_window(times(rate, FakeClock(), 20, [0.0, 0.001, 0.02]), 20)

    wanted = rate * WINDOW_S
    assert max(abs(n - wanted) for n in found) <= max(1.0, 0.1 * wanted), found


@pytest.mark.parametrize("rate", [10.0, 50.0, 2000.0])
def test_a_stall_is_not_made_good_by_a_burst(rate: float) -> None:
    found = per_window(times(rate, FakeClock(), 30, [0.01] * 30 + [2.0]), 30)

    assert max(found) <= 1.1 * rate * WINDOW_S + 1
    assert min(found) < 0.95 * rate * WINDOW_S  # there were stalls


def test_a_slow_rate_is_one_task_at_a_time() -> None:
    moved = times(parse_rate("10/min"), FakeClock(), 60, [0.0])

    assert [round(at) for at in moved] == list(range(0, 60, 6))


def test_it_begins_without_a_burst() -> None:
    clock = FakeClock()
    clock.advance(100)

    assert Pace(2000.0, clock).granted() == 0
    assert Pace(None, clock).granted() == CHUNK


GOOD: list[tuple[Any, Any, float]] = [
    (parse_rate, "50/s", 50.0),
    (parse_rate, " 10 / min ", 10 / 60),
    (parse_rate, "10/m", 10 / 60),
    (parse_rate, "600/h", 600 / 3600),
    (parse_rate, 2.5, 2.5),
    (parse_canary, "1%", 0.01),
    (parse_canary, "50", 50),
    (parse_canary, 50, 50),
    (parse_canary, 0.5, 0.5),
    (lambda text: parse_share(text, "bound"), "20%", 0.2),
    (lambda text: parse_share(text, "bound"), 0.2, 0.2),
    (lambda text: parse_share(text, "bound"), "0", 0.0),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_rates_and_shares_are_read(parse: Any, text: Any, value: float) -> None:
    assert parse(text) == pytest.approx(value)
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": "fast"}, "rate"),
        ({"rate": 0}, "rate"),
        ({"rate": "50/d"}, "rate"),
        ({"rate": "1.2.3/s"}, "rate"),
        ({"rate": True}, "rate"),
        ({"rate": "1e400/s"}, "rate"),
        ({"limit": 0}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"canary": 0}, "canary"),
        ({"canary": "0%"}, "canary"),
        ({"canary": "101%"}, "canary"),
        ({"canary": True}, "canary"),
        ({"canary": "some"}, "canary"),
        ({"stop_if_failing": 1.01}, "stop_if_failing"),
        ({"stop_if_failing": "most"}, "stop_if_failing"),
        ({"canary_wait": -1}, "canary_wait"),
        ({"queue": "no queue"}, "queue"),
        ({"priority": "urgent"}, "priority"),
        ({"edit": [1]}, "edit"),
        ({"edit": "{"}, "edit"),
        ({"edit": {"n": float("nan")}}, "edit.n"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(options: Any, field: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        Orders.of(options)
    assert refused.value.field == field


def test_orders_survive_being_stored() -> None:
    from tandemq.replaying.orders import canonical

    given: Any = {"rate": "50/s", "limit": 7, "edit": '{"a": null}', "queue": "q", "priority": "high", "canary": "100%"}
    orders = Orders.of(given)

    assert orders.bound == 0.2  # a canary without a bound would be waited for in vain
    assert Orders.from_text(canonical(orders.to_json() | {"of_a_newer_release": 1})) == orders
    assert Orders().to_json() == {}
    assert type(Orders.from_text('{"canary":1.0}').canary) is float


@pytest.mark.parametrize(
    ("canary", "n", "size"),
    [("1%", 1000, 10), ("1%", 1001, 11), ("1%", 3, 1), ("10%", 10, 1), (50, 20, 20), (50, 0, 0), ("100%", 7, 7)],
)
def test_the_canary_is_at_least_one_and_at_most_all(canary: Any, n: int, size: int) -> None:
    assert Orders.of({"canary": canary}).sample_size(n) == size


@pytest.mark.parametrize(  # RFC 7396, appendix A, where the patch is an object
    ("payload", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_merged(payload: Any, patch: Any, result: Any) -> None:
    before = repr(payload)
    assert merged(payload, parse_edit(patch)) == result
    assert repr(payload) == before
