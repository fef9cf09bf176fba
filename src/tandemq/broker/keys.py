"""Every Redis key of tandemq. The braces belong to the key: they put all keys of one queue into one cluster slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from tandemq.core.task import Level
from tandemq.core.values import MAX_PRIORITY, MIN_PRIORITY

T = TypeVar("T")

MAX_ID = 2**63 - 1
_MAX_ID_DIGITS = len(str(MAX_ID))
#: A junk entry is shown by its first bytes only: it may be megabytes long.
JUNK_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace."""

    namespace: str

    def ready(self, level: Level) -> str:
        """List of ready ids of one level."""
        return f"{self.namespace}:{{{level.queue}}}:ready:{level.priority}"

    def delayed(self, level: Level) -> str:
        """Sorted set of delayed ids of one level, scored by due time in ms."""
        return f"{self.namespace}:{{{level.queue}}}:delayed:{level.priority}"

    def levels(self, queue: str) -> str:
        """Set of the priorities in use in one queue."""
        return f"{self.namespace}:{{{queue}}}:levels"

    @property
    def queues(self) -> str:
        """Set of the queues in use."""
        return f"{self.namespace}:queues"

    @property
    def install(self) -> str:
        """The id of the database that this namespace belongs to."""
        return f"{self.namespace}:generation"

    @property
    def writable(self) -> str:
        """Never there: what is asked for to learn whether Redis takes writes."""
        return f"{self.namespace}:writable"

    @property
    def scratch(self) -> str:
        """Never there either: what the doctor tries its rights on."""
        return f"{self.namespace}:{{default}}:doctor"

    def generation(self, queue: str) -> str:
        """Install, epoch and rebuild state of one queue."""
        return f"{self.namespace}:{{{queue}}}:generation"


@lru_cache(maxsize=256)
def ready_levels(keys: Keys, levels: tuple[Level, ...]) -> dict[str, Level]:
    """Ready key -> level, in the given order; cached because a worker asks for the same levels at every pop."""
    return {keys.ready(level): level for level in levels}


def expected_type(key: str) -> bytes:
    """The Redis type (as TYPE answers) of a ready, delayed or generation key."""
    return b"list" if "}:ready:" in key else b"zset" if "}:delayed:" in key else b"string"


def parse_id(entry: bytes) -> int | None:
    """A task id as tandemq writes it (no sign, no leading zero, no space, at most 2**63-1), or None."""
    if len(entry) > _MAX_ID_DIGITS or not entry.isdigit() or entry[0] == 0x30:
        return None
    value = int(entry)
    return value if value <= MAX_ID else None


def parse_priority(entry: bytes) -> int | None:
    """A priority as written into a key or into ``levels``, or None."""
    digits = entry.removeprefix(b"-")
    if not 1 <= len(digits) <= 4 or not digits.isdigit():
        return None
    value = int(entry)
    return value if MIN_PRIORITY <= value <= MAX_PRIORITY and str(value).encode() == entry else None


def sift(entries: Iterable[bytes]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """Split popped entries into task ids and junk (shortened), each in the order given."""
    ids, junk = [], []
    for entry in entries:
        task_id = parse_id(entry)
        if task_id is None:
            junk.append(entry[:JUNK_SHOWN])
        else:
            ids.append(task_id)
    return tuple(ids), tuple(junk)


def chunks(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    """Slices of at most ``size``."""
    return (items[start : start + size] for start in range(0, len(items), size))
