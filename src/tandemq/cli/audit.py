"""``tandemq audit``: who did what to which tasks, and why."""

from __future__ import annotations

import json

import click

from tandemq.cli import flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.audit import AuditRecord

_HEADERS = ("ID", "AT", "WHO", "ACTION", "TASK", "RUN", "N", "REASON", "DETAILS")


@click.command()
@click.option("--task", "task_id", type=flags.TASK_ID, help="What was done to this task.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, help="Rows on a page.")
@click.option("--after", type=flags.TASK_ID, help="Next page: the id that the last one named.")
@flags.as_json
@pass_session
def audit(session: Session, /, task_id: int | None, limit: int, after: int | None, as_json: bool) -> int:
    """What people (and retention) did to tasks, newest first."""
    page = session.app.audit(task_id=task_id, limit=limit, after=after)
    if as_json:
        output.document({"items": [record.to_json() for record in page.items], "next": page.next})
        return 0
    output.table(_HEADERS, [_row(record) for record in page.items], empty="nothing was done")
    if page.next is not None:
        click.echo(f"more: --after {page.next}")
    return 0


def _row(record: AuditRecord) -> tuple[object, ...]:
    details = json.dumps(record.details) if record.details else None
    reason = record.reason or None
    return record.id, record.at, record.who, record.action, record.task_id, record.run_id, record.n, reason, details
