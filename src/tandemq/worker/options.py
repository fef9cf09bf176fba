"""What a worker is started with, beyond the settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """``queues`` None: every queue of the registered tasks, and ``default``. ``grace_s`` None: the setting.

    ``fair``: lower levels have a share, however much higher work comes; see ``worker.fair``.
    ``metrics_port`` None: no page; ``install_metrics``: it shows the whole install too, not only this worker.
    ``max_tasks`` and ``max_memory_mb`` recycle a child: it stops fetching, finishes what it holds and is replaced.
    """

    queues: tuple[str, ...] | None = None
    slots: int = 8
    processes: int = 1
    burst: bool = False
    fair: bool = False
    grace_s: float | None = None
    name: str | None = None
    max_tasks: int | None = None
    max_memory_mb: int | None = None
    mover: bool = True
    reconcile: bool = True
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    install_metrics: bool = True

    @property
    def shown(self) -> str:
        """What operators should know of it beyond queues and slots, for the worker's record."""
        words = {"fair": self.fair, "burst": self.burst, "no-mover": not self.mover, "no-reconcile": not self.reconcile}
        return ",".join(word for word, holds in words.items() if holds)
