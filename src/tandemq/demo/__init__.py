"""``tandemq demo``: the whole life of some thousand tasks on real input, checked against a count without the queue.

One task per ``.py`` file of the running Python's standard library, and a few that do not parse. Real workers
run them as subprocesses: ``tandemq -A tandemq.demo:app worker``.
"""

from __future__ import annotations

from typing import Any

from tandemq.demo.tasks import build

__all__ = ["app", "build"]


def __getattr__(name: str) -> Any:
    # Made when asked for: the demo itself imports this package before it knows which servers to use.
    if name == "app":
        return build()
    raise AttributeError(name)
