"""What a worker is started with, beyond the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``queues`` None: every queue of the registered tasks, and ``default``. ``grace_s`` None: the setting.

    ``max_tasks`` and ``max_memory_mb`` recycle a child: it stops fetching, finishes what it holds and is replaced.
    """

    queues: tuple[str, ...] | None = None
    slots: int = 8
    processes: int = 1
    burst: bool = False
    grace_s: float | None = None
    name: str | None = None
    max_tasks: int | None = None
    max_memory_mb: int | None = None
    mover: bool = True
    reconcile: bool = True
