"""A task to enqueue as JSON: the body of ``POST /jobs``, which is also one line of ``tandemq enqueue --file``."""

from __future__ import annotations

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
    if unknown := sorted(set(body) - set(FIELDS)):
        raise InvalidTask(f"unknown field {unknown[0]!r}; use {', '.join(FIELDS)}", field=unknown[0])
    given: Mapping[str, Any] = {name: value for name, value in body.items() if value is not None}
    if "type" not in given:
        raise InvalidTask("the field 'type' is missing", field="type")
    return NewTask(
        given["type"],
        body.get("payload", {}),
        queue=given.get("queue"),
        priority=given.get("priority"),
        delay=given.get("delay"),
        run_at=values.parse_instant(given["run_at"], "run_at") if "run_at" in given else None,
        expires=expires(given.get("expires")),
        max_retries=given.get("max_retries"),
        idempotency_key=given.get("idempotency_key"),
    )


def expires(value: Any) -> Seconds | datetime | None:
    """Seconds from now, or an RFC 3339 text as an instant."""
    return values.parse_instant(value, "expires") if isinstance(value, str) else value


def _kind(value: Any) -> str:
    names = {list: "an array", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
