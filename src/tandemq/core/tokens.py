"""Tokens of the HTTP API as values: their text, what is stored of them, and the checks of what one is made from.

The text is ``tq_<id>_<secret>``. The id finds the row and may be shown; the secret is 256 random bits, shown once, and
only its SHA-256 is kept. (A slow hash is for what people choose themselves. Nobody guesses 256 bits, and every request
would pay for it.)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.values import rfc3339, seconds

#: What a token may do, weakest first. ``tandemq.http.routing.Role`` says what each of them means.
ROLES: Final = ("read", "produce", "work", "operate")
#: Requests a second: a bound that an operator sets is one in a thousand seconds at least.
MIN_RATE, MAX_RATE = 0.001, 1_000_000.0
MAX_EXPIRES_S = 100 * 366 * 86_400.0
PREFIX: Final = "tq_"
TOKEN_TEXT: Final = re.compile(rb"tq_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as stored; times are UTC. ``state`` is ``live``, ``expired`` or ``revoked``, by the database's clock.

    ``rate``: requests a second, 0 for what the API is started with. ``last_used_at`` is true to a minute or so.
    """

    id: str
    name: str
    roles: frozenset[str]
    rate: float
    state: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI."""
        return {
            "id": self.id,
            "name": self.name,
            "roles": ordered(self.roles),
            "rate": self.rate,
            "state": self.state,
            "created_at": rfc3339(self.created_at),
            "created_by": self.created_by,
            "expires_at": rfc3339(self.expires_at),
            "revoked_at": rfc3339(self.revoked_at),
            "last_used_at": rfc3339(self.last_used_at),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """What is stored of a token that is made now. ``expires_s``: seconds from now, None for never."""

    id: str
    name: str
    roles: frozenset[str]
    hash: str = field(repr=False)
    rate: float = 0.0
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class LiveToken:
    """What it takes to let a request in. ``hash`` is raw; ``left_s``: seconds until it expires, None for never."""

    id: str
    name: str
    roles: frozenset[str]
    hash: bytes = field(repr=False)
    rate: float
    left_s: float | None


@dataclass(frozen=True, slots=True)
class LiveTokens:
    """All live tokens at one instant; ``any_ever``: whether there is a token at all, live or not."""

    tokens: tuple[LiveToken, ...]
    any_ever: bool


def text_of(token_id: str, secret: str) -> str:
    """What a client sends."""
    return f"{PREFIX}{token_id}_{secret}"


def digest(secret: bytes) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret).digest()


def ordered(roles: Collection[str]) -> list[str]:
    """Roles, weakest first."""
    return [role for role in ROLES if role in roles]


def check_name(name: Any) -> str:
    """1 to 64 of ``A-Z a-z 0-9 _ . -``, and nothing that could be taken for an id or for a token."""
    if not isinstance(name, str):
        raise InvalidType(f"name must be text, not {type(name).__name__}", field="name")
    if name.startswith(PREFIX):  # a token, pasted by mistake: not to be repeated in an error
        raise InvalidTask(f"name must not begin with {PREFIX}, as tokens do", field="name")
    if not _NAME.fullmatch(name):
        raise InvalidTask(f"name {name!r} must be 1 to 64 of the characters A-Z a-z 0-9 _ . -", field="name")
    if _ID.fullmatch(name):
        raise InvalidTask(f"name {name!r} looks like the id of a token", field="name")
    return name


def check_roles(roles: Any) -> frozenset[str]:
    """At least one of ``ROLES``."""
    if isinstance(roles, str) or not isinstance(roles, Collection):
        raise InvalidType("roles must be a list of texts", field="roles")
    given = list(roles)
    if unknown := [role for role in given if role not in ROLES]:
        raise InvalidTask(f"role {unknown[0]!r} is unknown; use {', '.join(ROLES)}", field="roles")
    if not given:
        raise InvalidTask(f"roles must not be empty; use {', '.join(ROLES)}", field="roles")
    return frozenset(map(str, given))


def check_rate(rate: Any) -> float:
    """Requests a second; 0: what the API is started with."""
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise InvalidType(f"rate must be a number of requests a second, not {rate!r}", field="rate")
    if rate != 0 and not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidTask(f"rate must be 0 or from {MIN_RATE} to {MAX_RATE:.0f} a second, not {rate!r}", field="rate")
    return float(rate)


def check_expires(expires: Any) -> float | None:
    """Seconds from now (or a timedelta), None for never."""
    if expires is None:
        return None
    given = seconds(expires, "expires")
    if not 0 < given <= MAX_EXPIRES_S:
        raise InvalidTask(
            f"expires must be more than 0 seconds and at most 100 years, not {given:g} s", field="expires"
        )
    return given
