"""Recording a failure never fails: hostile exceptions become bounded, valid text."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.failure import (
    CUT_MARK,
    MAX_MESSAGE_BYTES,
    MAX_TRACEBACK_BYTES,
    MAX_TYPE_BYTES,
    clip,
    describe,
    failure,
)
from tandemq.core.masking import Mask


def test_secrets_of_the_settings_are_not_in_what_is_stored_however_it_is_cut() -> None:
    secret = "-".join(("s3cret", "pw"))
    try:
        try:
            raise ConnectionError(f"mysql://u:{secret}@h" + "x" * 475 + secret)
        except ConnectionError as cause:
            text = f"{secret} of " + "y" * (MAX_MESSAGE_BYTES - 20) + secret
            error = ExceptionGroup(text, [ValueError(secret)])
            error.add_note("z" * 495 + secret)
            raise error from cause
    except ExceptionGroup as raised:
        found = describe(raised, Mask([secret]))
    assert found.message.startswith("*** of ")
    assert "caused by ConnectionError: mysql://u:***@h" in found.traceback
    for told in (found.message, found.traceback):
        assert "s3cret-" not in told
    assert "password=mine" in describe(ValueError("password=mine")).message  # what is a user's own stays


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307


class Trap(str):
    """Text whose every use raises."""

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("sliced")

    def encode(self, *args: Any) -> bytes:  # type: ignore[override]
        raise RuntimeError("encoded")

    def __len__(self) -> int:
        raise RuntimeError("measured")

    def __str__(self) -> str:
        return self


class StrIsATrap(Exception):
    def __str__(self) -> str:
        return Trap("caught")


class ArgumentReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no repr for you")


class NeedsArguments(Exception):
    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(code, why)


class HostileMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name for you")


class NotesAreNoList(Exception):
    __notes__ = 7  # type: ignore[assignment]


class HostileCause(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise RuntimeError("no cause for you")


def cyclic() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def deep_chain() -> BaseException:
    last: BaseException = ValueError("0")
    for n in range(1, 5000):
        following = ValueError(str(n))
        following.__cause__ = last
        last = following
    return last


def noted() -> BaseException:
    exc = ValueError("noted")
    exc.add_note("a note " + "x" * 100_000)
    return exc


def raised_deep() -> BaseException:
    def down(n: int) -> None:
        down(n + 1)

    try:
        down(0)
    except RecursionError as deep:
        return deep
    raise AssertionError


def unpicklable() -> BaseException:
    exc = ValueError(lambda: None, threading.Lock())
    exc.socket = socket.socket()  # type: ignore[attr-defined]
    exc.socket.close()  # type: ignore[attr-defined]
    return exc


KINDS: dict[str, Any] = {
    "str raises": StrRaises,
    "str exits": StrExits,
    "str is no text": StrIsNoText,
    "str is a trap": StrIsATrap,
    "argument repr raises": lambda: ValueError(ArgumentReprRaises(), ArgumentReprRaises()),
    "needs arguments": lambda: NeedsArguments(7, why="because"),
    "no message": ValueError,
    "5 MB": lambda: ValueError("x" * 5_000_000),
    "5 MB of emoji": lambda: ValueError("\U0001f600" * 1_250_000),
    "NUL": lambda: ValueError("\x00" * 20_000),
    "lone surrogates": lambda: ValueError("\ud800" * 20_000),
    "cyclic cause": cyclic,
    "deep chain": deep_chain,
    "group of 10,000": lambda: ExceptionGroup("many", [StrRaises() for _ in range(10_000)]),
    "base group": lambda: BaseExceptionGroup("many", [KeyboardInterrupt(), SystemExit(3)]),
    "long note": noted,
    "notes are no list": NotesAreNoList,
    "hostile cause": HostileCause,
    "hostile metaclass": HostileMeta("Hostile", (Exception,), {}),
    "long name": type("N" * 5000, (Exception,), {}),
    "recursion": raised_deep,
    "unpicklable": unpicklable,
    "exit 0": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "generator exit": GeneratorExit,
}


@pytest.mark.scenario
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_exception_becomes_bounded_valid_text(kind: str) -> None:
    told = describe(KINDS[kind]())

    for text, limit in (
        (told.error_type, MAX_TYPE_BYTES),
        (told.message, MAX_MESSAGE_BYTES),
        (told.traceback, MAX_TRACEBACK_BYTES),
    ):
        assert type(text) is str
        assert len(text.encode("utf-8", "strict")) <= limit
        assert "\x00" not in text
    assert told.error_type
    assert told.message


def test_the_text_says_what_happened() -> None:
    def inner() -> None:
        raise ValueError("too big") from KeyError("order_id")

    try:
        inner()
    except ValueError as exc:
        told = describe(exc)

    assert (told.error_type, told.message) == ("ValueError", "too big")
    assert "in inner" in told.traceback
    assert "caused by KeyError: 'order_id'" in told.traceback


def test_an_unprintable_message_is_replaced_and_the_class_kept() -> None:
    assert describe(StrRaises()).error_type == "StrRaises"
    assert describe(StrRaises()).message == "<message could not be printed>"
    assert describe(ValueError()).message == "<ValueError without a message>"
    assert describe(StrIsATrap()).message == "caught"


def test_a_group_shows_its_first_members_and_counts_the_rest() -> None:
    told = describe(ExceptionGroup("many", [ValueError(str(n)) for n in range(10_000)]))

    assert "- ValueError: 0\n" in told.traceback
    assert "and 9980 more" in told.traceback


@pytest.mark.parametrize("limit", range(40, 60))
def test_a_cut_never_splits_a_character_and_leaves_a_mark(limit: int) -> None:
    for text in ("é" * 100, "\U0001f600" * 100, "a\U0001f600" * 50, "€" * 100):
        cut = clip(text, limit)

        assert cut.endswith(CUT_MARK)
        assert text.startswith(cut.removesuffix(CUT_MARK))
        assert limit - 3 <= len(cut.encode()) <= limit


@given(st.text(st.characters(), max_size=300), st.integers(20, 200))
def test_clip_keeps_what_fits_and_bounds_what_does_not(text: str, limit: int) -> None:
    cut = clip(text, limit)

    assert len(cut.encode()) <= limit
    if len(text.encode("utf-8", "replace")) <= limit:
        assert cut == text.encode("utf-8", "replace").decode().replace("\x00", "?")
    else:
        assert cut.endswith(CUT_MARK)


def test_a_failure_without_an_exception_is_bounded_too() -> None:
    told = failure("LeaseLost", "x" * 1_000_000)

    assert told.error_type == "LeaseLost"
    assert len(told.message.encode()) <= MAX_MESSAGE_BYTES
    assert told.traceback == ""
