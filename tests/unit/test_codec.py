"""JSON in and out: what JSON cannot carry is refused by its path."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.codec import MAX_DEPTH, MAX_INT_BITS, ascii_only, decode, encode, encode_object
from tandemq.core.errors import InvalidTask, InvalidType

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class MyText(str):
    pass


class MyDict(dict[str, Any]):
    pass


class MyInt(int):
    pass


def nested(levels: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind is list else {"k": value}
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@given(json_values)
def test_what_json_carries_comes_back_equal(value: Any) -> None:
    text = encode(value, "payload")

    assert decode(text) == value
    assert decode(ascii_only(text)) == value
    assert ascii_only(text).isascii()
    assert "\n" not in text


#: B33: value, the error, and how the path is named.
REFUSED: dict[str, tuple[Any, type[Exception]]] = {
    "NaN": (float("nan"), InvalidTask),
    "Infinity": (float("inf"), InvalidTask),
    "-Infinity": (float("-inf"), InvalidTask),
    "Decimal": (Decimal("1.10"), InvalidType),
    "datetime": (datetime(2026, 1, 1, tzinfo=UTC), InvalidType),
    "bytes": (b"x", InvalidType),
    "set": ({1}, InvalidType),
    "tuple": ((1, 2), InvalidType),
    "Enum": (Colour.RED, InvalidType),
    "StrEnum": (Word.RED, InvalidType),
    "IntEnum": (Number.ONE, InvalidType),
    "str subclass": (MyText("x"), InvalidType),
    "int subclass": (MyInt(1), InvalidType),
    "dict subclass": (MyDict(), InvalidType),
    "complex": (1j, InvalidType),
    "object": (object(), InvalidType),
    "class": (object, InvalidType),
    "generator": ((n for n in ()), InvalidType),
    "lone surrogate": ("\ud800", InvalidTask),
    "huge integer": (1 << (MAX_INT_BITS + 1), InvalidTask),
}


@pytest.mark.scenario
@pytest.mark.parametrize("kind", REFUSED)
def test_a_value_that_json_cannot_carry_is_refused_by_its_path(kind: str) -> None:
    value, error = REFUSED[kind]
    payload = {"items": [0, 0, 0, {"price": value}]}

    with pytest.raises(error) as refused:
        encode_object(payload, "payload")

    assert "payload.items[3].price" in str(refused.value)
    assert refused.value.field == "payload.items[3].price"  # type: ignore[attr-defined]
    assert isinstance(refused.value, ValueError)
    if error is InvalidType:
        assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), MyText("a"), Word.RED])
def test_keys_must_be_plain_text(key: Any) -> None:
    with pytest.raises(InvalidType, match=r"payload\.a has the key"):
        encode({"a": {key: 1}}, "payload")


def test_a_key_that_utf8_cannot_carry_is_refused() -> None:
    with pytest.raises(InvalidTask, match="surrogate"):
        encode({"\udfff": 1}, "payload")


def test_odd_keys_are_quoted_in_a_path() -> None:
    with pytest.raises(InvalidTask, match=r"payload\['a b'\]\[0\]"):
        encode({"a b": [float("nan")]}, "payload")


@pytest.mark.parametrize("kind", [list, dict])
def test_depth_is_bounded_so_that_every_reader_can_read_it(kind: type) -> None:
    encode(nested(MAX_DEPTH, kind), "payload")
    with pytest.raises(InvalidTask, match="nested"):
        encode(nested(MAX_DEPTH + 1, kind), "payload")


def test_a_value_that_holds_itself_is_refused() -> None:
    with pytest.raises(InvalidTask, match="nested"):
        encode(cyclic(), "payload")


def test_the_largest_integer_can_be_read_back() -> None:
    largest = (1 << MAX_INT_BITS) - 1

    assert decode(encode(largest, "payload")) == largest


@pytest.mark.parametrize("payload", [[], "x", None, 1, MyDict()])
def test_a_payload_is_an_object(payload: Any) -> None:
    with pytest.raises(InvalidType, match="payload must be a JSON object"):
        encode_object(payload, "payload")


def _tell(value: Any) -> Any:
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, tuple):
        return list(value)
    return value


def test_an_encoder_turns_foreign_values_into_json() -> None:
    text = encode({"price": Decimal("1.10"), "pair": (Decimal(1), 2)}, "payload", _tell)

    assert json.loads(text) == {"price": {"$decimal": "1.10"}, "pair": [{"$decimal": "1"}, 2]}


def test_an_encoder_that_gives_up_or_turns_in_circles_ends_in_an_error() -> None:
    with pytest.raises(InvalidType, match=r"payload\.when is a datetime"):
        encode({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "payload", _tell)
    circle = {frozenset: set, set: frozenset}
    with pytest.raises(InvalidTask, match="nested"):
        encode({"x": set()}, "payload", lambda value: circle[type(value)](value))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '{"a":NaN}', "{", "", "'a'"])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_emoji_stay_themselves_and_ascii_only_escapes_them() -> None:
    text = encode({"é": "\U0001f600 漢字"}, "payload")

    assert text == '{"é":"\U0001f600 漢字"}'
    assert ascii_only(text).isascii()
    assert ascii_only("[1, 2]") == "[1, 2]"
