"""Percentiles of measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank of ascending values: the smallest that at least this share of them does not exceed; 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
