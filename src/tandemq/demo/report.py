"""What the demo says at the end, computed from the rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tandemq.core.codec import decode
from tandemq.core.lifecycle import Status
from tandemq.core.percentile import percentile
from tandemq.core.printable import printable, when
from tandemq.core.task import Task
from tandemq.demo.measure import Measure, is_flaky


@dataclass(slots=True)
class Count:
    """The totals of one way of counting, and the files that do not parse, by name."""

    total: Measure = field(default_factory=Measure)
    broken: dict[str, str] = field(default_factory=dict)

    def differences(self, other: Count) -> list[str]:
        """What two counts disagree about, one sentence each."""
        found = [
            f"{name}: {getattr(self.total, name)} and {getattr(other.total, name)}"
            for name in Measure.__slots__
            if getattr(self.total, name) != getattr(other.total, name)
        ]
        unequal = sorted(set(self.broken) ^ set(other.broken))
        return found + [f"only one of them could parse {name}" for name in unequal]


@dataclass(slots=True)
class Outcome:
    """All tasks of a demo after its workers have ended."""

    count: Count = field(default_factory=Count)
    tasks: int = 0
    retries: int = 0
    flaky: int = 0
    dead: list[Task] = field(default_factory=list)
    unfinished: list[Task] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    first_start: datetime | None = None
    last_end: datetime | None = None

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Outcome:
        """Sum up the rows."""
        outcome = cls()
        for task in tasks:
            outcome._add(task)
        outcome.dead.sort(key=lambda task: task.id)
        outcome.latencies_s.sort()
        return outcome

    def _add(self, task: Task) -> None:
        self.tasks += 1
        self.retries += task.retry_count
        name = name_of(task)
        self.flaky += is_flaky(name)
        if task.status is Status.SUCCEEDED:
            result = decode(task.result or "{}")
            self.count.total += Measure(1, result["lines"], result["bytes"], result["functions"])
        elif task.status is Status.DEAD:
            self.count.broken[name] = task.last_error or ""
            self.dead.append(task)
        else:
            self.unfinished.append(task)
        if task.started_at is not None and task.completed_at is not None:
            self.latencies_s.append((task.completed_at - task.created_at).total_seconds())
            self.first_start = min(self.first_start or task.started_at, task.started_at)
            self.last_end = max(self.last_end or task.completed_at, task.completed_at)

    @property
    def rate(self) -> float:
        """Tasks a second between the first start and the last end."""
        if self.first_start is None or self.last_end is None:
            return 0.0
        return self.tasks / max(1e-3, (self.last_end - self.first_start).total_seconds())

    def latency_s(self, share: float) -> float:
        """The latency, enqueue to end, that this share of the tasks did not exceed."""
        return percentile(self.latencies_s, share)


def name_of(task: Task) -> str:
    """The file a task is about."""
    return str(decode(task.payload)["name"])


def summary(outcome: Outcome, direct: Count) -> Iterator[str]:
    """The lines of the summary."""
    yield f"{'':<12}{'through the queue':>20}{'counted directly':>20}"
    for name in Measure.__slots__:
        yield f"{name:<12}{getattr(outcome.count.total, name):>20,}{getattr(direct.total, name):>20,}"
    yield f"{'do not parse':<12}{len(outcome.count.broken):>20,}{len(direct.broken):>20,}"
    yield ""
    yield f"tasks         {outcome.tasks:,}: {outcome.count.total.files:,} succeeded, {len(outcome.dead)} dead"
    yield f"retries       {outcome.retries:,} ({outcome.flaky} first attempts were made to fail as a flaky disk would)"
    yield f"speed         {outcome.rate:,.0f} tasks/s"
    p50, p99 = outcome.latency_s(0.50), outcome.latency_s(0.99)
    yield f"latency       enqueue to end: p50 {p50:.2f} s, p99 {p99:.2f} s (all were enqueued before the first started)"
    yield ""
    yield "dead letters"
    for task in outcome.dead:
        yield f"  {task.id:>6}  {printable(name_of(task))}  {printable(task.last_error)[:90]}"


def history(task: Task) -> Iterator[str]:
    """The lines of one task's life."""
    yield f"task {task.id} ({printable(name_of(task))}): {task.state}, replayed {task.replays} time(s)"
    yield f"  {when(task.created_at)}  enqueued"
    for entry in task.attempts_log:
        life = f"replay {entry.replays}, attempt {entry.attempt}" if entry.replays else f"attempt {entry.attempt}"
        yield f"  {when(entry.ended_at)}  {life}: {entry.outcome}: {printable(entry.error)[:90]}"
