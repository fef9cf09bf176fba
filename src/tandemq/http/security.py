"""Who may do what: bearer tokens, roles, the rate of each token.

The gate keeps all live tokens in memory (``roster``) and reads them anew from the database about once a second while
requests come, so a token that is revoked is refused everywhere within two seconds. While the database is away the last
known ones go on: what they ask for is then answered by the work itself, with 503.

A failed login costs nothing that a guess could use (256 bits are not guessed); it is limited so that a client gone
wrong fills no log. A valid token is never refused for the failures of others: behind a proxy all have one address.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import logging
import math
import re
from collections import OrderedDict
from typing import Final

from starlette.requests import Request

from tandemq.app import TandemQ
from tandemq.core.errors import ConfigurationError, Unavailable
from tandemq.core.tokens import TOKEN_TEXT, digest
from tandemq.http.calls import Caller
from tandemq.http.options import ApiOptions
from tandemq.http.problems import Problem
from tandemq.http.roster import Bearer, Bucket, Roster, Rosters
from tandemq.http.routing import Role

_log = logging.getLogger("tandemq.http")
#: Failed logins of one address: so many in a row, then so many a second; and how many addresses are remembered.
FAILURES, FAILURES_PER_S, MAX_ADDRESSES = 20, 1 / 3, 4096
ANYBODY: Final = Caller("anybody", frozenset())
LOCAL: Final = Caller("local", frozenset(Role))
_NOBODY: Final = digest(b"")
#: By which names, and port, this machine calls itself.
_OWN_NAME: Final = re.compile(r"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)
#: A proxy in front: who asks is somewhere else, whatever the connection says.
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


class Gate:
    """Lets a request in, or raises the Problem that says why not (401, 403, 429; 503 if no token is known yet)."""

    def __init__(self, app: TandemQ, options: ApiOptions) -> None:
        self._app, self._options = app, options
        self._clock = app.clock
        self._is_loopback = options.is_loopback
        self._rosters = Rosters(app, options.rate)
        self._failures: OrderedDict[str, Bucket] = OrderedDict()

    def check_start(self) -> None:
        """ConfigurationError if strangers could reach an API that has no token. Call it before listening; it blocks.

        A database that is away is no reason not to start: off the loopback the gate lets in tokens only.
        """
        if self._is_loopback:
            return
        try:
            live = self._app.store.live_tokens().tokens
        except Unavailable as away:
            _log.warning("whether there are tokens is not known yet: %s", away)
            return
        if not live:
            raise ConfigurationError(
                f"the API would be open to others on {self._options.host}: make a token first"
                " (tandemq token create NAME --role ...), or use --host 127.0.0.1"
            )

    async def stop(self) -> None:
        """Leave nothing under way in this event loop."""
        await self._rosters.stop()

    async def admit(self, request: Request, roles: frozenset[Role] | None) -> Caller:
        """Who sends this. ``roles``: it must have one of them; None: anybody may."""
        if roles is None:
            return ANYBODY
        now = self._clock.monotonic()
        roster = self._rosters.known
        if roster is None or now >= roster.ahead_at:
            roster = await self._rosters.fresh(now)
            now = self._clock.monotonic()
        if not roster.any_ever and self._is_loopback:
            return _local(request)
        bearer = self._bearer(request, roster, now)
        if wait_s := bearer.take(now):
            raise too_many(f"this token may send {bearer.rate:g} requests a second", wait_s)
        if now >= bearer.note_at:
            self._rosters.note_use(bearer, now)
        if roles.isdisjoint(bearer.caller.roles):
            has, needs = _listed(bearer.caller.roles), _listed(roles)
            raise Problem("forbidden", f"this token has the role {has}; this needs one of {needs}")
        return bearer.caller

    def _bearer(self, request: Request, roster: Roster, now: float) -> Bearer:
        """Whose token this is. As much work for an unknown id as for a known one."""
        given = [value for name, value in request.scope["headers"] if name == b"authorization"]
        if not given:
            raise unauthorized("send a token: Authorization: Bearer tq_...")
        scheme, _, text = given[0].partition(b" ")
        match = TOKEN_TEXT.fullmatch(text.strip(b" ")) if scheme.lower() == b"bearer" and len(given) == 1 else None
        if match is None:
            raise self._failed(request, now, "", "Authorization must be, once: Bearer tq_...")
        token_id, secret = match.groups()
        bearer = roster.bearers.get(token_id)
        is_right = hmac.compare_digest(digest(secret), _NOBODY if bearer is None else bearer.hash)
        if bearer is None or not is_right or now >= bearer.ends_at:
            raise self._failed(request, now, token_id.decode(), "the token is unknown, revoked or expired")
        return bearer

    def _failed(self, request: Request, now: float, token_id: str, why: str) -> Problem:
        """401, or 429 after many from one address; logged as long as it is 401, without a byte of what was sent."""
        address = _neighbourhood(request.client.host if request.client else "")
        bucket = self._failures.get(address)
        if bucket is None:
            bucket = self._failures[address] = Bucket(FAILURES_PER_S, now, capacity=FAILURES)
            if len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)
        self._failures.move_to_end(address)
        if wait_s := bucket.take(now):
            return too_many("too many requests with a token that is not valid", wait_s)
        _log.warning("refused a token from %s%s: %s", address or "?", f" (id {token_id})" if token_id else "", why)
        return unauthorized(why)


def unauthorized(detail: str) -> Problem:
    """401."""
    return Problem("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def too_many(detail: str, wait_s: float) -> Problem:
    """429; whole seconds, rounded up (at most a day), so that whoever waits as told is let in."""
    seconds = max(1, math.ceil(min(wait_s, 86_400.0)))
    return Problem("too-many-requests", f"{detail}; wait {seconds} s", headers={"Retry-After": str(seconds)})


def _local(request: Request) -> Caller:
    """There is no token at all: programs of this machine may do everything; web pages not, see also ``guards``.

    The address of the connection decides, not the one that we think to be bound to: the application may be served by
    somebody else. What has come through a proxy may have come from anywhere. And a page whose name has been made to
    mean 127.0.0.1 (DNS rebinding) is of the same origin for its browser, but says its own name in Host. HTTP/1.0 is
    what nginx speaks to us where nobody has told it otherwise, without a word about who asked; few programs still do.
    """
    client = request.client.host if request.client else ""
    is_old = request.scope.get("http_version") == "1.0"
    is_direct = not is_old and _FORWARDED.isdisjoint([name for name, _ in request.scope["headers"]])
    if not is_direct or not _is_loopback(client) or not _OWN_NAME.fullmatch(request.headers.get("host", "")):
        raise unauthorized(
            "without any token the API answers its own machine only, as localhost, 127.0.0.1 or [::1], over HTTP/1.1"
            " and through no proxy: make one with tandemq token create"
        )
    return LOCAL


@functools.lru_cache(maxsize=16)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _neighbourhood(host: str) -> str:
    """The address that failures are counted for: one IPv4 address, or the /64 that one IPv6 customer has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _listed(roles: frozenset[str] | frozenset[Role]) -> str:
    return ", ".join(role.value for role in Role if role in roles)
