"""Which kinds of dead letters there are: errors that differ only in ids, numbers and quoted texts are one kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, get_args

from tandemq.core.values import rfc3339

By = Literal["error", "type", "queue", "reason", "worker"]
BYS: tuple[str, ...] = get_args(By)
#: Groups that are kept; what belongs to none of them is counted together.
MAX_GROUPS = 1000
#: How much of an error tells its kind.
MAX_KIND = 200
_FOLDS = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    # A quote within a word is an apostrophe.
    (re.compile(r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`"), "'...'"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{6,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"[0-9]+"), "N"),
)


@lru_cache(maxsize=1024)
def error_kind(text: str) -> str:
    """The first line of an error with digits, hex ids, UUIDs and quoted texts folded."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()[: 4 * MAX_KIND]
    for pattern, folded in _FOLDS:
        line = pattern.sub(folded, line)
    return " ".join(line.split())[:MAX_KIND]


@dataclass(slots=True)
class Group:
    """How many tasks of a kind there are, when the first and the last of them ended, and the id of the last.

    ``kind`` is a type, a queue, a reason, a worker, or the folded text of an error, whose ``error_type`` stands beside.
    """

    kind: str
    error_type: str | None
    count: int
    first_at: datetime
    last_at: datetime
    example_id: int

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI."""
        of_error = {} if self.error_type is None else {"error_type": self.error_type or None}
        return {
            **of_error,
            "kind": self.kind or None,
            "count": self.count,
            "first_at": rfc3339(self.first_at),
            "last_at": rfc3339(self.last_at),
            "example_id": self.example_id,
        }


@dataclass(frozen=True, slots=True)
class Groups:
    """The biggest first. ``capped``: not all tasks were looked at, or there were too many kinds.

    ``total`` tasks were counted; ``others`` of them belong to kinds that are not listed.
    """

    by: str
    items: tuple[Group, ...]
    total: int
    others: int = 0
    capped: bool = False

    def first(self, limit: int) -> Groups:
        """The biggest of them; the rest is counted as ``others``."""
        rest = sum(group.count for group in self.items[limit:])
        return replace(self, items=self.items[:limit], others=self.others + rest)

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI; there is no next page."""
        items = [group.to_json() for group in self.items]
        return {
            "by": self.by, "items": items, "total": self.total, "others": self.others, "capped": self.capped,
            "next": None,
        }  # fmt: skip


class Grouping:
    """Counts kinds in bounded memory."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._groups: dict[tuple[str, str | None], Group] = {}
        self._others = 0
        self.total = 0

    def add(self, task_id: int, kind: str, error_type: str | None, ended_at: datetime) -> None:
        """One more task of this kind."""
        self.total += 1
        group = self._groups.get((kind, error_type))
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._others += 1
                return
            self._groups[kind, error_type] = Group(kind, error_type, 1, ended_at, ended_at, task_id)
            return
        group.count += 1
        group.first_at = min(group.first_at, ended_at)
        group.last_at, group.example_id = max((group.last_at, group.example_id), (ended_at, task_id))

    def groups(self, *, capped: bool) -> Groups:
        """What has been counted."""
        items = sorted(self._groups.values(), key=lambda g: (-g.count, g.kind, g.error_type or ""))
        return Groups(self._by, tuple(items), self.total, self._others, capped or self._others > 0)
