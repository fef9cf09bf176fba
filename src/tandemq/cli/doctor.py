"""``tandemq doctor``: is this installation safe?"""

from __future__ import annotations

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.printable import printable
from tandemq.doctor import Diagnosis, Finding, Grade


@click.command()
@click.option("--fix", is_flag=True, help="Mend what is safe to mend in Redis; never changes a server's settings.")
@flags.as_json
@pass_session
def doctor(session: Session, /, fix: bool, as_json: bool) -> int:
    """Check both servers, the settings, and whether Redis agrees with the rows; say how to mend what is wrong.

    Reads a bounded part of the queues, however long they are. Exit code 1 if there is a fault, 3 if a server cannot
    be reached (the rest is checked all the same), otherwise 0.

    --fix pushes ids that are missing in Redis, takes out entries of tasks that have ended or do not exist, restores
    the sets of queues and levels, and marks a namespace that has no mark.
    """
    app = session.app
    app.import_tasks()
    diagnosis = app.doctor(fix=fix)
    if as_json:
        output.document(diagnosis.to_json())
    else:
        _tell(diagnosis)
    return exits.UNREACHABLE if diagnosis.unreachable else 0 if diagnosis.healthy else exits.FAILED


def _tell(diagnosis: Diagnosis) -> None:
    columns = max(len(finding.name) for finding in diagnosis)
    for finding in diagnosis:
        click.echo(f"{finding.level:<7}  {finding.name:<{columns}}  {printable(_line(finding))}")
    counted = [(grade, len(diagnosis.of(grade))) for grade in reversed(Grade)]
    click.echo(", ".join(f"{n} {grade}" for grade, n in counted if n))


def _line(finding: Finding) -> str:
    return exits.line_of(Exception(finding.sentence))
