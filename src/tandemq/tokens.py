"""Tokens of the HTTP API: made, listed, revoked. ``tandemq.http.security`` asks for them at every request."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemq.acting import acting
from tandemq.core import ids, tokens
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.tokens import NewToken, Token
from tandemq.core.values import Seconds
from tandemq.links import Links


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A token just made. ``text`` is what its client sends; it is nowhere else, and not in the repr of this."""

    id: str
    name: str
    text: str = field(repr=False)


class Revoked(NamedTuple):
    """``now``: revoked by this call; ``before``: were revoked already."""

    now: tuple[Token, ...]
    before: tuple[Token, ...]


class Tokens:
    """``app.tokens``. What is changed here holds in every API process within two seconds."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def create(
        self,
        name: str,
        roles: Collection[str],
        *,
        expires: Seconds | None = None,
        rate: float = 0.0,
        reason: str = "",
        who: str | None = None,
    ) -> CreatedToken:
        """Make a token; several of one name may be live, so that one can take the place of another.

        ``roles``: of read, produce, work, operate. ``expires``: seconds from now. ``rate``: requests a second, 0 for
        what the API is started with. If the process dies in here nobody has the text: revoke the token by its name.
        """
        token_id, secret = ids.api_token()
        new = NewToken(
            id=token_id,
            name=tokens.check_name(name),
            roles=tokens.check_roles(roles),
            hash=tokens.digest(secret.encode()).hex(),
            rate=tokens.check_rate(rate),
            expires_s=tokens.check_expires(expires),
        )
        details: dict[str, Any] = {"token": new.id, "name": new.name, "roles": tokens.ordered(new.roles)}
        details |= {"rate": new.rate} if new.rate else {}
        details |= {"expires_s": new.expires_s} if new.expires_s is not None else {}
        self._links.store.add_token(new, deed=acting("token_create", who, reason, details=details))
        return CreatedToken(new.id, new.name, tokens.text_of(new.id, secret))

    def list(self) -> list[Token]:
        """All there ever were, newest first."""
        return self._links.store.tokens()

    def revoke(self, which: str, *, every: bool = False, reason: str = "", who: str | None = None) -> Revoked:
        """Revoke a token by its id, or the live one of a name; ``every``: all live ones of that name.

        Nothing is found: both parts of the answer are empty. InvalidTask if several live ones have the name.
        """
        if not isinstance(which, str):
            raise InvalidType(f"which must be text, not {type(which).__name__}", field="which")
        if which.startswith(tokens.PREFIX):  # not to be repeated: an error is logged
            raise InvalidTask(
                "say the id (between the first two _ of the token) or the name, not the token", field="which"
            )
        found = [token for token in self._links.store.tokens() if which in {token.id, token.name}]
        standing = [t for t in found if t.state == "live" or (t.state == "expired" and t.id == which)]
        if len(standing) > 1 and not every:
            names = ", ".join(token.id for token in standing)
            raise InvalidTask(
                f"{len(standing)} live tokens are named {which!r}: revoke by id ({names}), or all of them",
                field="which",
            )
        details = {"tokens": [token.id for token in standing], "names": sorted({token.name for token in standing})}
        deed = acting("token_revoke", who, reason, details=details)
        self._links.store.revoke_tokens([token.id for token in standing], deed=deed)
        return Revoked(tuple(standing), tuple(token for token in found if token.state == "revoked"))
