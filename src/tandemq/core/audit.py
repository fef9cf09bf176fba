"""What the audit log holds: who did what to which tasks, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from tandemq.core.values import rfc3339

#: Widths of the columns; a reason is cut at what a person may be made to read.
MAX_WHO, MAX_ACTION, MAX_REASON = 255, 32, 4000


@dataclass(slots=True, kw_only=True)
class Deed:
    """Something that is done to tasks: it becomes a row of the audit log in the transaction of the change.

    ``details`` is JSON: the filter, what was edited; ``{"ids": [...]}`` in it makes a task findable that the deed was
    about without being about it alone. ``task_id`` and ``run_id`` are 0 where it is not about one.

    A deed of many transactions is one row whose ``n`` grows with each: ``entry`` is the id of that row, set by the
    store after the first of them, 0 before.
    """

    action: str
    who: str
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    task_id: int = 0
    run_id: int = 0
    entry: int = 0


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A row of the audit log. ``task_id`` and ``run_id``: None where it is not about one."""

    id: int
    at: datetime
    who: str
    action: str
    task_id: int | None
    run_id: int | None
    n: int
    details: Mapping[str, Any]
    reason: str

    def to_json(self) -> dict[str, Any]:
        """JSON shape for the CLI."""
        return {
            "id": self.id,
            "at": rfc3339(self.at),
            "who": self.who,
            "action": self.action,
            "task_id": self.task_id,
            "run_id": self.run_id,
            "n": self.n,
            "details": dict(self.details),
            "reason": self.reason or None,
        }


class AuditPage(NamedTuple):
    """Newest first; ``next`` is the id to pass as ``after``, None when nothing is left."""

    items: tuple[AuditRecord, ...]
    next: int | None = None
