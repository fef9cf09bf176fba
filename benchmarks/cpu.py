"""CPU seconds of processes and of everything they started, also of what has ended meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def seconds(roots: Iterable[psutil.Process]) -> float:
    """So far. A child that ended and was waited for is in its parent's ``children_*``: a PostgreSQL session is one."""
    total = 0.0
    for root in roots:
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
