"""The arithmetic of bench-scale: lines through memory samples, and the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.scale import fill
from benchmarks.scale.trend import MB, slope, trend


def test_slope_is_that_of_the_least_squares_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2.0)
    assert slope([(0, 0), (1, 2), (2, 1), (3, 3)]) == pytest.approx(0.8)
    assert slope([(5, 1), (5, 9)]) == 0.0
    with pytest.raises(ValueError, match="two points"):
        slope([(1, 1)])


def test_a_trend_leaves_the_first_tenth_out_and_is_per_100_000_tasks() -> None:
    warm = [(0, 10 * MB), (50_000, 40 * MB)]
    points = [(done, 50 * MB + 2 * MB * done // 100_000) for done in range(100_000, 1_000_001, 100_000)]
    found = trend("child 1", [*warm, *points], 1_000_000)
    assert found is not None
    assert found.mb_per_100k == pytest.approx(2.0)
    assert (found.first_mb, found.last_mb, found.samples) == (52.0, 70.0, 10)
    assert found.is_flat


def test_five_megabytes_per_100_000_tasks_are_not_flat() -> None:
    found = trend("child 1", [(done, done * 50) for done in (100_000, 500_000, 900_000, 1_000_000)], 1_000_000)
    assert found is not None
    assert found.mb_per_100k == pytest.approx(50 * 100_000 / MB)
    assert found.is_flat
    steep = trend("child 1", [(done, done * 53) for done in (100_000, 500_000, 900_000, 1_000_000)], 1_000_000)
    assert steep is not None
    assert not steep.is_flat


def test_a_process_that_was_hardly_there_has_no_trend() -> None:
    assert trend("child 9", [(950_000, MB), (960_000, MB)], 1_000_000) is None


def test_a_disk_that_is_too_full_is_refused_before_anything_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=6 * 1024**3))
    fill.check_disk(tmp_path, 1_000_000)
    with pytest.raises(fill.DiskTooFull, match=r"5,000,000 rows need about 8 GB .* 6 GB are free"):
        fill.check_disk(tmp_path, 5_000_000)
