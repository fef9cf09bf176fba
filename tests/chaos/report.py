"""What a run showed: the verdict, every fault with its evidence, how fast the queue came back, as text and as JSON."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checker import Verdict
from tests.chaos.lane import Fired

#: 0 failures in n independent faults: below 3/n each, with 95 % confidence.
RULE_OF_THREE = 3


@dataclass(slots=True)
class Work:
    """When plain tasks were accepted and when they were done (last run's end), in seconds of the ledger."""

    accepted: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> Work:
        """From the ledger: only kinds that are due at once and fail by a fault alone."""
        plain, accepted, ended, ends = set(), {}, {}, []
        for event in events:
            ref = event.get("ref", "")
            if event["e"] == "enq" and event["r"] == "invoke":
                if event.get("kind", "plain") in {"plain", "keyed"}:
                    plain.add(ref)
            elif event["e"] == "enq" and event["r"] == "ok":
                accepted.setdefault(ref, event["t"])
            elif event["e"] == "end":
                ended[ref] = event["t"]
                ends.append(event["t"])
        pairs = sorted((accepted[ref], ended[ref]) for ref in plain if ref in accepted and ref in ended)
        return cls([a for a, _ in pairs], [e for _, e in pairs], sorted(ends))

    def next_end_s(self, at: float) -> float | None:
        """From ``at`` to the next task that ends."""
        found = bisect_right(self.ends, at)
        return self.ends[found] - at if found < len(self.ends) else None

    def all_done(self) -> list[float]:
        """For each accepted task, when all accepted up to it were done."""
        latest, found = 0.0, []
        for end in self.done:
            latest = max(latest, end)
            found.append(latest)
        return found


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p99, max in seconds."""
    ranked = sorted(values)
    if not ranked:
        return {}
    at = {"p50": ranked[len(ranked) // 2], "p99": ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]}
    return {name: round(value, 2) for name, value in (at | {"max": ranked[-1]}).items()}


def recovery(fired: Sequence[Fired], work: Work) -> list[dict[str, Any]]:
    """By fault, from its end: ``next`` to the next finished task, ``all`` until all accepted before it were done.

    Faults overlap, so ``all`` holds what other faults added.
    """
    latest = work.all_done()
    by_fault: dict[str, list[Fired]] = defaultdict(list)
    for one in fired:
        by_fault[one.fault].append(one)
    table = []
    for fault, some in sorted(by_fault.items()):
        real = [one for one in some if one.evidence]
        nexts = [s for one in real if (s := work.next_end_s(one.ended)) is not None]
        alls = []
        for one in real:
            before = bisect_left(work.accepted, one.ended)
            alls.append(max(0.0, latest[before - 1] - one.ended) if before else 0.0)
        evidence = next((one.evidence for one in real), "")
        table.append(
            {
                "fault": fault,
                "fired": len(real),
                "evidence": evidence,
                "next": percentiles(nexts),
                "all": percentiles(alls),
            }
        )
    return table


@dataclass(slots=True)
class Outcome:
    """Everything about one run; ``problems``: why it failed, besides the verdict."""

    about: dict[str, Any]
    verdict: Verdict
    fired: list[Fired]
    table: list[dict[str, Any]]
    problems: list[str]

    @property
    def ok(self) -> bool:
        """Nothing wrong, and the nemesis did its part."""
        return self.verdict.valid and not self.problems

    @property
    def kills(self) -> int:
        """Processes killed."""
        return sum(one.kill for one in self.fired)

    def to_json(self) -> dict[str, Any]:
        """For CI and for docs/reliability.md."""
        return {
            "ok": self.ok,
            "about": self.about | {"kills": self.kills, "faults": sum(bool(one.evidence) for one in self.fired)},
            "verdict": self.verdict.to_json(),
            "faults": self.table,
            "problems": self.problems,
        }

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    def __str__(self) -> str:
        head = f"{'fault':62} {'fired':>5}  {'next finished task, s':24} {'all accepted before, s':24}"
        lines = [head, f"{'':68}  {'p50':>7} {'p99':>7} {'max':>7}  {'p50':>7} {'p99':>7} {'max':>7}"]
        for row in self.table:
            cells = [f"{row[column].get(p, ''):>7}" for column in ("next", "all") for p in ("p50", "p99", "max")]
            lines.append(f"{row['fault'][:62]:62} {row['fired']:>5}  {' '.join(cells[:3])}  {' '.join(cells[3:])}")
        bound = (
            f"a loss per kill below {100 * RULE_OF_THREE / self.kills:.2g} % with 95 % confidence" if self.kills else ""
        )
        lines += [
            "",
            str(self.verdict),
            f"{self.kills} kills, {sum(bool(one.evidence) for one in self.fired)} faults: {bound}",
        ]
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems)])
