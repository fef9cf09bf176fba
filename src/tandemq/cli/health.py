"""``tandemq health``: for probes of containers, for cron, for people."""

from __future__ import annotations

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.printable import printable
from tandemq.vitals import Vitals


@click.command()
@click.option("--worker", metavar="NAME", help="Name or id of a worker, wherever it is; default: those of this host.")
@click.option("--all", "every", is_flag=True, help="No worker may be silent, late or stuck, on whatever host.")
@click.option("--max-age", "max_age_s", type=flags.SECONDS, help="Oldest heartbeat allowed; default: three beats.")
@flags.as_json
@pass_session
def health(session: Session, /, worker: str | None, every: bool, max_age_s: float | None, as_json: bool) -> int:
    """Whether both servers answer and the worker of this host does its work; for container probes.

    Exit code 0 only after a real round trip to each server, and with a recent heartbeat of a worker whose loops turn;
    3 if a server does not answer, 1 if the worker is silent, late, stuck or not there. Takes three
    seconds at most.
    """
    if worker and every:
        raise click.UsageError("--worker and --all exclude each other")
    vitals = session.app.health(worker=worker, every=every, max_age_s=max_age_s)
    if as_json:
        output.document(vitals.to_json())
    else:
        _tell(vitals)
    return 0 if vitals.is_healthy else exits.FAILED if vitals.is_reachable else exits.UNREACHABLE


def _tell(vitals: Vitals) -> None:
    database, redis = ([why or "ok"] for why in (vitals.database, vitals.redis))
    workers = list(vitals.workers) or ["ok" if vitals.is_reachable else "not known"]
    told = {"database": database, "redis": redis, "worker": workers, "warning": list(vitals.warnings)}
    for part, lines in told.items():
        for line in lines:
            click.echo(f"{part:<8}  {printable(exits.line_of(Exception(line)))}")
