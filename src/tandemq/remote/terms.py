"""What a remote worker says: what it wants to be given, and by what it shows that it holds a task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandemq.store.answers import Holding
from tandemq.store.base import holder

#: How long a remote worker's lease may be, in seconds; fractions count to the millisecond.
SHORTEST_LEASE_S, LONGEST_LEASE_S = 0.1, 86_400.0
#: Tasks of one claim.
MAX_JOBS: Final = 100
#: Queues, or types, that one claim may name.
MAX_NAMES: Final = 100
_TOKEN = re.compile(r"([0-9a-f]{16})-([0-9]{1,5}(?:\.[0-9]{1,3})?)")


def lease_length(seconds: float) -> float:
    """Within the bounds, to the millisecond."""
    return round(min(max(seconds, SHORTEST_LEASE_S), LONGEST_LEASE_S), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a claim asks for. ``types`` None means any; rows of others are deferred as a worker's unknown types are."""

    worker_id: str
    queues: tuple[str, ...]
    types: frozenset[str] | None
    most: int
    lease_s: float

    def fits(self, queue: str, task_type: str | None) -> bool:
        """Whether a task of this queue and type may go to whoever asks. A type that is not known fits."""
        return queue in self.queues and (self.types is None or task_type is None or task_type in self.types)


class Token(NamedTuple):
    """A lease token, and the length of the lease that it was claimed for (None: not known).

    Its text is opaque to clients. The length travels in it, so that a heartbeat that says none renews for the same.
    """

    number: int
    lease_s: float | None

    def __str__(self) -> str:
        seconds = f"{self.lease_s or 0:.3f}".rstrip("0").rstrip(".")
        return f"{self.number:016x}-{seconds}"

    @classmethod
    def read(cls, value: str | int) -> Token | None:
        """The token of a text, or a bare number; None for what can be no token of anything."""
        if isinstance(value, int):
            return cls(value, None)
        match = _TOKEN.fullmatch(value)
        if match is None or not SHORTEST_LEASE_S <= (lease_s := float(match[2])) <= LONGEST_LEASE_S:
            return None
        return cls(int(match[1], 16), lease_s)


@dataclass(frozen=True, slots=True)
class Proof:
    """By what a worker shows that it holds a task: the token, its own name, or both, and then both must be right.

    A name alone cannot tell a lease from a later one of the same worker: only a token can.
    """

    token: str | int | None = None
    worker_id: str | None = None

    @property
    def lease_s(self) -> float | None:
        """The length that the token tells."""
        token = None if self.token is None else Token.read(self.token)
        return None if token is None else token.lease_s

    def fits(self, found: Holding) -> bool:
        """Whether the last lease of the task is this worker's, whatever has become of it."""
        if self.token is not None:
            token = Token.read(self.token)
            if token is None or not token.number or token.number != found.lease.token:
                return False
        return self.worker_id is None or holder(self.worker_id) == found.worker_id != ""
