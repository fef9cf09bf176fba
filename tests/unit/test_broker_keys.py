from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tandemq.broker.keys import Keys, parse_id, parse_priority, sift
from tandemq.core.task import Level

KEYS = Keys("tandemq")
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
LEVELS = st.builds(Level, NAMES, st.integers(-1000, 1000))


def test_the_keys_are_the_documented_ones() -> None:
    level = Level("default", 10)

    assert KEYS.ready(level) == "tandemq:{default}:ready:10"
    assert KEYS.delayed(level) == "tandemq:{default}:delayed:10"
    assert KEYS.levels("default") == "tandemq:{default}:levels"
    assert KEYS.generation("default") == "tandemq:{default}:generation"
    assert (KEYS.queues, KEYS.install) == ("tandemq:queues", "tandemq:generation")


@given(LEVELS, LEVELS)
def test_no_two_levels_share_a_key(one: Level, other: Level) -> None:
    mine = {KEYS.ready(one), KEYS.delayed(one), KEYS.levels(one.queue), KEYS.generation(one.queue)}

    assert len(mine | {KEYS.queues, KEYS.install}) == 6
    assert (KEYS.ready(one) == KEYS.ready(other)) is (one == other)


@given(st.integers(-(2**70), 2**70))
@example(2**63 - 1)
@example(2**63)
@example(0)
def test_an_id_is_a_positive_63_bit_number(value: int) -> None:
    assert parse_id(str(value).encode()) == (value if 1 <= value < 2**63 else None)


@given(st.binary(max_size=25))
def test_an_id_is_read_only_in_the_form_that_is_written(entry: bytes) -> None:
    value = parse_id(entry)

    assert value is None or str(value).encode() == entry
    assert sift([entry]) == (((value,), ()) if value is not None else ((), (entry,)))


@pytest.mark.parametrize("entry", [b"", b"-", b"1001", b"-1001", b"007", b"-0", b"+1", b"1.0", b"\xd9\xa1", b" 1"])
def test_what_is_no_priority_is_none(entry: bytes) -> None:
    assert parse_priority(entry) is None


@given(st.integers(-1000, 1000))
def test_every_priority_is_read_back(value: int) -> None:
    assert parse_priority(str(value).encode()) == value
