"""``tandemq pause``, ``resume`` and ``drain``: what of the work begins, for everybody at once."""

from __future__ import annotations

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session

_HEADERS = ("KIND", "NAME", "SINCE", "UNTIL", "WHO", "REASON")


def _what(queue: str | None, task_type: str | None) -> str:
    if (queue is None) == (task_type is None):
        raise click.UsageError("name a queue, or a task type with --type")
    return f"queue {queue}" if queue is not None else f"task type {task_type}"


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
    click.echo(f"{what} is paused" + ("" if for_s is None else f" for {for_s:g} s"))
    return 0


@click.command()
@_QUEUE
@_TYPE
@flags.acting
@pass_session
def resume(session: Session, /, queue: str | None, task_type: str | None, because: str | None, who: str | None) -> int:
    """End a pause of QUEUE, or of a task type. Exits 1 if there is none."""
    what = _what(queue, task_type)
    if not session.app.pauses.resume(queue, task_type=task_type, **flags.acts(because, who)):
        raise exits.Failed(f"{what} is not paused")
    click.echo(f"{what} goes on")
    return 0


@click.command()
@click.argument("queue", type=flags.QUEUE)
@click.option(
    "--timeout", "timeout_s", type=flags.AGE, help="Give up waiting after so long (it stays paused): 90s, 10m."
)
@flags.acting
@pass_session
def drain(session: Session, /, queue: str, timeout_s: float | None, because: str | None, who: str | None) -> int:
    """Pause QUEUE and wait until nothing of it runs any more. Exits 1 when --timeout has passed before that."""
    if not session.app.pauses.drain(queue, timeout=timeout_s, reason=because or "", who=who):
        raise exits.Failed(f"tasks of queue {queue} still run after {timeout_s:g} s; it stays paused")
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
