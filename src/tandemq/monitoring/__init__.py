"""The page that Prometheus scrapes: counters of a worker's processes, and levels that are read when it is scraped.

``gauges`` names every level, ``installed`` reads those of the whole install from MySQL and Redis, ``exposition`` makes
the page, ``server`` answers for it. What a process knows of itself (slots, loops, leases) is told by a ``Source`` that
its owner gives.
"""

from tandemq.monitoring.exposition import Exposition
from tandemq.monitoring.gauges import Reading, Source
from tandemq.monitoring.installed import Installed
from tandemq.monitoring.looks import Look
from tandemq.monitoring.server import Health, Listener
from tandemq.monitoring.ticks import Ticks

__all__ = ["Exposition", "Health", "Installed", "Listener", "Look", "Reading", "Source", "Ticks"]
