"""The cyclic garbage collector, kept off the hot path of processes that live long."""

from __future__ import annotations

import gc
from typing import Final

#: Of CPython 3.11 to 3.13, and 3.14.
_DEFAULT_THRESHOLDS: Final = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
COLLECT_AFTER: Final = 20_000


def calm_collector() -> None:
    """Call it when all is imported. An application that has set up the collector itself keeps its thresholds.

    A batch of tasks makes thousands of tuples that no cycle runs through; at the default threshold of 700 the collector
    ran several times per batch, each time over everything young, and every hundredth time over all that was imported
    (50 ms, in which the HTTP API answers nobody).
    """
    if gc.get_threshold() in _DEFAULT_THRESHOLDS:
        gc.set_threshold(COLLECT_AFTER, 10, 10)
    gc.collect()
    gc.freeze()
