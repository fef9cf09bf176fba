"""The checker: judges a run by its ledger alone, by the rules of a total queue, and says what is wrong with which task.

It is meaningful only after a full drain. ``Verdict.faults`` names what must not be; ``Verdict.counts`` what may be, and
is reported: enqueues of unknown outcome that ran (``recovered``), runs beyond the first (``reexecuted``), late writes
that the resource refused (``refused``). ``python -m tests.chaos.checker FOLDER`` judges a folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.chaos.ledger import Expectation, read

#: What must not be, and what it means.
RULES = {
    "lost": "accepted, and never came out",
    "unexpected": "came out, and nobody ever asked for it",
    "phantom": "refused to its producer, and is there all the same",
    "doubled": "asked for once, stored more than once",
    "dup_effects": "the resource took more than one write",
    "fence_reused": "two runs with one fence",
    "token_regress": "the resource took a write with a lower fence after one with a higher",
    "wrong_winner": "the result kept is not that of the last run",
    "done_without_effect": "done, and its effect is not there",
    "effect_without_done": "its effect is there, and it is neither done nor was its last run lost",
    "stuck": "not final after the drain",
    "unfinished": "ran, and is neither final nor waiting: its row is gone",
    "wrong_end": "ended in a state that it could not come to",
    "over_limit": "more attempts counted than allowed",
    "over_most": "began more often than its producer allowed",
    "early": "began before its time",
    "ran_after_cancel": "began after its cancellation was acknowledged",
    "cancel_undone": "its cancellation was acknowledged, and it is not cancelled",
    "links": "a chain's row or task is missing, doubled or unexpected",
    "hung": "the producer waited too long for an answer",
    "surprises": "an error that no contract names",
}
#: A handler's first line may be written a moment before its clock was due: clocks of two programs.
EARLY_S = 0.05


@dataclass(slots=True)
class _Seen:
    """Everything that the ledger says about one ref."""

    expected: Expectation | None = None
    asked_at: float = 0.0
    waited_s: float = 0.0
    answers: set[str] = field(default_factory=set)
    cancel_asked: bool = False
    cancelled_at: float | None = None
    begun: list[tuple[float, int | None, int | None]] = field(default_factory=list)
    refused: int = 0
    applied: list[int | None] = field(default_factory=list)
    finals: list[dict[str, Any]] = field(default_factory=list)
    left: str | None = None
    links: int = 0

    @property
    def is_there(self) -> bool:
        return bool(self.begun or self.finals or self.left)

    @property
    def outcome(self) -> str:
        """A keyed enqueue may be asked again: an ok counts whatever was said before, a fail only if nobody doubts."""
        return "ok" if "ok" in self.answers else "fail" if self.answers == {"fail"} else "info"


@dataclass(slots=True)
class Verdict:
    """``faults``: rule -> what is wrong, one text a task. ``counts``: what there was, and what is allowed."""

    counts: dict[str, int]
    faults: dict[str, list[str]]

    @property
    def valid(self) -> bool:
        """Nothing that must not be."""
        return not any(self.faults.values())

    def to_json(self) -> dict[str, Any]:
        """Counts, and at most ten of each fault."""
        found = {rule: {"n": len(texts), "first": texts[:10]} for rule, texts in self.faults.items() if texts}
        return {"valid": self.valid, "counts": self.counts, "faults": found}

    def __str__(self) -> str:
        said = ", ".join(f"{name} {n}" for name, n in self.counts.items())
        wrong = [f"  {r} ({RULES[r]}): {len(t)}: {'; '.join(t[:3])}" for r, t in self.faults.items() if t]
        return "\n".join([said, *(wrong or ["  nothing lost, nothing doubled, nothing stuck"])])


def check(events: Iterable[dict[str, Any]], *, answer_s: float = 60.0) -> Verdict:
    """Judge. ``answer_s``: how long an enqueue may take."""
    seen, surprises = _collect(events)
    faults: dict[str, list[str]] = {rule: [] for rule in RULES}
    faults["surprises"] = surprises
    chains = {ref.rpartition("/")[0]: ref for ref, s in seen.items() if s.expected and s.expected.last is not None}
    for ref, s in seen.items():
        expected, head = s.expected, seen[chains.get(ref.rpartition("/")[0], ref)]
        if expected is None and head.expected is not None and head is not s:
            if int(ref.rpartition("/")[2]) > (head.expected.last or 0):
                faults["links"].append(f"{ref}: beyond the end of its chain")
            expected = Expectation(kind="link", effect=False)
        if expected is None:
            if s.is_there:
                faults["unexpected"].append(ref)
            continue
        _existence(ref, s, head, expected, faults)
        _runs(ref, s, expected, faults, answer_s)
        _ends(ref, s, expected, faults)
    for base, ref in chains.items():
        _chain(base, seen[ref], seen, faults)
    return Verdict(_counts(seen), faults)


def _collect(events: Iterable[dict[str, Any]]) -> tuple[dict[str, _Seen], list[str]]:
    seen: dict[str, _Seen] = {}
    surprises = []
    for event in events:
        what = event["e"]
        if what == "surprise":
            surprises.append(event["what"])
            continue
        s = seen.get(event["ref"])
        if s is None:
            s = seen[event["ref"]] = _Seen()
        if what == "enq":
            _note_enqueue(s, event)
        elif what == "cancel":
            s.cancel_asked = True
            if event["r"] == "cancelled":
                s.cancelled_at = event["t"]
        elif what == "exec":
            s.begun.append((event["t"], event.get("fence"), event.get("token")))
        elif what == "effect":
            s.refused += event["r"] == "refused"
        elif what == "applied":
            s.applied.append(event.get("fence"))
        elif what == "final":
            s.finals.append(event)
        elif what == "left":
            s.left = event["where"]
        elif what == "link":
            s.links += 1
    return seen, surprises


def _note_enqueue(s: _Seen, event: dict[str, Any]) -> None:
    if event["r"] == "invoke":
        s.expected, s.asked_at = s.expected or Expectation.of(event), event["t"]  # asked again: the wait starts anew
    else:
        s.answers.add(event["r"])
        s.waited_s = max(s.waited_s, event["t"] - s.asked_at)


def _existence(ref: str, s: _Seen, head: _Seen, expected: Expectation, faults: dict[str, list[str]]) -> None:
    outcome = head.outcome
    if outcome == "ok" and not s.is_there and not expected.prunable and head is s:
        faults["lost"].append(f"{ref} ({expected.kind})")
    if outcome == "fail" and s.is_there:
        faults["phantom"].append(f"{ref} ({expected.kind})")
    stored = len(s.finals) + (s.left is not None)
    if stored > 1:
        faults["doubled"].append(f"{ref} ({expected.kind}): {stored} times")
    if s.left is not None:
        faults["stuck"].append(f"{ref} ({expected.kind}): {s.left}")
    elif s.begun and not s.finals and not expected.prunable:
        faults["unfinished"].append(f"{ref} ({expected.kind})")


def _runs(ref: str, s: _Seen, expected: Expectation, faults: dict[str, list[str]], answer_s: float) -> None:
    fences = [(fence, token) for _, fence, token in s.begun if fence is not None]
    if len(fences) != len({fence for fence, _ in fences}):
        faults["fence_reused"].append(f"{ref} ({expected.kind}): {fences}")
    if expected.most is not None and len(s.begun) > expected.most:
        faults["over_most"].append(f"{ref} ({expected.kind}): {len(s.begun)} runs")
    if expected.after is not None and s.begun and min(s.begun)[0] < expected.after - EARLY_S:
        faults["early"].append(f"{ref}: {expected.after - min(s.begun)[0]:.3f} s")
    if s.cancelled_at is not None and s.begun and max(s.begun)[0] > s.cancelled_at:
        faults["ran_after_cancel"].append(ref)
    if s.waited_s > answer_s:
        faults["hung"].append(f"{ref} ({expected.kind}): {s.waited_s:.1f} s")


def _ends(ref: str, s: _Seen, expected: Expectation, faults: dict[str, list[str]]) -> None:
    taken = [fence for fence in s.applied if fence is not None]
    if len(s.applied) > 1:
        faults["dup_effects"].append(f"{ref}: fences {s.applied}")
    if any(later <= earlier for earlier, later in pairwise(taken)):
        faults["token_regress"].append(f"{ref}: {taken}")
    for final in s.finals:
        state, attempts = final["state"], final.get("attempts")
        if state not in expected.ends and not (state == "cancelled" and s.cancel_asked):
            faults["wrong_end"].append(f"{ref} ({expected.kind}): {state} {final.get('why', '')}")
        if expected.limit is not None and attempts is not None and attempts > expected.limit:
            faults["over_limit"].append(f"{ref} ({expected.kind}): {attempts} of {expected.limit}")
        if s.cancelled_at is not None and state != "cancelled":
            faults["cancel_undone"].append(f"{ref}: {state}")
        if state == "done" and final.get("by") is not None and final["by"] != final.get("fence"):
            faults["wrong_winner"].append(f"{ref}: result of run {final['by']}, last run {final.get('fence')}")
        if state == "done" and expected.effect and not s.applied:
            faults["done_without_effect"].append(f"{ref} ({expected.kind})")
        # A last run that was lost after its effect ends dead, and one that was to be cancelled then ends cancelled.
        spent = state == "dead" and expected.limit is not None and (attempts or 0) >= expected.limit
        if s.applied and not (state == "done" or spent or (state == "cancelled" and s.cancel_asked)):
            faults["effect_without_done"].append(f"{ref} ({expected.kind}): {state}")


def _chain(base: str, head: _Seen, seen: dict[str, _Seen], faults: dict[str, list[str]]) -> None:
    """Once its first link is done, every link has one task and one row."""
    assert head.expected is not None
    if not any(final["state"] == "done" for final in head.finals):
        if head.links:
            faults["links"].append(f"{base}/0: it is not done and has {head.links} rows")
        return
    for n in range((head.expected.last or 0) + 1):
        s = seen.get(f"{base}/{n}", _Seen())
        if (len(s.finals), s.links) != (1, 1):
            faults["links"].append(f"{base}/{n}: {len(s.finals)} ended tasks, {s.links} rows")


def _counts(seen: dict[str, _Seen]) -> dict[str, int]:
    asked = [s for s in seen.values() if s.expected is not None]
    outcomes = Counter(s.outcome for s in asked)
    runs = [len(s.begun) for s in seen.values() if s.begun]
    return {
        "attempted": len(asked),
        "accepted": outcomes["ok"],
        "failed": outcomes["fail"],
        "unknown": outcomes["info"],
        "recovered": sum(s.is_there for s in asked if s.outcome == "info"),
        "tasks": sum(bool(s.finals) for s in seen.values()),
        "executions": sum(runs),
        "reexecuted": sum(n - 1 for n in runs),
        "refused": sum(s.refused for s in seen.values()),
        "effects": sum(len(s.applied) for s in seen.values()),
    }


if __name__ == "__main__":
    verdict = check(read(sys.argv[1]))
    print(json.dumps(verdict.to_json(), indent=1))
    sys.exit(not verdict.valid)
