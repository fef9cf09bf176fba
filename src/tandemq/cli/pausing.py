"""``tandemq pause``, ``resume`` and ``drain``: what of the work begins, for everybody at once."""

from __future__ import annotations

from typing import Any

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.pausing import PauseKind

_HEADERS = ("KIND", "NAME", "SINCE", "UNTIL", "WHO", "REASON")


def _what(queue: str | None, task_type: str | None) -> str:
    if (queue is None) == (task_type is None):
        raise click.UsageError("name a queue, or a task type with --type")
    return f"queue {queue}" if queue is not None else f"task type {task_type}"


def _long(seconds: float) -> str:
    """A length of time in the biggest unit that says it: 90s, 10m, 40d."""
    fits = (unit for unit in "dhm" if seconds % flags.AGE_UNITS[unit] == 0)
    unit = next(fits, "s")
    return f"{seconds / flags.AGE_UNITS[unit]:.15g}{unit}"


def _shape(queue: str | None, task_type: str | None) -> dict[str, Any]:
    kind = PauseKind.QUEUE if queue is not None else PauseKind.TYPE
    return {"kind": kind.value, "name": queue if queue is not None else task_type}


_QUEUE = click.argument("queue", type=flags.QUEUE, required=False)
_TYPE = click.option("--type", "task_type", type=flags.TASK_TYPE, help="A task type, in all queues.")


@click.command()
@_QUEUE
@_TYPE
@click.option("--for", "for_s", type=flags.AGE, help="It ends by itself after so long: 90s, 10m, 2h, 7d.")
@click.option("--list", "listing", is_flag=True, help="Show what is paused.")
@flags.acting
@flags.as_json
@pass_session
def pause(
    session: Session, /, queue: str | None, task_type: str | None, for_s: float | None, listing: bool,
    because: str | None, who: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Let nothing more of QUEUE (or of a task type) begin; all workers obey within two seconds.

    What runs goes on, enqueues are taken and wait. It outlives restarts of everything.
    """
    pauses = session.app.pauses
    if listing:
        return _list(session, as_json)
    what = _what(queue, task_type)
    pauses.pause(queue, task_type=task_type, for_=for_s, **flags.acts(because, who))
    if as_json:
        output.document(_shape(queue, task_type) | {"for_s": for_s})
    else:
        click.echo(f"{what} is paused" + ("" if for_s is None else f" for {_long(for_s)}"))
    return 0


@click.command()
@_QUEUE
@_TYPE
@flags.acting
@flags.as_json
@pass_session
def resume(
    session: Session, /, queue: str | None, task_type: str | None, because: str | None, who: str | None, as_json: bool
) -> int:
    """End a pause of QUEUE, or of a task type. Exits 1 if there is none."""
    what = _what(queue, task_type)
    resumed = session.app.pauses.resume(queue, task_type=task_type, **flags.acts(because, who))
    if as_json:
        output.document(_shape(queue, task_type) | {"resumed": resumed})
    if not resumed:
        raise exits.Failed(f"{what} is not paused")
    if not as_json:
        click.echo(f"{what} goes on")
    return 0


@click.command()
@click.argument("queue", type=flags.QUEUE)
@click.option(
    "--timeout", "timeout_s", type=flags.AGE, help="Give up waiting after so long (it stays paused): 90s, 10m."
)
@flags.acting
@flags.as_json
@pass_session
def drain(
    session: Session, /, queue: str, timeout_s: float | None, because: str | None, who: str | None, as_json: bool
) -> int:
    """Pause QUEUE and wait until nothing of it runs any more. Exits 1 when --timeout has passed before that."""
    drained = session.app.pauses.drain(queue, timeout=timeout_s, reason=because or "", who=who)
    if as_json:
        output.document(_shape(queue, None) | {"drained": drained})
    if not drained:
        raise exits.Failed(f"tasks of queue {queue} still run after {_long(timeout_s or 0.0)}; it stays paused")
    if not as_json:
        click.echo(f"queue {queue} is paused and nothing of it runs; tandemq resume {queue} lets it go on")
    return 0


def _list(session: Session, as_json: bool) -> int:
    pauses = session.app.pauses.list()
    if as_json:
        output.document({"items": [pause.to_json() for pause in pauses], "next": None})
        return 0
    rows = [(p.kind.value, p.name, p.since, p.until, p.who, p.reason or None) for p in pauses]
    output.table(_HEADERS, rows, empty="nothing is paused")
    return 0
