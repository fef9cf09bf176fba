"""``tandemq migrate``."""

from __future__ import annotations

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.errors import TandemQError
from tandemq.core.settings import Settings
from tandemq.store import rights
from tandemq.store.migrate import files, pending, render
from tandemq.store.migrate import migrate as apply


def _missing(settings: Settings) -> list[str] | None:
    """What a database lacks that has some of it; None, for everything, where it has none or all, or cannot be asked."""
    if not settings.database_url:
        return None
    try:
        names = pending(settings)
    except TandemQError:
        return None
    return names if 0 < len(names) < len(files("mysql")) else None


@click.command()
@click.option("--check", is_flag=True, help="Apply nothing; exit code 1 if something is pending or a right is lacking.")
@click.option("--sql", "as_sql", is_flag=True, help="Apply nothing; print the SQL for a DBA to run (what is missing).")
@flags.as_json
@pass_session
def migrate(session: Session, /, check: bool, as_sql: bool, as_json: bool) -> int:
    """Make or update the tables. Does nothing where nothing is pending; safe when two run at once.

    --check is for the user of the workers: whether it may start them, with this schema and with these rights.
    """
    if check and as_sql:
        raise click.UsageError("--check and --sql exclude each other")
    settings = session.app.settings
    if as_sql:
        # Without any URL, too: who prints SQL for a DBA is not after the embedded default.
        dialect = "sqlite" if settings.database_url.startswith("sqlite") else "mysql"
        text = render(settings, dialect, _missing(settings))
        if as_json:
            output.document({"sql": text})
        else:
            click.echo(text)
        return 0
    names = pending(settings) if check else apply(settings)
    if not check:
        if as_json:
            output.document({"applied": names})
        else:
            click.echo(f"applied: {', '.join(names)}" if names else "nothing to apply")
        return 0
    # A table that is not there cannot be asked for.
    lacking = [] if names else rights.lacking(settings)
    if as_json:
        output.document({"pending": names, "lacking": lacking})
    else:
        click.echo(f"pending: {', '.join(names)}" if names else "nothing is pending")
        if lacking:
            click.echo(rights.sentence(lacking))
    return exits.FAILED if names or lacking else 0
