"""``Retry-After``: seconds or an HTTP date, as a server sends it, or as a program would say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

Wait = float | int | str | timedelta | datetime


def wait(value: Wait, field: str = "delay") -> float | datetime:
    """Seconds >= 0, or the instant (aware, UTC) until which to wait: only a clock tells how long that is.

    Text is the value of a ``Retry-After`` header (RFC 9110, 10.2.3): whole seconds, or a date in one of the three
    formats of RFC 9110, 5.6.7. TypeError or ValueError, naming the field.
    """
    match value:
        case bool():
            raise TypeError(f"{field} must be seconds, a timedelta, a datetime or a Retry-After text, not {value!r}")
        case timedelta():
            return _seconds(value.total_seconds(), field)
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"{field} {value.isoformat()} has no time zone; add one, e.g. tzinfo=UTC")
            return _utc(value, field)
        case int() | float():
            return _seconds(value, field)
        case str():
            return _header(value.strip(), field)
        case _:
            raise TypeError(f"{field} must be seconds, a timedelta, a datetime or a Retry-After text, not {value!r}")


def seconds_from(wait: float | datetime, now: datetime) -> float:
    """How long that is from ``now`` on; an instant that has passed is 0."""
    return max(0.0, (wait - now).total_seconds()) if isinstance(wait, datetime) else wait


def _seconds(value: float, field: str) -> float:
    if not value >= 0:
        raise ValueError(f"{field} must be a number of seconds >= 0, not {value!r}")
    return value


def _header(text: str, field: str) -> float | datetime:
    if text.isascii() and text.isdecimal():
        return _seconds(float(text), field)
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        raise ValueError(f"{field} {text!r} is neither whole seconds nor an HTTP date") from None
    return _utc(at if at.tzinfo is not None else at.replace(tzinfo=UTC), field)


def _utc(at: datetime, field: str) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:  # the last hours of 9999 west of Greenwich, the first of the year 1 east of it
        raise ValueError(f"{field} {at.isoformat()} is not within the years 1 to 9999 of UTC") from None
