"""Flags and argument types that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from tandemq.core import values
from tandemq.core.body import expires
from tandemq.core.errors import InvalidTask
from tandemq.core.values import Priority, Seconds

F = TypeVar("F", bound=Callable[..., Any])

MAX_WORKER_NAME = 64
AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
STATES = ("pending", "ready", "scheduled", "retrying", "running", "succeeded", "dead", "cancelled")


class Checked(click.ParamType[Any]):
    """A text turned into a value by a function of the core; its InvalidTask becomes a usage error."""

    def __init__(self, name: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._convert = convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value, or exit code 2."""
        if not isinstance(value, str):
            return value
        try:
            return self._convert(value)
        except InvalidTask as bad:
            self.fail(str(bad), param, ctx)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _priority(text: str) -> Priority:
    digits = text.removeprefix("-")
    return values.priority(int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 9 else text)


def _seconds(text: str, field: str) -> float:
    number = _number(text)
    if number is None:
        raise InvalidTask(f"{field} {text!r} is no number of seconds", field=field)
    return values.seconds(number, field)


def _age(text: str) -> float:
    number, unit = _number(text[:-1]), AGE_UNITS.get(text[-1:])
    if number is None or unit is None:
        number, unit = _number(text), 1
    if number is None:
        raise InvalidTask(f"age {text!r} is no time like 90s, 30m, 12h, 7d or 2w", field="older_than")
    return values.seconds(number * unit, "older_than")


def _expires(text: str) -> Seconds | datetime | None:
    return expires(text) if _number(text) is None else _seconds(text, "expires")


def _timeout(text: str) -> float | None:
    return None if text == "none" else values.timeout(_seconds(text, "timeout"))


def _worker_name(text: str) -> str:
    if not 1 <= len(text) <= MAX_WORKER_NAME or not text.isprintable() or any(map(str.isspace, text)):
        limit = f"1 to {MAX_WORKER_NAME} printable characters without spaces"
        raise InvalidTask(f"name {text!r} must be {limit}", field="name")
    return text


PRIORITY = Checked("priority", _priority)
AGE = Checked("age", _age)
SECONDS = Checked("seconds", lambda text: _seconds(text, "value"))
INSTANT = Checked("time", lambda text: values.parse_instant(text, "run_at"))
EXPIRES = Checked("seconds|time", _expires)
TIMEOUT = Checked("seconds|none", _timeout)
KEY = Checked("key", values.idempotency_key)
QUEUE = Checked("queue", values.queue_name)
TASK_TYPE = Checked("type", values.task_type)
WORKER_NAME = Checked("name", _worker_name)
TASK_ID = click.IntRange(1, 2**63 - 1)


def acting(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--reason`` and ``--who``, for the audit log; ``acts`` makes arguments of them."""
    who = click.option("--who", help="Who does it, for the audit log; default: the user that runs this.")
    return click.option("--reason", "because", help="Why it is done, for the audit log.")(who(command))


def acts(because: str | None, who: str | None) -> dict[str, str]:
    """What was given of ``acting``, as arguments of a method."""
    return {name: value for name, value in (("reason", because), ("who", who)) if value}


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def queues_of(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """``-q high,default -q low`` as names in the order given; None when there are none."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    if given and not names:
        raise click.BadParameter("no queue is named", ctx, param)
    for name in names:
        QUEUE.convert(name, param, ctx)
    return tuple(dict.fromkeys(names)) or None


def name_variables(command: click.Command, prefix: str) -> None:
    """Give every flag of a verb its variable: ``--max-tasks`` of ``worker`` is TANDEMQ_WORKER_MAX_TASKS."""
    prefix = f"{prefix}_{command.name}".upper().replace("-", "_")
    for flag in command.params:
        if isinstance(flag, click.Option):
            flag.envvar = f"{prefix}_{max(flag.opts, key=len).lstrip('-')}".upper().replace("-", "_")
            flag.show_envvar = True
    if isinstance(command, click.Group):
        for verb in command.commands.values():
            name_variables(verb, prefix)


def metrics(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--metrics-port``, ``--metrics-host``, ``--no-install-metrics``."""
    port = click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics and /health here.")
    host = click.option("--metrics-host", default="127.0.0.1", help="Address to serve them on; they have no password.")
    own = click.option(
        "--install-metrics/--no-install-metrics",
        default=True,
        help="Show the whole install on the page, or this alone.",
    )
    return port(host(own(command)))
