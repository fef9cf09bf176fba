"""The one place that makes Redis clients.

Library retries are off: redis-py 6 and later resend a command whose answer was lost, so a pop loses the ids of the
first answer and a script runs twice. Every time-out is finite, and a blocking pop always ends on the server well
before the client gives up on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from tandemq.broker.commands import ask
from tandemq.broker.errors import translated
from tandemq.core.errors import BrokerUnavailable, ConfigurationError
from tandemq.core.settings import mask

CONNECT_TIMEOUT_S = 0.8
LONGEST_BLOCK_S = 1.3


class Role(Enum):
    """Who waits for the answer; the value is the time-out of one command in seconds."""

    #: enqueue in a web request: it must answer within 2 s when Redis hangs.
    PRODUCE = 1.0
    SERVE = 3.0
    #: BRPOP; its time-out must be more than twice the block time.
    BLOCK = 3.1


#: Set by this module whatever the URL says.
_FIXED = ("retry_on_timeout", "retry_on_error", "health_check_interval", "decode_responses", "protocol", "encoding")


class Pools(Protocol):
    """What the broker needs: clients by role."""

    @property
    def max_block_s(self) -> float:
        """The longest block time of a pop."""
        ...

    def use(self, role: Role) -> AbstractContextManager[redis.Redis]:
        """A client whose errors come out as BrokerUnavailable, WrongType or CrossSlot."""
        ...

    def close(self) -> None:
        """Drop all connections."""
        ...


class Connections:
    """The clients of one server: one pool per role, made on first use, safe for threads and after fork."""

    def __init__(self, url: str) -> None:
        self._options = _options(url)
        self._given_s: float | None = self._options.pop("socket_timeout", None)
        self._clients = {role: self._make(role) for role in Role}

    @property
    def max_block_s(self) -> float:
        """The longest block time of a pop: less than half the time-out of its connection."""
        return min(LONGEST_BLOCK_S, 0.45 * self._timeout_s(Role.BLOCK))

    @contextmanager
    def use(self, role: Role) -> Iterator[redis.Redis]:
        """A client whose errors come out as BrokerUnavailable (or WrongType)."""
        client = self._clients[role]
        with translated(client):
            yield client

    def close(self) -> None:
        """Drop all connections."""
        for client in self._clients.values():
            client.connection_pool.disconnect()

    def _timeout_s(self, role: Role) -> float:
        given = self._given_s
        if given is None:
            return role.value
        return min(given, role.value) if role is Role.PRODUCE else given

    def _make(self, role: Role) -> redis.Redis:
        options = {**self._options, "socket_timeout": self._timeout_s(role)}
        options.setdefault("socket_connect_timeout", min(CONNECT_TIMEOUT_S, options["socket_timeout"]))
        options.setdefault("client_name", f"tandemq-{role.name.lower()}")
        options.setdefault("max_connections", 65_536)
        kind = options.get("connection_class", redis.Connection)
        if kind is not redis.UnixDomainSocketConnection:
            options.setdefault("socket_keepalive", True)
        options |= _no_library_name(kind)
        options |= {"retry": Retry(NoBackoff(), 0), "health_check_interval": 0, "protocol": 2}
        return redis.Redis(connection_pool=_make_pool(options))


def _options(url: str) -> dict[str, Any]:
    try:
        parse: Callable[[str], dict[str, Any]] = parse_url
        options = parse(url)
    except ValueError as error:
        raise ConfigurationError(f"TANDEMQ_REDIS_URL {mask(url)!r} cannot be read: {error}") from None
    for name in _FIXED:
        options.pop(name, None)
    path = url.split("?", 1)[0].split("://", 1)[1].partition("/")[2]
    if not url.startswith("unix:") and path and not path.strip("/").isdigit():
        raise ConfigurationError(f"TANDEMQ_REDIS_URL {mask(url)!r} must end in a database number, not {path!r}")
    for name in ("socket_timeout", "socket_connect_timeout"):
        if name in options and not 0 < options[name] < 3600:
            raise ConfigurationError(f"TANDEMQ_REDIS_URL: {name}={options[name]} must be a number of seconds > 0")
    return options


def _no_library_name(kind: Any) -> dict[str, Any]:
    """Leave out CLIENT SETINFO: two round trips more before the first command of a connection."""
    known = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
    if "driver_info" in known:
        return {"driver_info": None}
    return {name: None for name in ("lib_name", "lib_version") if name in known}


def _make_pool(options: dict[str, Any]) -> redis.ConnectionPool:
    """redis-py looks at unknown options of the URL only when it connects: one connection is made (not opened) now."""
    try:
        pool = redis.ConnectionPool(**options)
        pool.connection_class(**pool.connection_kwargs)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise ConfigurationError(f"TANDEMQ_REDIS_URL: {error}") from None
    return pool


def ping(connections: Pools) -> None:
    """One round trip, or BrokerUnavailable."""
    with connections.use(Role.SERVE) as client:
        if ask(client, "PING") not in {True, b"PONG", "PONG"}:
            raise BrokerUnavailable("Redis did not answer PING")
