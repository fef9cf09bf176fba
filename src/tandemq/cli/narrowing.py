"""The flags that say which dead letters are meant.

``--reason`` of a verb that only looks is why a task is dead; of one that acts it is why that is done, for the audit
log, and then the other one is ``--dead-reason``. That name is good everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tandemq.cli import flags
from tandemq.cli.session import Session
from tandemq.core.body import parse_json
from tandemq.core.errors import InvalidTask
from tandemq.core.lifecycle import DeadReason
from tandemq.store.answers import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowing(command: Callable[..., Any], *, acts: bool = False) -> Callable[..., Any]:
    """The flags that make a Filter; their values go to ``filter_of``. ``acts``: ``flags.acting`` is used beside it."""
    options = [
        click.option("--queue", type=flags.QUEUE, help="Of this queue."),
        click.option("--type", "task_type", type=flags.TASK_TYPE, help="Of this task type."),
        click.option(
            "--dead-reason",
            *([] if acts else ["--reason"]),
            "reason",
            type=click.Choice([reason.value for reason in DeadReason]),
            help="Dead for this reason.",
        ),
        click.option("--error-type", help="Whose last error is of this type."),
        click.option("--error", "error_text", help="Whose last error contains this text."),
        click.option(
            "--where",
            "payload",
            multiple=True,
            metavar="PATH=VALUE",
            help="With this JSON value in the payload: order_id=42, customer.city=Bern. May be repeated.",
        ),
        click.option("--older-than", type=flags.AGE, help="Ended at least so long ago: 90s, 30m, 12h, 7d, 2w."),
        click.option("--newer-than", type=flags.AGE, help="Ended less long ago than this."),
        click.option("--key", type=flags.KEY, help="With this idempotency key."),
        click.option("--worker", "worker_id", help="Run last by the worker with this id."),
        click.option("--cancelled", "state", flag_value="cancelled", help="Cancelled tasks instead of dead ones."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def filter_of(session: Session, given: dict[str, Any]) -> Filter | None:
    """The filter that the flags make, None if there are none. Ages count from now, by the database's clock."""
    given = {name: value for name, value in given.items() if value not in {None, ()}}
    ages = {"ended_before": given.pop("older_than", None), "ended_after": given.pop("newer_than", None)}
    if "payload" in given:
        given["payload"] = _payload(given["payload"])
    if any(age is not None for age in ages.values()):
        now = session.app.store.now()
        for name, age_s in ages.items():
            if age_s is not None:
                given[name] = now - timedelta(seconds=min(age_s, (now - _EPOCH).total_seconds()))
    return Filter(**given) if given else None


def target(ids: tuple[int, ...], where: Filter | None, everything: bool) -> Filter | None:
    """Exactly one way of saying which ones: nothing at all must not mean everything."""
    if sum((bool(ids), where is not None, everything)) != 1:
        raise click.UsageError("say which: IDs, or flags that narrow (--queue, --type, ...); replay also takes --all")
    return Filter() if everything else where


def _payload(given: tuple[str, ...]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for text in given:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise click.UsageError(f"--where {text!r} is not PATH=VALUE")
        if path in wanted:
            raise click.UsageError(f"--where names {path!r} twice: no task can fit both")
        try:
            wanted[path] = parse_json(value, "value")
        except InvalidTask:
            wanted[path] = value
    return wanted
