"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest

from tandemq.core.percentile import percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.99, 7.0), ([1, 2, 3, 4], 0.5, 2), ([1, 2, 3, 4], 0.51, 3), ([1, 2], 0.0, 1)],
)
def test_a_percentile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_the_99th_of_a_hundred_leaves_one_above() -> None:
    assert percentile(range(1, 101), 0.99) == 99
