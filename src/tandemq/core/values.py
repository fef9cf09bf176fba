"""Checks of the single values a task is made of: names, priorities, delays, instants, keys."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.retry import MAX_DELAY_S, MAX_RETRIES, check_max_retries

PRIORITY_LABELS: dict[str, int] = {"low": 0, "medium": 10, "high": 20, "critical": 30}
LABEL_OF: dict[int, str] = {value: label for label, value in PRIORITY_LABELS.items()}
MIN_PRIORITY, MAX_PRIORITY = -1000, 1000
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TASK_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
MAX_KEY_BYTES = 255
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

Priority = int | str
Seconds = float | int | timedelta


def queue_name(value: Any, field: str = "queue") -> str:
    """``[A-Za-z0-9_.-]{1,64}``, or an error naming the value."""
    if not isinstance(value, str):
        raise InvalidType(f"{field} must be text, not {value!r}", field=field)
    if not QUEUE_NAME.fullmatch(value):
        raise InvalidTask(f"{field} {value!r} must be 1 to 64 of the characters A-Z a-z 0-9 _ . -", field=field)
    return str.__str__(value)


def task_type(value: Any, field: str = "type") -> str:
    """``[A-Za-z0-9_.:-]{1,100}``, or an error naming the value."""
    if not isinstance(value, str):
        raise InvalidType(f"{field} must be text, not {value!r}", field=field)
    if not TASK_TYPE.fullmatch(value):
        raise InvalidTask(f"{field} {value!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -", field=field)
    return str.__str__(value)


def priority(value: Any, field: str = "priority") -> int:
    """A label (low 0, medium 10, high 20, critical 30) or an integer -1000..1000; higher runs first."""
    if isinstance(value, str):
        if value in PRIORITY_LABELS:
            return PRIORITY_LABELS[value]
        labels = ", ".join(PRIORITY_LABELS)
        raise InvalidTask(f"{field} {value!r} is unknown; use {labels} or an integer", field=field)
    if type(value) is not int:
        raise InvalidType(f"{field} must be a label or an integer, not {value!r}", field=field)
    if not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidTask(f"{field} must be between {MIN_PRIORITY} and {MAX_PRIORITY}, not {value}", field=field)
    return value


def seconds(value: Any, field: str) -> float:
    """A finite number of seconds >= 0, or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{field} must be a number of seconds or a timedelta, not {value!r}", field=field)
    # Compared with a float on purpose: an int of 400 digits does not fit into math.isfinite.
    if not 0 <= value <= sys.float_info.max:
        raise InvalidTask(f"{field} must be a finite number of seconds >= 0, not {value!r}", field=field)
    return float(value)


def instant(value: Any, field: str) -> datetime:
    """An aware datetime as UTC. Naive ones and local times that do not exist are refused."""
    if not isinstance(value, datetime):
        raise InvalidType(f"{field} must be a datetime with a time zone, not {value!r}", field=field)
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidTask(f"{field} {value.isoformat()} has no time zone; add one, e.g. tzinfo=UTC", field=field)
    try:
        utc = value.astimezone(UTC)
        back = utc.astimezone(value.tzinfo)
    except (OverflowError, ValueError):
        raise InvalidTask(f"{field} {value.isoformat()} is out of range", field=field) from None
    if back.replace(tzinfo=None) != value.replace(tzinfo=None):
        raise InvalidTask(
            f"{field} {value.isoformat()} does not exist in its time zone (the clock jumps over it)",
            field=field,
        )
    if utc > LATEST:
        raise InvalidTask(f"{field} {value.isoformat()} is after {LATEST.date()}", field=field)
    return utc


def parse_instant(text: Any, field: str) -> datetime:
    """An RFC 3339 text as UTC."""
    if not isinstance(text, str):
        raise InvalidType(f"{field} must be an RFC 3339 time, not {text!r}", field=field)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTask(f"{field} {text!r} is no RFC 3339 time (like 2026-11-30T12:00:00Z)", field=field) from None
    return instant(value, field)


def idempotency_key(value: Any, field: str = "idempotency_key") -> str:
    """1 to 255 bytes of UTF-8, compared byte for byte; too long is refused, never cut."""
    if not isinstance(value, str):
        raise InvalidType(f"{field} must be text, not {value!r}", field=field)
    if not value:
        raise InvalidTask(f"{field} must not be empty; leave it out for no key", field=field)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidTask(f"{field} holds a lone surrogate, which UTF-8 cannot carry", field=field) from None
    if size > MAX_KEY_BYTES:
        raise InvalidTask(f"{field} is {size} bytes long; the limit is {MAX_KEY_BYTES}", field=field)
    return str.__str__(value)


def rfc3339(value: datetime | None) -> str | None:
    """``2026-11-30T12:00:00.000000Z``: UTC, always 6 digits."""
    return None if value is None else f"{value.astimezone(UTC).isoformat(timespec='microseconds')[:26]}Z"


def max_retries(value: Any, field: str = "max_retries") -> int:
    """An integer 0..1,000,000; runs allowed are 1 + max_retries."""
    try:
        return check_max_retries(value)
    except TypeError:
        raise InvalidType(f"{field} must be an integer >= 0, not {value!r}", field=field) from None
    except ValueError:
        raise InvalidTask(f"{field} must be between 0 and {MAX_RETRIES}, not {value}", field=field) from None


def timeout(value: Any, field: str = "timeout") -> float | None:
    """Seconds > 0 that one attempt may take, fractions count; None means no limit."""
    if value is None:
        return None
    limit = seconds(value, field)
    if not 0 < limit <= MAX_DELAY_S:
        raise InvalidTask(f"{field} must be seconds > 0 and at most ten years, or None; not {value!r}", field=field)
    return limit
