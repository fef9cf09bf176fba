"""What can be known of `make chaos` without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemq.core.crash import POINTS
from tests.chaos.directed import SCENARIOS
from tests.chaos.lane import Fired
from tests.chaos.mutants import MUTANTS, Mutant, change
from tests.chaos.nemesis import HEALERS, OPERATORS, PRODUCERS, points_of
from tests.chaos.report import Work, recovery
from tests.chaos.tasks import EXPECTED
from tests.chaos.workers import inside
from tests.workers import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_a_mutant_changes_is_there_exactly_once(mutant: Mutant) -> None:
    for file, old, new in mutant.changes:
        assert (ROOT / "src" / "tandemq" / file).read_text().count(old) == 1
        assert old != new


def test_a_mutant_whose_text_is_gone_is_a_failure(tmp_path: Path) -> None:
    gone = Mutant("gone", "calm", "stuck", (("producer.py", "no such line", "pass"),))

    assert "0 times" in change(gone, tmp_path)


def test_every_directed_run_is_used_and_each_mutant_has_one() -> None:
    assert {mutant.scenario for mutant in MUTANTS} == set(SCENARIOS)


def test_no_crash_point_is_left_out_by_a_misspelt_prefix() -> None:
    for prefix in (*HEALERS, *PRODUCERS, *OPERATORS):
        assert points_of([prefix]), prefix
    assert set(points_of([*HEALERS, *PRODUCERS, *OPERATORS])) < POINTS


def test_what_must_not_begin_twice_is_expected_to_begin_once() -> None:
    assert [kind for kind, one in EXPECTED.items() if one.most == 1] == ["wedge", "once"]


def test_a_slow_handler_is_inside_from_its_beginning_to_its_effect() -> None:
    events = [
        {"e": "exec", "ref": "a", "pid": 1, "t": 0.0, "slow": True},
        {"e": "exec", "ref": "b", "pid": 1, "t": 0.0, "slow": True},
        {"e": "effect", "ref": "b", "pid": 1, "t": 1.0},
        {"e": "exec", "ref": "c", "pid": 2, "t": 0.0, "slow": True},
        {"e": "exec", "ref": "d", "pid": 1, "t": 0.0},
    ]

    assert inside(events, {1}) == {"a"}


def test_recovery_is_counted_from_the_end_of_the_fault() -> None:
    def task(ref: str, accepted: float, ended: float) -> list[dict[str, object]]:
        return [
            {"e": "enq", "ref": ref, "r": "invoke", "t": accepted},
            {"e": "enq", "ref": ref, "r": "ok", "t": accepted},
            {"e": "end", "ref": ref, "t": ended},
        ]

    work = Work.of([*task("a", 1.0, 9.0), *task("b", 2.0, 6.0), *task("c", 7.0, 20.0)])
    fired = [Fired("F", 3.0, 5.0, "yes", 1, False), Fired("F", 3.0, 5.0, "", 1, False)]

    (row,) = recovery(fired, work)

    assert (row["fired"], row["next"]["max"], row["all"]["max"]) == (1, 1.0, 4.0)
