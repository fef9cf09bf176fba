"""What a replay answers, and the JSON shape of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemq.core.codec import decode
from tandemq.core.values import rfc3339
from tandemq.store.runs import ReplayRun, RunState


class Kind(NamedTuple):
    """How many dead tasks there are of one type and error type."""

    task_type: str
    error_type: str
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay has done. ``moved`` are pending again.

    ``skipped`` were not dead any more, ended after the replay began, do not exist, or stayed locked; ``failed`` could
    not be replayed, and are dead as before. ``reasons``: how many by (outcome, why). ``left`` have no outcome yet: the
    run (``run_id``, None where none was needed) is in the state ``state``, ``note`` says why it is paused. Of a dry
    run: ``left`` would be replayed, ``kinds`` tells what they are.
    """

    moved: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    run_id: int | None = None
    state: RunState = RunState.DONE
    note: str = ""
    reasons: Mapping[tuple[str, str], int] = field(default_factory=dict)
    kinds: Sequence[Kind] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON shape for CLI and HTTP."""
        shape: dict[str, Any] = {name: getattr(self, name) for name in ("moved", "skipped", "failed", "left")}
        reasons = [{"outcome": o, "why": why, "n": n} for (o, why), n in self.reasons.items() if why]
        shape |= {"run_id": self.run_id, "state": self.state.value, "note": self.note or None, "reasons": reasons}
        return shape | ({"kinds": [kind._asdict() for kind in self.kinds]} if self.kinds else {})


def run_json(run: ReplayRun) -> dict[str, Any]:
    """JSON shape of a run for CLI and HTTP."""
    selection = decode(run.selection)
    if "ids" in selection:
        selection = {"ids": len(selection["ids"])}
    return {
        "id": run.id,
        "state": run.state.value,
        "note": run.note or None,
        "created_by": run.created_by,
        "reason": run.reason or None,
        "selection": selection,
        "orders": decode(run.orders),
        **{name: getattr(run, name) for name in ("selected", "moved", "skipped", "failed", "left")},
        "is_held": run.is_held,
        **{name: rfc3339(getattr(run, name)) for name in ("wave_at", "created_at", "updated_at", "ended_at")},
    }


def told(notes: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Of the notes of a run those that tell why a task was not moved, the most frequent first."""
    reasons = [(key, n) for key, n in notes.items() if key[0] in {"skipped", "failed"}]
    return dict(sorted(reasons, key=lambda one: (-one[1], one[0])))
