"""A task to enqueue as JSON: the body of ``POST /jobs``, which is also one line of ``tandemq enqueue --file``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from tandemq.core import values
from tandemq.core.codec import decode
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.task import NewTask
from tandemq.core.values import Seconds

FIELDS: Final = (
    "type",
    "payload",
    "queue",
    "priority",
    "delay",
    "run_at",
    "expires",
    "max_retries",
    "idempotency_key",
)
_FIELDS = frozenset(FIELDS)
#: RFC 3339 as it is accepted here, in a pattern that JSON Schema knows too, and what of it is out of range.
INSTANT_PATTERN: Final = (
    r"^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
)
BEYOND_PATTERN: Final = r"^(?:0000-|0001-01-01|9999-12-3|9999-12-29.*-(?:[1-9]|0[1-9]|00:[1-9]|00:0[1-9]))"
#: Some 7,900 years. Both bounds are fixed, while the last instant that a database can keep comes nearer with the clock.
MAX_AHEAD_S: Final = 250_000_000_000
MIN_EXPIRES_S: Final = 0.001
_INSTANT = re.compile(INSTANT_PATTERN)
_BEYOND = re.compile(BEYOND_PATTERN)


def parse_json(text: str | bytes, field: str) -> Any:
    """Parse JSON that came from outside; whatever is wrong with it is an InvalidTask naming ``field``."""
    try:
        return decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise InvalidTask(f"{field} is nested too deeply", field=field) from None
    except UnicodeDecodeError as bad:
        raise InvalidTask(f"{field} is not UTF-8 (byte {bad.start + 1})", field=field) from None
    except ValueError as bad:
        raise InvalidTask(f"{field} is not JSON: {bad}", field=field) from None


def new_task(body: Any) -> NewTask:
    """A NewTask from a parsed body. Unknown fields are refused by name: a misspelt option must not be dropped.

    A field that is null counts as left out, but for the payload, which must be an object. ``run_at`` is an RFC 3339
    time; ``expires`` is one too, or seconds. Names, ranges, the payload's depth and size are checked by the producer.
    """
    if not isinstance(body, dict):
        raise InvalidType(f"a task must be a JSON object, not {_kind(body)}", field="body")
    if not _FIELDS.issuperset(body):
        unknown = min(set(body) - _FIELDS)
        raise InvalidTask(f"unknown field {unknown!r}; use {', '.join(FIELDS)}", field=unknown)
    given: Mapping[str, Any] = {name: value for name, value in body.items() if value is not None}
    if "type" not in given:
        raise InvalidTask("the field 'type' is missing", field="type")
    return NewTask(
        given["type"],
        body.get("payload", {}),
        queue=given.get("queue"),
        priority=_whole(given.get("priority")),
        delay=_ahead(given.get("delay"), "delay", 0),
        run_at=_instant(given["run_at"], "run_at") if "run_at" in given else None,
        expires=expires(given.get("expires")),
        max_retries=_whole(given.get("max_retries")),
        idempotency_key=given.get("idempotency_key"),
    )


def expires(value: Any) -> Seconds | datetime | None:
    """Seconds from now, or an RFC 3339 text as an instant."""
    return _instant(value, "expires") if isinstance(value, str) else _ahead(value, "expires", MIN_EXPIRES_S)


def _instant(value: Any, field: str) -> datetime:
    instant = values.parse_instant(value, field)
    if not _INSTANT.match(value) or value.endswith("\n"):
        raise InvalidTask(f"{field} {value!r} is no RFC 3339 time (like 2026-11-30T12:00:00Z)", field=field)
    if _BEYOND.match(value):
        raise InvalidTask(
            f"{field} {value!r} is out of range: years 1 to 9999, up to the 29th of December", field=field
        )
    return instant


def _ahead(value: Any, field: str, least: float) -> Any:
    """Seconds from now. Other types are refused where all of a task is checked."""
    if type(value) in {int, float} and not least <= value <= MAX_AHEAD_S:
        raise InvalidTask(f"{field} must be {least:g} to {MAX_AHEAD_S} seconds, not {value!r}", field=field)
    return value


def _whole(value: Any) -> Any:
    """To JSON, and so to its writers in other languages, 5.0 is an integer."""
    return int(value) if type(value) is float and value.is_integer() else value


def _kind(value: Any) -> str:
    names = {list: "an array", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
