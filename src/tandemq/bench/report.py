"""What the bench found: figures, and what they say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

THREADS, BULK = 32, 1000
#: A round trip below this is no network that one would notice.
NEAR_MS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Milliseconds are medians where nothing else is said; rates are per second."""

    database_round_trip_ms: float
    redis_round_trip_ms: float
    commit_ms: float
    commits_per_s: float
    enqueue_per_s: float
    enqueue_threads_per_s: float
    enqueue_many_per_s: float
    drain_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run. ``unsafe``: server settings under which commits are not for good, "" for none. ``load``: of the last
    minute before it, in processes that wanted to run.
    """

    figures: Figures
    database: str
    unsafe: str
    embedded: bool
    tasks: int
    processes: int
    slots: int
    cores: int
    load: float
    took_s: float

    def rows(self) -> Iterator[tuple[str, str]]:
        """The table: what, and its figure."""
        f = self.figures
        yield "database round trip (SELECT 1)", _ms(f.database_round_trip_ms)
        yield "Redis round trip (PING)", _ms(f.redis_round_trip_ms)
        yield "commit of one row, bare", f"{_ms(f.commit_ms)}, {_rate(f.commits_per_s)}"
        yield "enqueue, 1 thread", _rate(f.enqueue_per_s)
        yield f"enqueue, {THREADS} threads", _rate(f.enqueue_threads_per_s)
        yield f"enqueue_many, {BULK:,} a call", _rate(f.enqueue_many_per_s)
        yield f"drain, {self.processes} x {self.slots} slots, no-op tasks", _rate(f.drain_per_s)
        yield "enqueue to start, idle worker, p50", _ms(f.latency_p50_ms)
        yield "enqueue to start, idle worker, p99", _ms(f.latency_p99_ms)

    def says(self) -> Iterator[str]:
        """What to read in it, a sentence each; the first names the server."""
        if self.embedded:
            yield (
                f"This is the embedded default ({self.database} and a Redis look-alike): figures of this machine, for"
                " trying out."
            )
        else:
            yield f"Measured from here on {self.database}, with {self.tasks:,} tasks."
        if self.unsafe:
            yield f"Commits may be lost in a crash of the server ({self.unsafe}): what it forgets, tandemq cannot know."
        yield self._commits()
        yield self._threads()
        if self.load > self.cores:
            yield (
                f"This machine was busy when the run began (load {self.load:.1f} on {self.cores} cores): the figures"
                " are worse than they could be."
            )
        elif self.processes < self.cores:
            yield f"The worker had {self.processes} of {self.cores} cores here: more --processes may drain faster."

    def _commits(self) -> str:
        f = self.figures
        disk_ms = f.commit_ms - f.database_round_trip_ms
        if f.database_round_trip_ms >= max(NEAR_MS, disk_ms):
            return (
                f"The database is {_ms(f.database_round_trip_ms)} away, its commits take {_ms(max(disk_ms, 0.0))} more:"
                " the way to it decides how fast one thread enqueues, and most of the latency."
            )
        if disk_ms >= NEAR_MS:
            return (
                f"A commit takes {_ms(f.commit_ms)}, {_ms(f.database_round_trip_ms)} of it on the way: the database's"
                " disk decides how fast one thread enqueues."
            )
        return f"A commit takes {_ms(f.commit_ms)}: neither disk nor network holds up an enqueue."

    def _threads(self) -> str:
        f = self.figures
        gain = f.enqueue_threads_per_s / f.enqueue_per_s
        if gain >= 1.5:
            return f"{THREADS} threads enqueue {gain:.1f} times as fast as one: calls at the same time share a commit."
        return (
            f"{THREADS} threads enqueue {gain:.1f} times as fast as one: something else than the commits is the limit."
        )

    def to_json(self) -> dict[str, Any]:
        """One JSON object: ``figures``, ``about``, ``says``."""
        about = asdict(self)
        figures = {name: round(value, 3) for name, value in about.pop("figures").items()}
        return {
            "figures": figures,
            "about": about | {"took_s": round(self.took_s, 1), "load": round(self.load, 2)},
            "says": list(self.says()),
        }


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def _rate(value: float) -> str:
    return f"{value:,.0f} /s"
