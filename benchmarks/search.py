"""The ceiling at its best: a short drain with each setting, and the fastest is taken for the run."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Round
from benchmarks.registry import ceiling
from benchmarks.servers import Servers

#: (batch, processes)
SETTINGS = ((200, 2), (100, 2), (400, 2), (200, 1), (200, 3))


def best_ceiling(servers: Servers, *, tasks: int, driver: str) -> tuple[tuple[int, int], dict[str, float]]:
    """The setting, and what every one that was tried drained a second."""
    found: dict[tuple[int, int], float] = {}
    for batch, processes in SETTINGS:
        side = replace(ceiling(tasks, batch=batch, processes=processes), before=(("bulk", tasks),))
        with Round(side, servers, driver=driver) as one:
            found[batch, processes] = one.drain()
    best = max(found, key=lambda setting: found[setting])
    return best, {f"batch {batch}, {processes} processes": round(rate) for (batch, processes), rate in found.items()}
