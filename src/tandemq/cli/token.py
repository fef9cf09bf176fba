"""``tandemq token``: tokens of the HTTP API, made, listed and revoked."""

from __future__ import annotations

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.errors import InvalidTask
from tandemq.core.printable import when
from tandemq.core.tokens import ROLES, Token, check_name, check_rate, ordered

_HEADERS = ("ID", "NAME", "ROLES", "STATE", "RATE", "CREATED", "BY", "EXPIRES", "LAST USED")


def _rate(text: str) -> float:
    try:
        return check_rate(float(text))
    except ValueError as bad:
        raise (
            bad if isinstance(bad, InvalidTask) else InvalidTask(f"rate {text!r} is no number", field="rate")
        ) from None


@click.group()
def token() -> None:
    """Who may use the HTTP API, and for what."""


@token.command()
@click.argument("name", type=flags.Checked("name", check_name))
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, required=True, help="May be repeated.")
@click.option("--expires", type=flags.AGE, help="Good for so long: 12h, 90d, 52w; left out: until it is revoked.")
@click.option("--rate", type=flags.Checked("number", _rate), help="Requests a second; left out: as the API is started.")
@flags.acting
@pass_session
def create(
    session: Session,
    /,
    name: str,
    roles: tuple[str, ...],
    expires: float | None,
    rate: float | None,
    because: str | None,
    who: str | None,
) -> int:
    """Make a token for NAME and print it: once, as only its hash is kept.

    Roles: read (look at everything), produce (enqueue), work (claim, complete, fail), operate (all of it). Several
    tokens of one name may be good at once, so that one can take the place of another.
    """
    tokens = session.app.tokens
    made = tokens.create(name, roles, expires=expires, rate=rate or 0.0, reason=because or "", who=who)
    click.echo(made.text)
    may = ", ".join(ordered(roles))
    output.warn(f"token {made.id} of {name} ({may}): it is not shown again; tandemq token revoke {made.id} ends it")
    return 0


@token.command("list")
@flags.as_json
@pass_session
def list_tokens(session: Session, /, as_json: bool) -> int:
    """All tokens there ever were, newest first; never their secrets. LAST USED is true to a minute or so."""
    found = session.app.tokens.list()
    if as_json:
        output.document({"items": [one.to_json() for one in found], "next": None})
        return 0
    output.table(_HEADERS, map(_row, found), empty="there is no token")
    return 0


@token.command()
@click.argument("which", metavar="ID|NAME")
@click.option("--all", "every", is_flag=True, help="All tokens of that name that are good now.")
@flags.acting
@pass_session
def revoke(session: Session, /, which: str, every: bool, because: str | None, who: str | None) -> int:
    """Revoke a token by its id or its name: within two seconds no API lets it in any more."""
    done = session.app.tokens.revoke(which, every=every, **flags.acts(because, who))
    if not done.now and not done.before:
        raise exits.Failed("no live token has that id or name")
    for one in done.now:
        click.echo(f"revoked {one.id} ({one.name})")
    if not done.now:
        for one in done.before:
            click.echo(f"{one.id} ({one.name}) was revoked at {when(one.revoked_at)}")
    return 0


def _row(one: Token) -> tuple[object, ...]:
    roles, rate = ",".join(ordered(one.roles)), f"{one.rate:g}/s" if one.rate else None
    ends = (one.expires_at, one.last_used_at)
    return one.id, one.name, roles, one.state, rate, one.created_at, one.created_by, *ends
