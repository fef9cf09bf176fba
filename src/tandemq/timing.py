"""Histograms of single tasks, filled a batch at a time: one ``observe`` per task would cost more than the task's share
of everything else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tandemq.series import OTHER, Known

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Adds to one value of the library.
Inc: TypeAlias = Callable[[float], Any]
#: Label values of one such metric; each is a series per bucket.
MAX_TIMED = 200
#: Seconds, from a task that is only noted down to one that takes the longest that is usual.
RUN_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)
#: Seconds, from an idle worker's answer to a backlog of hours.
WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 21600)


class Timed:
    """A histogram by one label of names that users make up: after ``MAX_TIMED`` of them further ones are ``other``."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, label: str, buckets: tuple[float, ...], known: Known
    ) -> None:
        from prometheus_client import Histogram

        self.histogram = Histogram(f"tandemq_{name}", text, (label,), registry=registry, buckets=buckets)
        self._bounds = buckets
        self._series: dict[str, tuple[list[Inc], Inc]] = {}
        for (value,) in known.of(f"tandemq_{name}", (label,)):
            self._make(value)

    def add(self, observed: Sequence[tuple[str, float, int]]) -> None:
        """(label, seconds, for how many tasks that stands)."""
        if len(observed) == 1:
            ((label, seconds, n),) = observed
            buckets, total = self._series.get(label) or self._make(label)
            buckets[bisect_left(self._bounds, seconds)](n)
            total(seconds * n)
            return
        counts: dict[tuple[str, int], int] = {}
        sums: dict[str, float] = {}
        for label, seconds, n in observed:
            key = label, bisect_left(self._bounds, seconds)
            counts[key] = counts.get(key, 0) + n
            sums[label] = sums.get(label, 0.0) + seconds * n
        series = {label: self._series.get(label) or self._make(label) for label in sums}
        for (label, bucket), n in counts.items():
            series[label][0][bucket](n)
        for label, seconds in sums.items():
            series[label][1](seconds)

    def _make(self, label: str) -> tuple[list[Inc], Inc]:
        known = label if len(self._series) < MAX_TIMED else OTHER
        histogram = self.histogram.labels(known)
        # The library has no way to observe one value several times; its buckets are not cumulative inside.
        made = self._series[label] = [bucket.inc for bucket in histogram._buckets], histogram._sum.inc
        return made
