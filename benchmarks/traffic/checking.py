"""The check at the beginning of every run."""

from __future__ import annotations

from benchmarks.registry import ceiling, tandemq
from benchmarks.servers import Servers
from benchmarks.traffic.comparing import differences
from benchmarks.traffic.record import BEFORE, Recorded, record

#: A slow moment may make tandemq do what it seldom does (an id popped twice, say); it will not do so twice.
TRIES = 2
Phases = tuple[tuple[str, int], ...]


def check(
    servers: Servers, *, driver: str = "pymysql", before: Phases = BEFORE
) -> tuple[list[str], tuple[Recorded, Recorded]]:
    """What differs, and what was recorded of tandemq and of the ceiling."""
    theirs = record(ceiling(1000), servers, driver=driver, before=before)
    left = TRIES
    while True:
        ours = record(tandemq(1000), servers, driver=driver, before=before)
        found, left = differences(ours, theirs), left - 1
        if not found or left == 0:
            return found, (ours, theirs)
