"""The pure part: a straight line through samples of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What counts as flat, in MB per 100,000 tasks.
FLAT_MB = 5.0
#: The first part of a run is left out: modules, pools and caches fill then.
WARM_UP = 0.1
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Trend:
    """Resident memory of one process over a run."""

    process: str
    first_mb: float
    last_mb: float
    #: Slope of the line of least squares.
    mb_per_100k: float
    samples: int

    @property
    def is_flat(self) -> bool:
        """Falling is flat too."""
        return self.mb_per_100k < FLAT_MB


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least squares line through (x, y); 0 if all x are the same."""
    n = len(points)
    if n < 2:
        raise ValueError("a line needs two points")
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def trend(process: str, points: Sequence[tuple[int, int]], total: int) -> Trend | None:
    """From (tasks done, bytes); None if the process was not there for long enough."""
    kept = [(done, size) for done, size in points if done >= WARM_UP * total]
    if len(kept) < 3:
        return None
    steep = slope([(done / 100_000, size / MB) for done, size in kept])
    return Trend(process, kept[0][1] / MB, kept[-1][1] / MB, steep, len(kept))
