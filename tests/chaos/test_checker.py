"""The checker sees every defect that is planted in a ledger, and nothing in one without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import RULES, check
from tests.chaos.ledger import Expectation, Ledger, read

Event = dict[str, Any]


def asked(ref: str, *answers: str, at: float = 1.0, took_s: float = 0.1, **expected: Any) -> list[Event]:
    intent = {"e": "enq", "ref": ref, "r": "invoke", "t": at} | Expectation(**expected).to_json()
    return [intent, *({"e": "enq", "ref": ref, "r": answer, "t": at + took_s} for answer in answers)]


def ran(ref: str, *fences: int, at: float = 2.0) -> list[Event]:
    return [{"e": "exec", "ref": ref, "fence": f, "token": 100 + f, "t": at + f} for f in fences]


def applied(ref: str, *fences: int) -> list[Event]:
    return [{"e": "applied", "ref": ref, "fence": f, "token": 100 + f} for f in fences]


def final(ref: str, state: str = "done", **more: Any) -> list[Event]:
    return [{"e": "final", "ref": ref, "state": state, "attempts": 1, "fence": 1, "by": None} | more]


def cancel(ref: str, answer: str, at: float = 1.5) -> list[Event]:
    return [{"e": "cancel", "ref": ref, "r": "invoke", "t": at}, {"e": "cancel", "ref": ref, "r": answer, "t": at}]


def left(ref: str) -> list[Event]:
    return [{"e": "left", "ref": ref, "where": "pending"}]


def link(ref: str) -> list[Event]:
    return [{"e": "link", "ref": ref}]


DONE = [*asked("a", "ok"), *ran("a", 1), *applied("a", 1), *final("a", by=1)]
CHAIN = [
    *asked("c/0", "ok", last=1, kind="link", effect=False), *ran("c/0", 1), *link("c/0"), *final("c/0"),
    *ran("c/1", 1), *link("c/1"), *final("c/1"),
]  # fmt: skip

#: Ledgers in which nothing is wrong, each a case that a careless checker would take for a fault.
SOUND: dict[str, list[Event]] = {
    "done": DONE,
    "done at the second run, the first being late": [
        *asked("a", "ok"), *ran("a", 1, 2), *applied("a", 2), {"e": "effect", "ref": "a", "fence": 1, "r": "refused"},
        *final("a", fence=2, by=2, attempts=2),
    ],
    "unknown and never there": asked("a", "info"),
    "its producer died": asked("a"),
    "unknown and there": [*asked("a", "info"), *ran("a", 1), *applied("a", 1), *final("a")],
    "refused and never there": asked("a", "fail"),
    "asked again with its key": [*asked("a", "info"), *asked("a", "fail"), *DONE],
    "dead as expected": [*asked("a", "ok", ends=("dead",), effect=False, limit=3), *ran("a", 1, 2, 3),
                         *final("a", "dead", attempts=3, fence=3)],
    "a last run that was lost after its effect": [
        *asked("a", "ok", ends=("done", "dead"), most=1, limit=1), *ran("a", 1), *applied("a", 1), *final("a", "dead"),
    ],
    "cancelled": [*asked("a", "ok"), *cancel("a", "cancelled"), *final("a", "cancelled")],
    "cancelled between two runs": [
        *asked("a", "ok"), *ran("a", 1, at=0.1), *cancel("a", "cancelled"), *final("a", "cancelled"),
    ],
    "cancelled on request after its effect": [
        *asked("a", "ok"), *ran("a", 1), *cancel("a", "requested"), *applied("a", 1), *final("a", "cancelled"),
    ],
    "pruned": asked("a", "ok", prunable=True),
    "delayed": [*asked("a", "ok", after=3.0), *ran("a", 1), *applied("a", 1), *final("a")],
    "a chain": CHAIN,
    "a queue without fences": [*asked("a", "ok"), {"e": "exec", "ref": "a", "t": 2}, {"e": "exec", "ref": "a", "t": 3},
                               {"e": "applied", "ref": "a"}, {"e": "final", "ref": "a", "state": "done"}],
}  # fmt: skip

#: Ledgers with one defect each: rule, events.
PLANTED: list[tuple[str, list[Event]]] = [
    ("lost", asked("a", "ok")),
    ("lost", [*DONE, *asked("b", "info"), *asked("b", "ok")]),
    ("unexpected", ran("a", 1)),
    ("unexpected", final("a")),
    ("phantom", [*asked("a", "fail"), *ran("a", 1), *applied("a", 1), *final("a")]),
    ("phantom", [*asked("a", "fail"), *final("a", "cancelled"), *cancel("a", "cancelled")]),
    ("doubled", [*DONE, *final("a")]),
    ("dup_effects", [*DONE[:-1], *ran("a", 2), *applied("a", 2), *final("a", fence=2)]),
    ("fence_reused", [*DONE, {"e": "exec", "ref": "a", "fence": 1, "token": 999, "t": 9}]),
    ("token_regress", [*asked("a", "ok"), *ran("a", 1, 2), *applied("a", 2, 1), *final("a", fence=2)]),
    ("wrong_winner", [*asked("a", "ok"), *ran("a", 1, 2), *applied("a", 2), *final("a", fence=2, by=1)]),
    ("done_without_effect", [*asked("a", "ok"), *ran("a", 1), *final("a")]),
    ("effect_without_done", [*asked("a", "ok", ends=("done", "dead"), limit=3), *ran("a", 1), *applied("a", 1),
                             *final("a", "dead")]),
    ("effect_without_done", [*asked("a", "ok"), *ran("a", 1), *applied("a", 1), *final("a", "cancelled")]),
    ("stuck", [*asked("a", "ok"), *left("a")]),
    ("stuck", [*asked("a", "info"), *ran("a", 1), *left("a")]),
    ("unfinished", [*asked("a", "ok"), *ran("a", 1)]),
    ("wrong_end", [*asked("a", "ok"), *ran("a", 1), *final("a", "dead")]),
    ("wrong_end", [*asked("a", "ok"), *final("a", "cancelled")]),
    ("over_limit", [*asked("a", "ok", limit=3), *ran("a", 1), *applied("a", 1), *final("a", attempts=4)]),
    ("over_most", [*asked("a", "ok", most=1), *ran("a", 1, 2), *applied("a", 2), *final("a", fence=2)]),
    ("early", [*asked("a", "ok", after=9.0), *ran("a", 1), *applied("a", 1), *final("a")]),
    ("ran_after_cancel", [*asked("a", "ok"), *cancel("a", "cancelled"), *ran("a", 1), *final("a", "cancelled")]),
    ("cancel_undone", [*asked("a", "ok"), *cancel("a", "cancelled"), *applied("a", 1), *final("a")]),
    ("links", [event for event in CHAIN if event != link("c/1")[0]]),
    ("links", [*CHAIN, *link("c/1")]),
    ("links", [*CHAIN[:4]]),
    ("links", [*CHAIN, *ran("c/2", 1), *final("c/2")]),
    ("links", [*asked("c/0", "ok", last=1, ends=("dead",), effect=False), *link("c/0"), *final("c/0", "dead")]),
    ("hung", [*asked("a", "info", took_s=61.0)]),
    ("surprises", [*DONE, {"e": "surprise", "what": "KeyError"}]),
]  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_nothing_is_found_where_nothing_is_wrong(case: str) -> None:
    verdict = check(SOUND[case])

    assert verdict.valid, str(verdict)


@pytest.mark.parametrize(("rule", "events"), PLANTED, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(PLANTED)])
def test_a_planted_defect_is_found_and_named(rule: str, events: list[Event]) -> None:
    verdict = check(events)

    assert verdict.faults[rule]
    assert not verdict.valid


def test_every_rule_has_its_defect() -> None:
    assert {rule for rule, _ in PLANTED} == set(RULES)


def test_runs_beyond_the_first_and_refused_writes_are_counted() -> None:
    verdict = check(SOUND["done at the second run, the first being late"])

    assert (verdict.counts["reexecuted"], verdict.counts["refused"]) == (1, 1)


def test_a_ledger_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "producer-a")
    ledger.intent({"a": Expectation(kind="once", ends=("done", "dead"), most=1, limit=1)})
    ledger.outcome(["a"], "ok")
    Ledger(tmp_path, "handlers").ran("exec", "a", fence=1, token=7)
    with (tmp_path / "handlers.jsonl").open("ab") as torn:
        torn.write(b'{"e":"exec","ref":"b"')

    events = list(read(tmp_path))

    assert [(e["e"], e["ref"]) for e in events] == [("exec", "a"), ("enq", "a"), ("enq", "a")]
    assert Expectation.of(events[1]) == Expectation(kind="once", ends=("done", "dead"), most=1, limit=1)


def test_what_was_synced_is_on_the_disk_before_the_queue_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Callable[..., None] | int] = []
    monkeypatch.setattr("os.fsync", synced.append)

    Ledger(tmp_path, "p").intent({"a": Expectation()})

    assert len(synced) == 1
