"""``tandemq prune``: retention, run by hand or by cron."""

from __future__ import annotations

import sys
from typing import Any

import click

from tandemq.cli import flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.errors import TandemQError
from tandemq.core.values import rfc3339
from tandemq.pruning import DEFAULT_STATUSES, Pruned

DEFAULT = ",".join(sorted(DEFAULT_STATUSES))


@click.command()
@click.option("--older-than", type=flags.AGE, required=True, help="Ended at least so long ago: 90s, 30m, 12h, 7d, 2w.")
@click.option(
    "--status", "statuses", default=DEFAULT, metavar="A,B", help="Of these: succeeded, cancelled, dead (only if named)."
)
@click.option("--queue", type=flags.QUEUE, help="Of this queue.")
@click.option("--type", "task_type", type=flags.TASK_TYPE, help="Of this task type.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed for dead tasks where nobody can be asked.")
@flags.acting
@flags.as_json
@pass_session
def prune(
    session: Session,
    /,
    older_than: float,
    statuses: str,
    dry_run: bool,
    yes: bool,
    because: str | None,
    who: str | None,
    as_json: bool,
    **narrowing: Any,
) -> int:
    """Remove tasks that ended long ago, for good, with their failed attempts.

    In small transactions that do not hold up enqueueing and working. Interrupted, it has removed what it has
    removed; run again, it takes the rest. A task with an idempotency key is kept for 24 hours after its end.
    """
    wanted = [name.strip() for name in statuses.split(",") if name.strip()]
    if not dry_run and not yes:
        _ask(session, older_than, wanted, narrowing)
    removed, options = 0, narrowing | flags.acts(because, who)

    def note(so_far: int) -> None:
        nonlocal removed
        removed = so_far

    try:
        done = session.app.prune(older_than, statuses=wanted, dry_run=dry_run, on_batch=note, **options)
    except (TandemQError, KeyboardInterrupt):
        if removed and not dry_run:
            output.warn(f"stopped; {removed} tasks removed; the same command takes the rest")
        raise
    _tell(done, wanted, dry_run, as_json)
    return 0


def _ask(session: Session, older_than: float, wanted: list[str], narrowing: dict[str, Any]) -> None:
    """Whoever sits there is told what would go; cron is taken at its word, but for dead tasks."""
    if not sys.stdin.isatty():
        if "dead" in wanted:
            raise click.UsageError("removing dead tasks is for good: add --yes")
        return
    found = session.app.prune(older_than, statuses=wanted, dry_run=True, **narrowing)
    said = f"Remove {found.removed} tasks ({', '.join(wanted)}) that ended before {rfc3339(found.before)} for good?"
    click.confirm(said, abort=True, err=True)


def _tell(done: Pruned, wanted: list[str], dry_run: bool, as_json: bool) -> None:
    before = rfc3339(done.before)
    if as_json:
        output.document(done._asdict() | {"before": before, "statuses": wanted, "dry_run": dry_run})
        return
    text = f"{done.removed} tasks ({', '.join(wanted)}) that ended before {before} {'found' if dry_run else 'removed'}"
    text += f"; {done.kept} kept: in use, replayed, or keyed and ended within 24 hours" if done.kept else ""
    text += "" if done.complete else "; there may be more: --limit was reached"
    click.echo(text)
