"""Handlers for the scenarios about data, keys, time and attempts; the probe file tells what ran."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

from tandemq import RetryPolicy, TandemQ, current_task
from tests import probe

app = TandemQ()


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Name(str):
    __slots__ = ()


def _nested(value: Any) -> Any:
    return {"items": [0, 1, {"price": value}]}


#: What JSON cannot carry, by name; the same table serves payloads and results.
UNSTORABLE: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "minus infinity": lambda: float("-inf"),
    "decimal": lambda: Decimal("1.10"),
    "datetime": lambda: datetime(2026, 11, 30, tzinfo=UTC),
    "date": lambda: datetime(2026, 11, 30, tzinfo=UTC).date(),
    "bytes": lambda: b"\x00\xff",
    "set": lambda: {1, 2},
    "tuple": lambda: (1, 2),
    "int key": lambda: {1: "one"},
    "none key": lambda: {None: "none"},
    "enum": lambda: Colour.RED,
    "int enum": lambda: Size.BIG,
    "str subclass": lambda: Name("x"),
    "object": object,
    "complex": lambda: 1j,
    "lone surrogate": lambda: "\ud800",
    "surrogate key": lambda: {"\udfff": 1},
    "huge integer": lambda: 10**5000,
}


@app.task(name="b.noop")
def noop(n: int = 0) -> int:
    with probe.running():
        return n


@app.task(name="b.echo")
def echo(**payload: Any) -> dict[str, Any]:
    with probe.running():
        return payload


@app.task(name="b.digest")
def digest(text: str) -> str:
    """What arrived, told by its hash."""
    with probe.running():
        return hashlib.sha256(text.encode()).hexdigest()


@app.task(name="b.blob", max_retries=3)
def blob(char: str, times: int) -> str:
    """A result of any size."""
    with probe.running():
        return char * times


@app.task(name="b.unstorable", max_retries=3)
def unstorable(which: str, nested: bool = False) -> Any:
    with probe.running():
        value = UNSTORABLE[which]()
        return _nested(value) if nested else value


@app.task(name="b.aunstorable", max_retries=3)
async def aunstorable(which: str) -> Any:
    with probe.running():
        await asyncio.sleep(0)
        return _nested(UNSTORABLE[which]())


@app.task(name="b.shout", retry=RetryPolicy(backoff=[0.05], jitter=0))
def shout(text: str, times: int = 1, head: int = 0) -> None:
    """Fail with a message of ``head`` ASCII letters and then ``text`` over and over."""
    probe.start()
    raise ValueError("a" * head + text * times)


_FALL = """
def fall(depth, size):
    if depth:
        fall(depth - 1, size)
    cause = KeyError("🔥" * (size // 80))
    for n in range(20):
        error = RuntimeError(f"cause {n}: " + "深" * (size // 60))
        error.__cause__, cause = cause, error
    raise RuntimeError("at the bottom: " + "深" * (size // 60)) from cause
"""
_deep: dict[str, Any] = {}
exec(compile(_FALL, "deep/" * 200 + "fall.py", "exec"), _deep)  # noqa: S102 - a file with a very long name


@app.task(name="b.deep", retry=RetryPolicy(backoff=[0.05], jitter=0))
def deep(megabytes: int) -> None:
    """Fail with a traceback of so many megabytes: a chain of loud causes below a deep stack of long lines."""
    probe.start()
    _deep["fall"](100, megabytes * 1_000_000)


@app.task(name="b.fail", retry=RetryPolicy(backoff=0, jitter=0))
def fail(times: int = 1_000_000) -> int:
    """Fail at once so many times, to be tried again at once."""
    probe.start()
    attempt = current_task().attempt
    if attempt <= times:
        raise RuntimeError(f"attempt {attempt}")
    probe.end()
    return attempt
