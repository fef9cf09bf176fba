"""``tandemq queue``: how the tasks of a queue are retried where neither the enqueue nor the task says so."""

from __future__ import annotations

from typing import Any

import click

from tandemq.cli import flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.backoff import Constant, Delays, Exponential, Linear
from tandemq.core.retry import Backoff, QueuePolicy, RetryPolicy

_SHAPES = {"exponential": Exponential, "linear": Linear, "constant": Constant}
_HEADERS = ("QUEUE", "MAX RETRIES", "BACKOFF", "JITTER", "MAX AGE", "SEED")


class BackoffType(click.ParamType[Backoff]):
    """``1,5,15``, ``exponential:base,factor,cap``, ``linear:base,step,cap`` or ``constant:seconds``."""

    name = "BACKOFF"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Backoff:
        """Click's contract."""
        shape, colon, numbers = str(value).rpartition(":")
        if colon and shape not in _SHAPES:
            self.fail(f"{shape!r} is no backoff; use {', '.join(_SHAPES)} or delays like 1,5,15", param, ctx)
        try:
            given = [float(number) for number in numbers.split(",")] if numbers else []
            return _SHAPES[shape](*given) if colon else Delays(tuple(given))
        except (ValueError, TypeError) as bad:
            self.fail(f"{value!r}: {bad}", param, ctx)


class JitterType(click.ParamType[Any]):
    """A share from 0 to 1, or ``full``."""

    name = "SHARE|full"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Click's contract."""
        try:
            return RetryPolicy(jitter="full" if value == "full" else float(value)).jitter
        except (ValueError, TypeError) as bad:
            self.fail(str(bad), param, ctx)


@click.group()
def queue() -> None:
    """What is decided about queues."""


@queue.command("set")
@click.argument("name", type=flags.QUEUE)
@click.option("--max-retries", type=click.IntRange(0, 1_000_000), help="Runs allowed are 1 + this.")
@click.option("--backoff", type=BackoffType(), help="1,5,15 or exponential:base,factor,cap (linear, constant).")
@click.option("--jitter", type=JitterType(), help="Share by which a delay is moved, or full.")
@click.option("--max-age", type=flags.AGE, help="No retry later than this after the task was created: 90s, 2h, 7d.")
@click.option("--clear", is_flag=True, help="Take back what was decided.")
@flags.acting
@pass_session
def set_policy(session: Session, /, name: str, clear: bool, because: str | None, who: str | None, **policy: Any) -> int:
    """Decide how the tasks of the queue NAME are retried; replaces what was decided before.

    It holds for tasks that are enqueued from now on (within ten seconds), where neither the enqueue nor the task says
    otherwise.
    """
    given = {field: value for field, value in policy.items() if value is not None}
    if bool(given) == clear:
        raise click.UsageError("say what is decided (--max-retries, --backoff, --jitter, --max-age), or --clear")
    decided = session.app.queues.set_policy(name, RetryPolicy(**given) if given else None, **flags.acts(because, who))
    click.echo(f"queue {name}: {_sentence(decided)}")
    return 0


@queue.command("show")
@flags.as_json
@pass_session
def show_policies(session: Session, /, as_json: bool) -> int:
    """What is decided about queues."""
    policies = session.app.queues.policies()
    if as_json:
        items = [{"queue": name, "max_retries": p.max_retries, **p.options} for name, p in sorted(policies.items())]
        output.document({"items": items, "next": None})
        return 0
    rows = [
        (
            name,
            p.max_retries,
            p.options.get("backoff"),
            p.options.get("jitter"),
            p.options.get("max_age"),
            p.options.get("seed"),
        )
        for name, p in sorted(policies.items())
    ]
    output.table(_HEADERS, rows, empty="nothing is decided about any queue")
    return 0


def _sentence(policy: QueuePolicy) -> str:
    decided = {"max_retries": policy.max_retries, **policy.options}
    return ", ".join(f"{name} {value}" for name, value in decided.items() if value is not None) or "nothing decided"
