"""Rows chosen by what their payload holds: the database leaves out what cannot fit, Python decides what does.

The servers do not agree on JSON: MariaDB takes the first of two equal keys, MySQL and Python the last; MariaDB stops at
32 levels; numbers are compared as doubles. So a row is left out by SQL only where they cannot differ (its text is
valid JSON, has no escapes, and no key of the path twice), and every row that comes is parsed and compared here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tandemq.core.codec import decode
from tandemq.core.errors import InvalidTask
from tandemq.store.dialects import Dialect

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*")
MAX_PATHS, MAX_DEPTH = 20, 100
_MISSING = object()


def check(wanted: Mapping[str, Any]) -> None:
    """InvalidTask for a filter that cannot be asked."""
    if not 1 <= len(wanted) <= MAX_PATHS:
        raise InvalidTask(f"a filter takes 1 to {MAX_PATHS} payload fields, not {len(wanted)}", field="payload")
    for path in wanted:
        steps = str(path).split(".")
        if not all(steps) or len(steps) > MAX_DEPTH:
            raise InvalidTask(f"{path!r} is no path like order_id or customer.city", field="payload")


def tests(wanted: Mapping[str, Any], d: Dialect) -> tuple[list[str], list[Any]]:
    """Conditions that every row that fits meets, and their parameters."""
    conditions, values = [], []
    for path, value in wanted.items():
        steps = path.split(".")
        test = _test(value, d)
        if test is None or not all(map(_PLAIN.fullmatch, steps)):
            continue
        text, bound = test
        unsure, keys = ["NOT JSON_VALID(t.payload)", "INSTR(t.payload, CHAR(92)) > 0"], []
        for step in dict.fromkeys(steps):
            quoted = f'"{step}"'
            unsure.append(f"INSTR(SUBSTR(t.payload, INSTR(t.payload, {d.p}) + {len(quoted)}), {d.p}) > 0")
            keys += [quoted, quoted]
        conditions.append(f"({' OR '.join(unsure)} OR {text})")
        values += [*keys, "$" + "".join(f'."{step}"' for step in steps), *bound]
    return conditions, values


def _test(value: Any, d: Dialect) -> tuple[str, list[Any]] | None:
    """SQL that is true where the path leads to this value (and may be elsewhere), with the path as first parameter."""
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return d.json_there("t.payload"), []
    if isinstance(value, str):
        return f"{d.json_text('t.payload')} = {d.p}", [value]
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    # The servers read numbers as doubles, and not to the last digit: near is enough.
    return f"ABS({d.json_text('t.payload')} + 0.0e0 - {d.p}) <= {d.p}", [number, abs(number) * 1e-12]


def fits(text: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether a payload holds all of these values. What is no JSON holds nothing."""
    try:
        payload = decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        return False
    return all(same(_at(payload, path.split(".")), value) for path, value in wanted.items())


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: numbers by value, everything else by type and value."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _at(value: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value
