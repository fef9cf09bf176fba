"""Counters by labels that users make up: fast, and bounded in number over the life of the files that keep them."""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter

_log = logging.getLogger("tandemq.metrics")
#: Names the folder through which several processes show their metrics on one page.
MULTIPROC_DIR: Final = "PROMETHEUS_MULTIPROC_DIR"
#: Label sets of one metric. Queues and types are names that users make up: further ones are counted as ``OTHER``, which
#: can be no name of a queue or a type.
MAX_SERIES: Final = 1000
OTHER: Final = "(other)"


class Known:
    """Label sets that a process of the same number has left in its files: this one goes on with them."""

    def __init__(self, number: int | None) -> None:
        self._found: dict[str, set[tuple[tuple[str, str], ...]]] = defaultdict(set)
        folder = os.environ.get(MULTIPROC_DIR)
        if number is None or not folder:
            return
        from prometheus_client.mmap_dict import MmapedDict

        for kind in ("counter", "histogram"):
            path = Path(folder, f"{kind}_{number}.db")
            try:
                for key, *_rest in MmapedDict.read_all_values_from_file(path) if path.exists() else ():  # type: ignore[no-untyped-call]
                    metric, _, labels, _ = json.loads(key)
                    labels.pop("le", None)
                    self._found[metric].add(tuple(sorted(labels.items())))
            except Exception as broken:  # it was cut off while it was written: the bound is that of this process alone
                _log.debug("%s cannot be read: %s", path, broken)

    def of(self, metric: str, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Values of these labels."""
        found = [dict(labels) for labels in self._found.get(metric, ())]
        return sorted(tuple(labels[name] for name in names) for labels in found if labels.keys() == set(names))


class Counted:
    """A counter and its children by label values: ``Counter.labels`` alone costs more than all the rest of a call."""

    __slots__ = ("_counter", "_names", "_series")

    def __init__(self, registry: CollectorRegistry, known: Known, name: str, text: str, *labels: str) -> None:
        from prometheus_client import Counter

        self._counter = Counter(f"tandemq_{name}", text, labels, registry=registry)
        self._names = sum(label in {"queue", "type"} for label in labels)  # these come first
        self._series: dict[tuple[str, ...], Counter] = {}
        for values in known.of(f"tandemq_{name}", labels) if labels else ():
            self._series[values] = self._counter.labels(*values)

    def add(self, counts: Iterable[tuple[tuple[str, ...], int]]) -> None:
        """Add to each label set."""
        series = self._series
        for labels, n in counts:
            child = series.get(labels)
            if child is None:
                child = self._child(labels)
            child.inc(n)

    def _child(self, labels: tuple[str, ...]) -> Counter:
        if len(self._series) >= MAX_SERIES:
            labels = (OTHER,) * self._names + labels[self._names :]
        # Two threads may both come here: ``labels`` gives both the same child.
        child = self._series[labels] = self._counter.labels(*labels) if labels else self._counter
        return child
