"""The bench's application and its two tasks."""

from __future__ import annotations

from typing import Any

from tandemq.app import TandemQ
from tandemq.core.clock import SystemClock

QUEUE = "bench"
NOOP, STAMP = "bench.noop", "bench.stamp"
_clock = SystemClock()


def noop(n: int) -> None:
    """Nothing: what is left is the queue."""


def stamp(n: int) -> dict[str, float]:
    """When it started, by the clock of this machine, on which the bench runs too."""
    return {"started": _clock.now().timestamp()}


def build(**settings: Any) -> TandemQ:
    """The application; settings from arguments and the ``TANDEMQ_*`` variables."""
    app = TandemQ(**settings)
    app.task(name=NOOP, queue=QUEUE)(noop)
    app.task(name=STAMP, queue=QUEUE)(stamp)
    return app
