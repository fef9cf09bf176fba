"""Checks of single values that come in a body or a query, each refused by its name.

What is refused here is what the OpenAPI document says: the ranges and patterns below are the ones that it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NoReturn

from tandemq.core import values
from tandemq.core.codec import is_utf8
from tandemq.http.calls import MAX_ID
from tandemq.http.problems import Problem

Check = Callable[[Any, str], Any]

MAX_REASON: Final = 4000
MAX_ERROR_TYPE: Final = 200
#: In a query, a character outside ASCII takes up to twelve bytes of the 8,192 that path and query may have.
MAX_ERROR_TEXT: Final = 200


def id_pattern(top: int = MAX_ID) -> str:
    """A pattern for the decimal numbers from 1 to ``top``, without leading zeros."""
    digits = str(top)
    parts = [f"[1-9][0-9]{{0,{len(digits) - 2}}}", digits]
    for at, digit in enumerate(map(int, digits)):
        least, rest = (1 if at == 0 else 0), len(digits) - at - 1
        if digit > least:
            parts.append(f"{digits[:at]}[{least}-{digit - 1}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"^(?:{'|'.join(parts)})$"


ID_PATTERN: Final = id_pattern()
#: Who has worked on a task: printable ASCII without blanks at the ends.
WORKER_PATTERN: Final = "^[!-~](?:[ -~]{0,62}[!-~])?$"
LIMIT_PATTERN: Final = "^(?:[1-9][0-9]{0,2}|1000)$"
#: Tasks a second, a minute or an hour.
RATE_PATTERN: Final = r"^[1-9][0-9]{0,5}(?:\.[0-9]{1,6})?/(?:s|m|min|h)$"
#: Anything from 0 % to 100 %, and the same without nothing at all.
SHARE_PATTERN: Final = r"^(?:100|[1-9]?[0-9](?:\.[0-9]{1,4})?)%$"
SAMPLE_PATTERN: Final = r"^(?:100|[1-9][0-9]?(?:\.[0-9]{1,4})?|0\.[0-9]{0,3}[1-9])%$"


def refuse(field: str, wanted: str, value: Any) -> NoReturn:
    """400: what the field must be, and what it is instead."""
    raise Problem("invalid", f"{field} must be {wanted}, not {_shown(value)}", field=field)


def members(body: Any, names: Collection[str], *, field: str = "body") -> dict[str, Any]:
    """The members of a JSON object; a name that is not among ``names`` is refused."""
    if not isinstance(body, dict):
        raise Problem("invalid", f"{field} must be a JSON object", field=field)
    for name in body:
        if name not in names:
            known = f"use {', '.join(names)}" if names else "none is known here"
            culprit = name if field == "body" else f"{field}.{name}"
            raise Problem("invalid", f"unknown field {_shown(culprit)}; {known}", field=culprit)
    return body


def given(body: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Those of the fields that are there and not null, checked."""
    return {name: check(body[name], name) for name, check in checks.items() if body.get(name) is not None}


def text(limit: int, *, least: int = 0) -> Check:
    """Checks a text of ``least`` to ``limit`` characters."""

    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or not least <= len(value) <= limit:
            refuse(field, f"a text of {least} to {limit} characters", value)
        if not is_utf8(value):
            raise Problem("invalid", f"{field} holds a lone surrogate, which UTF-8 cannot carry", field=field)
        return value

    return check


def matching(pattern: str, wanted: str) -> Check:
    """Checks a text by a pattern, which covers all of it."""
    compiled = re.compile(pattern.removesuffix("$") + r"\Z")

    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or not compiled.match(value):
            refuse(field, wanted, value)
        return value

    return check


def one_of(*allowed: str) -> Check:
    """Checks a text that is one of a few."""

    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            refuse(field, f"one of {', '.join(allowed)}", value)
        return value

    return check


def whole(low: int, high: int) -> Check:
    """Checks an integer; 5.0 is one, as in JSON Schema."""

    def check(value: Any, field: str) -> int:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            refuse(field, f"a whole number from {low} to {high}", value)
        return value

    return check


def number(low: float, high: float) -> Check:
    """Checks a number."""

    def check(value: Any, field: str) -> float:
        if type(value) not in {int, float} or not low <= value <= high:
            refuse(field, f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check


def flag(value: Any, field: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        refuse(field, "true or false", value)
    return value


def either(of_text: Check, of_number: Check) -> Check:
    """Checks a text with one, all else with the other."""
    return lambda value, field: (of_text if isinstance(value, str) else of_number)(value, field)


def priority(value: Any, field: str) -> int:
    """A label or an integer."""
    return values.priority(int(value) if type(value) is float and value.is_integer() else value, field)


def _shown(value: Any) -> str:
    """The beginning of a value: what is refused need not be repeated in full."""
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    try:
        shown = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "that number"
    return shown if len(shown) <= 60 else f"{shown[:60]}..."


worker_id: Final = matching(WORKER_PATTERN, "1 to 64 printable ASCII characters without blanks at the ends")
reason: Final = text(MAX_REASON)
