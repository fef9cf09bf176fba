"""The page: what the processes of this worker have counted, and what its sources read just now."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tandemq import metrics
from tandemq.core.errors import ConfigurationError
from tandemq.monitoring.gauges import GAUGES, Reading, Source
from tandemq.series import MULTIPROC_DIR

if TYPE_CHECKING:
    from prometheus_client import Metric

_log = logging.getLogger("tandemq.monitoring")


class Page(NamedTuple):
    """What Prometheus is answered."""

    text: bytes
    content_type: str


class _Read:
    """A collector of the library over our sources."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """One family for each metric that has a reading."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, value, labels in self._readings():
            family = families.get(name)
            if family is None:
                gauge = GAUGES[name]
                made = CounterMetricFamily if gauge.kind == "counter" else GaugeMetricFamily
                family = families[name] = made(name, gauge.text, labels=gauge.labels)
            family.add_metric(labels, value)
        yield from families.values()

    def _readings(self) -> Iterable[Reading]:
        for source in self._sources:
            try:
                yield from source()
            except Exception as broken:  # the rest of the page is worth having, all the more when something is wrong
                _log.warning("not all of the page can be read: %s: %s", type(broken).__name__, broken)


class Exposition:
    """Makes the page. ConfigurationError without prometheus_client."""

    def __init__(self, sources: Sequence[Source]) -> None:
        if metrics.registry() is None:
            raise ConfigurationError("metrics need prometheus-client: pip install 'tandemq[metrics]'")
        self._sources = sources

    def page(self) -> Page:
        """In Prometheus' text format. Threads may ask at the same time."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Read(self._sources))
        text = generate_latest(registry)
        counted = metrics.registry()
        if os.environ.get(MULTIPROC_DIR):
            counted = CollectorRegistry(auto_describe=False)
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        return Page(text + (generate_latest(counted) if counted is not None else b""), CONTENT_TYPE_LATEST)
