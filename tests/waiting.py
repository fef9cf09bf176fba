"""The only waiting tool of the tests: poll a predicate until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T],
    timeout_s: float = 30.0,
    message: str | Callable[[], object] = "",
    *,
    every_s: float = 0.02,
) -> T:
    """The first truthy answer of ``predicate``; AssertionError with ``message`` and the last answer at the deadline.

    An AssertionError inside the predicate counts as "not yet", so that it may hold plain asserts; any other
    exception is a fault of the test or the product and is raised at once.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            last: object = predicate()
            if last:
                return last  # type: ignore[return-value]
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            said = message() if callable(message) else message
            raise AssertionError(f"not within {timeout_s:g} s: {said or 'condition'}; last answer: {last!r}")
        time.sleep(every_s)
