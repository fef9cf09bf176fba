"""What an error of redis-py means. Everything Redis can say becomes BrokerUnavailable: ids in Redis are hints,
so no caller has anything better to do than to go on without it and let the reconciler heal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis import exceptions as rx

from tandemq import metrics
from tandemq.core.errors import BrokerUnavailable

#: The node has changed its role: idle connections of the pool lead to the wrong node.
_ROLE_CHANGED = ("READONLY", "UNBLOCKED", "MASTERDOWN")
_HINTS = (
    ("WRONGPASS", "the user or password of TANDEMQ_REDIS_URL was refused"),
    ("NOAUTH", "Redis wants a password: give it in TANDEMQ_REDIS_URL"),
    ("NOPERM", "the Redis user of TANDEMQ_REDIS_URL lacks a permission"),
    ("CERTIFICATE_VERIFY_FAILED", "name the authority by ssl_ca_certs=FILE in TANDEMQ_REDIS_URL"),
    ("MOVED", "this is one node of a Redis Cluster with several masters, which tandemq does not route to"),
    ("MISCONF", "Redis cannot write to its disk"),
    ("OOM", "Redis is at maxmemory"),
)

#: Codes by which errors are counted; what has none of them is ``timeout``, ``connection`` or ``other``.
_CLASSES = (
    "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "NOPERM", "NOAUTH", "WRONGPASS", "OOM", "MISCONF",
    "BUSY", "UNBLOCKED", "NOSCRIPT", "NOREPLICAS", "TRYAGAIN",
)  # fmt: skip

#: A plain Redis port does not answer a TLS greeting at all: the client just waits.
_TLS_HINT = (
    "rediss:// needs a port that speaks TLS, and files that exist: see ssl_ca_certs, ssl_certfile, ssl_keyfile"
    " in TANDEMQ_REDIS_URL"
)


class WrongType(Exception):
    """A key of ours holds another type; never leaves this package."""


class CrossSlot(Exception):
    """Keys of several queues in one command, on a Redis Cluster; never leaves this package."""


def _is_wrong_type(error: Exception) -> bool:
    """Redis before 7 hides the code of a script's error inside the message."""
    return isinstance(error, rx.ResponseError) and "WRONGTYPE" in str(error)


def _code(error: Exception) -> str:
    """The error's text with its code in front; redis-py strips the codes that it knows."""
    known = {
        rx.ReadOnlyError: "READONLY",
        rx.BusyLoadingError: "LOADING",
        rx.MasterDownError: "MASTERDOWN",
        rx.ClusterDownError: "CLUSTERDOWN",
        rx.ClusterCrossSlotError: "CROSSSLOT",
        rx.MovedError: "MOVED",
        rx.NoPermissionError: "NOPERM",
        rx.OutOfMemoryError: "OOM",
    }
    for kind, code in known.items():
        if isinstance(error, kind):
            return f"{code} {error}"
    if isinstance(error, rx.AuthenticationError):
        code = "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
        return f"{code} {error}"
    return str(error)


def unavailable(error: Exception, *, over_tls: bool = False) -> BrokerUnavailable:
    """The error as tandemq's own, with a sentence on what to do where one is known."""
    text = _code(error) or type(error).__name__
    hint = next((hint for code, hint in _HINTS if code in text), "")
    if over_tls and not hint and "connecting" in text:
        hint = _TLS_HINT
    return BrokerUnavailable(f"Redis: {text}" + (f" ({hint})" if hint else ""))


def class_of(error: Exception) -> str:
    """One of a few names, for the metrics."""
    text = _code(error)
    found = next((name for name in _CLASSES if text.startswith(name)), None)
    if found is not None:
        return found.lower()
    if isinstance(error, rx.TimeoutError | TimeoutError):
        return "timeout"
    return "connection" if isinstance(error, rx.ConnectionError | OSError) else "other"


@contextmanager
def translated(client: redis.Redis) -> Iterator[None]:
    """Raise WrongType, CrossSlot or BrokerUnavailable for every error of redis-py inside.

    Connections that must not be used again are dropped. Whether the command ran is unknown afterwards.
    """
    try:
        yield
    except (rx.RedisError, OSError) as error:
        if _is_wrong_type(error):
            raise WrongType(str(error)) from error
        if "CROSSSLOT" in _code(error):
            raise CrossSlot(str(error)) from error
        if any(code in _code(error) for code in _ROLE_CHANGED):
            client.connection_pool.disconnect(inuse_connections=False)
        metrics.redis_error(class_of(error))
        over_tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)
        raise unavailable(error, over_tls=over_tls) from error
    except (WrongType, CrossSlot, BrokerUnavailable):
        raise
    except BaseException:
        # Raised into this thread from outside (time limit, Ctrl-C): an answer may still be on its way on a
        # connection that is back in the pool, and would be read as the answer of the next command.
        client.connection_pool.disconnect(inuse_connections=False)
        raise
