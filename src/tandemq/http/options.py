"""How the API is served."""

from __future__ import annotations

from dataclasses import dataclass

#: The longest that a claim may wait for a task to come.
MAX_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Seconds are floats. ``rate``: requests a second that one token may send, 0 for no limit."""

    host: str = "127.0.0.1"
    port: int = 8000
    rate: float = 0.0
    cors_origins: tuple[str, ...] = ()
    max_wait_s: float = MAX_WAIT_S
    #: How long the head of a request may take to arrive, and how long a body, or a reader of an answer, may be silent.
    head_s: float = 10.0
    silence_s: float = 20.0
