"""What operators have paused: nothing of such a queue or task type begins, all else goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tandemq.core.values import rfc3339


class PauseKind(StrEnum):
    """What can be paused."""

    QUEUE = "queue"
    TYPE = "type"


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause. ``until``: it ends by itself then; None: when somebody ends it."""

    kind: PauseKind
    name: str
    since: datetime
    until: datetime | None
    who: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """JSON shape for CLI and HTTP."""
        return {
            "kind": self.kind.value,
            "name": self.name,
            "since": rfc3339(self.since),
            "until": rfc3339(self.until),
            "who": self.who,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Paused:
    """The names alone, as workers need them."""

    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pauses: Iterable[Pause]) -> Paused:
        """The names of these."""
        names: dict[PauseKind, set[str]] = {kind: set() for kind in PauseKind}
        for pause in pauses:
            names[pause.kind].add(pause.name)
        return cls(frozenset(names[PauseKind.QUEUE]), frozenset(names[PauseKind.TYPE]))

    def open(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these queues that are not paused, in their order."""
        return tuple([queue for queue in queues if queue not in self.queues]) if self.queues else queues
