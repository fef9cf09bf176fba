"""The benchmark's arithmetic, and that the ceiling's SQL is tandemq's own."""

from __future__ import annotations

import re

import pytest

from benchmarks import ceiling, figures
from tandemq.store.dialects import MYSQL
from tandemq.store.statements import Statements


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([7.0], 99, 7.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(i) for i in range(1, 101)], 99, 99.0),
        ([1.0, 2.0], 50, 1.0),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[float], q: float, expected: float) -> None:
    assert figures.percentile(values, q) == expected


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        figures.percentile([], 50)


def test_medians_are_per_figure_over_the_rounds_that_have_it() -> None:
    done = figures.medians([{"drain": 1.0}, {"drain": 9.0, "bulk": 4.0}, {"drain": 2.0, "bulk": None}])
    assert (done["drain"], done["bulk"], done["single"]) == (2.0, 4.0, None)


@pytest.mark.parametrize(
    ("value", "base", "expected"), [(6.0, 3.0, 2.0), (None, 3.0, None), (6.0, None, None), (6.0, 0.0, None)]
)
def test_ratio_is_a_multiple_of_the_base(value: float | None, base: float | None, expected: float | None) -> None:
    assert figures.ratio(value, base) == expected


RESULTS = {
    "tandemq": {"drain": 40_000.0, "p50_ms": 3.0},
    "ceiling": {"drain": 60_000.0},
    "huey": {"drain": 4_000.0, "p50_ms": 1.5},
}


def test_table_shows_values_ratios_and_gaps() -> None:
    head, rule, ours, above, peer = figures.table(RESULTS).splitlines()
    assert head.count("|") == rule.count("|") == ours.count("|") == len(figures.FIGURES) + 2
    assert ours.startswith("| tandemq | 40,000 | - |")
    assert "60,000 (1.50x)" in above
    assert "1.5 (0.50x)" in peer


def test_losses_name_what_a_peer_does_better_and_never_the_ceiling() -> None:
    assert figures.losses(RESULTS) == ["p50 ms: huey 1.5, tandemq 3"]


def test_the_ceiling_sends_the_statements_of_tandemq() -> None:
    sql, ids, token = Statements(MYSQL, "tandemq_"), [1, 2], 5
    assert sql.insert_head() == ceiling.INSERT
    assert sql.insert_values("now", "never") == ceiling.ROW
    assert _same(ceiling.LOCK.format(ids="1,2"), sql.claim_lock(ids))
    assert _same(ceiling.CLAIM.format(ids="1,2"), sql.claim(ids))
    assert sql.insert_claim() == ceiling.INSERT_CLAIM
    assert _same(ceiling.FINISH.format(ids="1,2", token=token), sql.succeed([(i, token) for i in ids], [], []))
    assert sql.delete_claim() == ceiling.DELETE_CLAIM
    assert sql.count(1) == ceiling.COUNT


def _same(one: str, other: str) -> bool:
    return re.sub(r"\s+", "", one) == re.sub(r"\s+", "", other)
