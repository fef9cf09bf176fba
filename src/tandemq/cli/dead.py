"""``tandemq dead``: list, group, show, replay, export, import and purge dead letters."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import click

from tandemq.archive import line_of, whole_file
from tandemq.cli import exits, flags, output, replays
from tandemq.cli.lines import Importer
from tandemq.cli.look import full_page, show_page, show_task
from tandemq.cli.narrowing import filter_of, narrowing, target
from tandemq.cli.produce import FileOptions, feed, warn_of_line
from tandemq.cli.session import Session, pass_session
from tandemq.core import exported
from tandemq.core.kinds import BYS, Groups
from tandemq.store.answers import Filter

#: A line of an export holds the history, too: traces of every failed attempt.
MAX_LINE_BYTES = 256 * 1024 * 1024


@click.group()
def dead() -> None:
    """Dead letters: tasks whose runs are used up, or that may not be tried again."""


@dead.command("list")
@narrowing
@click.option("--group-by", type=click.Choice(BYS), help="How many there are of which kind, instead of a page.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="Tasks (or kinds) on a page.")
@click.option("--after", type=flags.TASK_ID, help="Next page: the id that the last one named.")
@flags.as_json
@pass_session
def list_dead(
    session: Session, /, group_by: str | None, limit: int, after: int | None, as_json: bool, **given: Any
) -> int:
    """Dead letters, newest first."""
    where = filter_of(session, given)
    if group_by is not None:
        if after is not None:
            raise click.UsageError("--group-by has no pages: --after does not go with it")
        _show_groups(session.app.dead.group(where, by=group_by).first(limit), as_json)
        return 0
    page = full_page(partial(session.app.dead.search, where), limit=limit, after=after)
    show_page(page, as_json, limit=limit, empty="no dead letters")
    return 0


def _show_groups(groups: Groups, as_json: bool) -> None:
    if as_json:
        output.document(groups.to_json())
        return
    of_error = ("ERROR TYPE",) if groups.by == "error" else ()
    headers = ("COUNT", *of_error, groups.by.upper(), "FIRST", "LAST", "EXAMPLE")
    rows = [
        (g.count, *((g.error_type or None,) if of_error else ()), g.kind or None, g.first_at, g.last_at, g.example_id)
        for g in groups.items
    ]
    output.table(headers, rows, empty="no dead letters")
    if groups.others:
        click.echo(f"of other kinds: {groups.others}")
    if groups.capped:
        click.echo(f"these are {groups.total} of more: not all were looked at, or there are too many kinds")


@dead.command()
@click.argument("task_id", metavar="ID", type=flags.TASK_ID)
@flags.as_json
@pass_session
def show(session: Session, /, task_id: int, as_json: bool) -> int:
    """A dead letter with every failed attempt."""
    show_task(session.app.dead.show(task_id), as_json)
    return 0


@dead.command()
@click.argument("path", metavar="FILE|-")
@narrowing
@flags.as_json
@pass_session
def export(session: Session, /, path: str, as_json: bool, **given: Any) -> int:
    """Write dead letters with their failed attempts to FILE as JSON lines: all, or what the flags narrow down to.

    The file appears when it is whole. In no order of time.
    """
    where, count = filter_of(session, given), 0
    try:
        with nullcontext(sys.stdout) if path == "-" else whole_file(path) as stream:
            for task in session.app.dead.export(where):
                stream.write(line_of(task))
                count += 1
    except BrokenPipeError:
        raise
    except OSError as bad:
        raise click.FileError(path, bad.strerror or str(bad)) from bad
    if path == "-":
        output.warn(f"{count} dead letters exported")
    elif as_json:
        output.document({"exported": count, "file": path})
    else:
        click.echo(f"{count} dead letters exported to {path}")
    return 0


@dead.command("import")
@click.argument("path", metavar="FILE|-")
@click.option("--keep-going", is_flag=True, help="Report bad lines and go on (exit code 1 at the end).")
@click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first N lines.")
@flags.acting
@flags.as_json
@pass_session
def import_dead(
    session: Session,
    /,
    path: str,
    keep_going: bool,
    skip: int,
    because: str | None,
    who: str | None,
    as_json: bool,
) -> int:
    """Enqueue exported tasks anew. Importing twice makes no second task, as long as the first one's row is there.

    Stops at the first bad line with exit code 2; what came before is stored.
    """
    app = session.app
    deed = app.dead.importing(**flags.acts(because, who), details={"file": path})
    importer = Importer(lambda news: app.dead.import_batch(news, deed), keep_going, warn_of_line)
    return feed(
        importer,
        path,
        FileOptions(keep_going, skip, as_json),
        max_bytes=MAX_LINE_BYTES,
        task_of=exported.new_task,
    )


@dead.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=flags.TASK_ID)
@partial(narrowing, acts=True)
@click.option("--yes", is_flag=True, help="Really delete them.")
@click.option("--dry-run", is_flag=True, help="Only say how many would go.")
@click.option("--archive", metavar="FILE", help="Add each to this file, as JSON lines, before it is deleted.")
@flags.acting
@flags.as_json
@pass_session
def purge(
    session: Session,
    /,
    ids: tuple[int, ...],
    yes: bool,
    dry_run: bool,
    archive: str | None,
    because: str | None,
    who: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Delete dead letters for good: those with the IDs, or those that the flags narrow down to.

    Without --yes it says how many that would be, and ends with exit code 2. A task with an idempotency key is kept for
    24 hours after its end.
    """
    where: Filter | None = target(ids, filter_of(session, given), False)
    is_trial = dry_run or not yes
    try:
        answer = session.app.dead.purge(
            ids or None, where=where, archive=archive, dry_run=is_trial, **flags.acts(because, who)
        )
    except OSError as bad:
        raise click.FileError(archive or "", bad.strerror or str(bad)) from bad
    if as_json:
        output.document(answer._asdict() | ({"dry_run": True} if is_trial else {}))
    elif is_trial:
        click.echo(f"{answer.purged} would be purged, {answer.kept} kept")
    else:
        click.echo(f"{answer.purged} purged, {answer.kept} kept")
    if not yes and not dry_run:
        raise click.UsageError("nothing was deleted: add --yes")
    return exits.FAILED if ids and answer.kept else 0


dead.add_command(replays.replay)
dead.add_command(replays.replays)
