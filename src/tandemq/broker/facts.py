"""What Redis says of itself, and samples of what lies in it: the values that ``tandemq doctor`` judges."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tandemq.core.task import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """None: the server (or the rights of this user) do not let it be known.

    ``info``: what INFO says, names in lower case. ``denied``: commands that tandemq needs and this user may not send
    to keys of the namespace. ``masters``: how many a Redis Cluster has, 0 without one.
    """

    info: Mapping[str, str] | None
    denied: tuple[str, ...] | None
    masters: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The end of a list that is popped next, or the front of a sorted set, in that order, and the length of it all.

    ``entries`` are as they lie there, junk included; ``due_ms``: their scores, empty for a list.
    """

    entries: tuple[bytes, ...] = ()
    length: int = 0
    due_ms: tuple[float, ...] = ()


class Diagnosing(Protocol):
    """Reads for ``tandemq doctor``, and the one thing it takes out. All raise BrokerUnavailable."""

    def server_info(self) -> Mapping[str, str] | None:
        """INFO, names in lower case; None where it is not allowed."""
        ...

    def redis_facts(self) -> RedisFacts:
        """Settings, rights and role; the rights are tried by commands that are queued (MULTI) and thrown away."""
        ...

    def wrong_types(self, levels: Iterable[Level]) -> dict[str, str]:
        """Keys of ours that hold another type, with that type: nothing can be pushed there."""
        ...

    def ready_sample(self, level: Level, size: int) -> Sample:
        """What is popped next, at most ``size``."""
        ...

    def delayed_sample(self, level: Level, size: int) -> Sample:
        """What is due first, at most ``size``."""
        ...

    def remove(self, level: Level, *, ready: Collection[bytes], delayed: Collection[bytes], within: int) -> int:
        """Take entries out of the last ``within`` of the list (all copies there) and out of the sorted set; how many.

        Not atomic: an entry that was popped meanwhile is not there any more, and that is all right.
        """
        ...
