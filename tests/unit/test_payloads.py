"""Which payloads hold a value: by hand, since the contract of the stores takes ``fits`` for the judge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.store.payloads import fits, same

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value", "is_there"),
    [
        ('{"a": 42}', 42, True),
        ('{"a": 42}', "42", False),
        ('{"a": "42"}', 42, False),
        ('{"a": 42.0}', 42, True),
        ('{"a": 1}', True, False),
        ('{"a": true}', 1, False),
        ('{"a": true}', True, True),
        ('{"a": 0}', False, False),
        ('{"a": null}', None, True),
        ('{"b": 1}', None, False),
        ('{"a": 9007199254740993}', 9007199254740992, False),
        ('{"a": 9007199254740993}', 9007199254740993, True),
        ('{"a": [1, true]}', [1, 1], False),
        ('{"a": [1, true]}', [1.0, True], True),
        ('{"a": {"b": 1}}', {"b": 1}, True),
        ('{"a": {"b": 1, "c": 2}}', {"b": 1}, False),
        ('{"a": {"b": true}}', {"b": 1}, False),
        ('{"a": "x "}', "x", False),
        ('{"a": "X"}', "x", False),
        ('{"a": 1, "a": 2}', 2, True),
        ('{"a": 1, "a": 2}', 1, False),
        ("[1]", 1, False),
        ("no json", None, False),
        ('{"a": NaN}', None, False),
        ("[" * 100_000, None, False),
    ],
)
def test_values_are_compared_as_json_has_them(text: str, value: Any, is_there: bool) -> None:
    assert fits(text, {"a": value}) is is_there


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        ("a.b", True),
        ("a.c.1", True),
        ("a.c.0", False),
        ("a.c.2", False),
        ("a.c.-1", False),
        ("a.c.x", False),
        ("a.b.c", False),
        ("b", False),
        ("0", True),
        ("a.c.99999999999999999999", False),
    ],
)
def test_a_path_leads_into_objects_and_arrays(path: str, is_there: bool) -> None:
    assert fits('{"a": {"b": 7, "c": [1, 7]}, "0": 7}', {path: 7}) is is_there


def test_all_of_them_must_be_there() -> None:
    assert fits('{"a": 1, "b": 2}', {"a": 1, "b": 2})
    assert not fits('{"a": 1, "b": 2}', {"a": 1, "b": 3})


@given(JSON)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert same(value, value)


@given(JSON, JSON)
def test_sameness_has_no_direction(one: Any, other: Any) -> None:
    assert same(one, other) == same(other, one)
