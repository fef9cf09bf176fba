"""What a worker knows of itself: for its page, its probes, and the state in its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tandemq.core.clock import Clock
from tandemq.core.settings import Settings
from tandemq.monitoring import Exposition, Installed, Listener, Reading, Source
from tandemq.monitoring.ticks import HANGS_S, LATE_S, Ticks
from tandemq.reconciler import Reconciler
from tandemq.service import Loop
from tandemq.worker.arena import State
from tandemq.worker.leases import LeaseKeeper
from tandemq.worker.options import WorkerOptions
from tandemq.worker.process import ChildProcess

#: Counts of a pass that tell of drift between MySQL and Redis, or of leases nobody renewed.
DRIFT = ("missing", "repushed", "overdue", "expired", "orphans", "rebuilt")


def last_pass(reconciler: Reconciler, clock: Clock) -> Source:
    """Readings of a reconciler, while it leads."""

    def read() -> Iterator[Reading]:
        if reconciler.last_pass_at is None:
            return
        yield Reading("tandemq_reconciler_pass_age_seconds", clock.monotonic() - reconciler.last_pass_at)
        report = reconciler.last_report
        yield from (Reading("tandemq_reconciler_drift", getattr(report, kind), (kind,)) for kind in DRIFT)

    return read


class Watch:
    """``Health`` and ``Source`` of a worker; ``state`` goes into its record."""

    def __init__(
        self, children: Callable[[], Sequence[ChildProcess]], loops: Mapping[Loop, float], keeper: LeaseKeeper, *,
        settings: Settings, options: WorkerOptions, clock: Clock, installed: Installed,
    ) -> None:  # fmt: skip
        self._children, self._keeper, self._clock = children, keeper, clock
        self._options, self._settings = options, settings
        self._installed = installed
        self._ticks = Ticks(loops, clock, installed)

    def listener(self, port: int, extra: Sequence[Source]) -> Listener:
        """Where the page can be had; ``extra`` sources come on top. ConfigurationError."""
        sources: list[Source] = [self._ticks, self, *extra]
        if self._options.install_metrics:
            sources.append(self._installed)
        return Listener(self._options.metrics_host, port, Exposition(sources), self)

    def __call__(self) -> Iterator[Reading]:
        """Slots, children, leases."""
        children = self._children()
        busy, slots = sum(map(_busy, children)), self._options.slots * self._options.processes
        ready = [child for child in children if child.ready]
        yield Reading("tandemq_slots", busy, ("busy",))
        yield Reading("tandemq_slots", max(0, slots - busy), ("free",))
        yield Reading("tandemq_children", len(ready), ("ready",))
        yield Reading("tandemq_children", len(children) - len(ready), ("starting",))
        yield Reading("tandemq_lease_seconds", self._settings.lease_s)
        if ages := list(self._fetch_ages()):
            yield Reading("tandemq_fetch_age_seconds", max(ages))
        if (margin_s := self._keeper.margin_s) is not None:
            yield Reading("tandemq_lease_margin_seconds", margin_s)

    def not_live(self) -> list[str]:
        """Loops that hang, and children that look for no work although the database answers."""
        return self._ticks.not_live() + self._deaf(HANGS_S)

    def not_ready(self) -> list[str]:
        """Also: a server that does not answer, a turn that is late, no child that could run anything."""
        wrong = self._ticks.not_ready() + self._deaf(LATE_S)
        if not any(child.ready for child in self._children()):
            wrong.append("no child process is ready")
        return wrong

    @property
    def state(self) -> str:
        """For its record: ``stuck`` if it should be started anew, ``late`` if a loop has had no good turn lately."""
        return "stuck" if self.not_live() else "late" if self._ticks.late() else "running"

    def _deaf(self, after_s: float) -> list[str]:
        answering_since = self._keeper.answering_since
        if answering_since is None:
            return []  # without the database there is nothing to be had
        # Redis away for that long: the child begins to take tasks from the database, and is heard of again.
        patience_s = after_s + self._settings.redis_away_s
        silent_s = [min(age_s, self._clock.monotonic() - answering_since) for age_s in self._fetch_ages()]
        return [f"a child has not looked for work for {age_s:.0f} s" for age_s in silent_s if age_s > patience_s]

    def _fetch_ages(self) -> Iterator[float]:
        """Of ready children that are not stopping."""
        now = self._clock.monotonic()
        for child in self._children():
            if child.ready and not child.told_to_drain:
                try:
                    fetched_at = child.arena.fetched_at
                except ValueError:  # unmapped a moment ago: the child was reaped by the main thread
                    continue
                yield now - (fetched_at or child.started)


def _busy(child: ChildProcess) -> int:
    try:
        snapshots = child.arena.snapshots()
    except ValueError:
        return 0
    return sum(record.state is State.BEGUN for snapshot in snapshots for record in snapshot.records)
