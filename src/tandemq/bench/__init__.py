"""``tandemq bench``: how fast are the servers that the settings name? In tables and keys made for the run.

The worker that it measures is a real one, in processes of its own: ``tandemq -A tandemq.bench:app worker``.
"""

from __future__ import annotations

from typing import Any

from tandemq.bench.tasks import build

__all__ = ["app", "build"]


def __getattr__(name: str) -> Any:
    # Made when asked for, from the variables that the worker is started with.
    if name == "app":
        return build()
    raise AttributeError(name)
