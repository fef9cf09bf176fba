"""The only module that draws entropy: lease tokens, install ids, worker ids, API tokens, the shared Random."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

IdSource = Callable[[], int]


def lease_token() -> int:
    """A random 63-bit token, never 0 (0 means "never claimed"); compared for equality only."""
    return secrets.randbits(63) | 1


def install_id() -> str:
    """16 hex digits that mark one database; written into Redis to notice a foreign namespace."""
    return secrets.token_hex(8)


def worker_id(name: str) -> str:
    """``name`` plus a random suffix: new at every process start, so a restart is never its own twin.

    Host and pid do not identify a process in containers (rq/rq 1854), so neither is part of it.
    """
    return f"{name}-{secrets.token_hex(6)}"


def api_token() -> tuple[str, str]:
    """The id and the secret of a token of the HTTP API: 12 hex digits, and 256 bits as 43 URL-safe characters."""
    return secrets.token_hex(6), secrets.token_urlsafe(32)


def new_random() -> random.Random:
    """A generator for jitter; tests pass a seeded one instead."""
    return random.Random()  # noqa: S311 - jitter, not a secret
