"""``tandemq dead``: list, show, replay and purge dead letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.look import full_page, show_page, show_task
from tandemq.cli.session import Session, pass_session
from tandemq.core.lifecycle import DeadReason
from tandemq.store.answers import Filter


def _narrowing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that make a Filter, given to the command as ``where`` (None: no flag was given)."""
    options = [
        click.option("--queue", type=flags.QUEUE, help="Of this queue."),
        click.option("--type", "task_type", type=flags.TASK_TYPE, help="Of this task type."),
        click.option(
            "--reason", type=click.Choice([reason.value for reason in DeadReason]), help="Dead for this reason."
        ),
        click.option("--error-type", help="Whose last error is of this type."),
        click.option("--error", "error_text", help="Whose last error contains this text."),
        click.option("--cancelled", "state", flag_value="cancelled", help="Cancelled tasks instead of dead ones."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _filter(narrowing: dict[str, Any]) -> Filter | None:
    given = {name: value for name, value in narrowing.items() if value is not None}
    return Filter(**given) if given else None


@click.group()
def dead() -> None:
    """Dead letters: tasks whose runs are used up, or that may not be tried again."""


@dead.command("list")
@_narrowing
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="Tasks on a page.")
@click.option("--after", type=flags.TASK_ID, help="Next page: the id that the last one named.")
@flags.as_json
@pass_session
def list_dead(session: Session, /, limit: int, after: int | None, as_json: bool, **narrowing: Any) -> int:
    """Dead letters, newest first."""
    page = full_page(partial(session.app.dead.search, _filter(narrowing)), limit=limit, after=after)
    show_page(page, as_json, limit=limit, empty="no dead letters")
    return 0


@dead.command()
@click.argument("task_id", metavar="ID", type=flags.TASK_ID)
@flags.as_json
@pass_session
def show(session: Session, /, task_id: int, as_json: bool) -> int:
    """A dead letter with every failed attempt."""
    show_task(session.app.dead.show(task_id), as_json)
    return 0


@dead.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=flags.TASK_ID)
@_narrowing
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@flags.as_json
@pass_session
def replay(session: Session, /, ids: tuple[int, ...], everything: bool, as_json: bool, **narrowing: Any) -> int:
    """Make dead letters pending again: those with the IDs, those that the flags narrow down to, or --all."""
    where = _target(ids, _filter(narrowing), everything)
    answer = session.app.dead.replay(ids or None, where=where)
    if as_json:
        output.document(answer._asdict())
    else:
        click.echo(f"{answer.moved} replayed, {answer.skipped} left as they are")
    return exits.FAILED if ids and answer.skipped else 0


@dead.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=flags.TASK_ID)
@_narrowing
@flags.as_json
@pass_session
def purge(session: Session, /, ids: tuple[int, ...], as_json: bool, **narrowing: Any) -> int:
    """Delete dead letters for good: those with the IDs, or those that the flags narrow down to.

    A task with an idempotency key is kept for 24 hours after its end.
    """
    where = _target(ids, _filter(narrowing), False)
    answer = session.app.dead.purge(ids or None, where=where)
    if as_json:
        output.document(answer._asdict())
    else:
        click.echo(f"{answer.purged} purged, {answer.kept} kept")
    return exits.FAILED if ids and answer.kept else 0


def _target(ids: tuple[int, ...], where: Filter | None, everything: bool) -> Filter | None:
    """Exactly one way of saying which ones: nothing at all must not mean everything."""
    if sum((bool(ids), where is not None, everything)) != 1:
        raise click.UsageError("say which: IDs, or flags that narrow (--queue, --type, ...); replay also takes --all")
    return Filter() if everything else where
