"""For tests of programs that use tandemq: a clock set by hand, an app without servers, a worker without waiting.

``pytest_plugins = ["tandemq.testing"]`` in a conftest.py gives the fixtures ``tandemq_app`` and ``tandemq_clock``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tandemq.app import TandemQ
from tandemq.broker import in_process
from tandemq.core.clock import Clock, SystemClock

__all__ = ["FakeClock", "run_until_idle", "tandemq_app", "tandemq_clock"]


class FakeClock:
    """A Clock that moves only when told to; ``sleep`` moves it instead of waiting."""

    def __init__(self, now: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._start = now.astimezone(UTC)
        self._passed_s = 0.0

    def now(self) -> datetime:
        """Aware UTC time."""
        return self._start + timedelta(seconds=self._passed_s)

    def monotonic(self) -> float:
        """Seconds, in step with ``now``; begins at 1000."""
        return 1000.0 + self._passed_s

    def sleep(self, seconds: float) -> None:
        """Advance, without waiting."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let this much time pass; it never goes back."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back ({seconds!r} s)")
        with self._lock:
            self._passed_s += seconds


def run_until_idle(app: TandemQ, clock: Clock | None = None, limit: int = 10_000) -> int:
    """Run everything that is due, and what it enqueues, in this thread until nothing is; how many runs.

    Delayed tasks and retries run once the app's clock has been moved on to them. RuntimeError after ``limit`` runs.
    """
    from tandemq.worker.inline import run_until_idle as run

    return run(app, clock or app.clock, limit)


@pytest.fixture
def tandemq_clock() -> FakeClock:
    """The clock of ``tandemq_app``, for due times and leases too."""
    return FakeClock()


@pytest.fixture
def tandemq_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tandemq_clock: FakeClock) -> Iterator[TandemQ]:
    """An app on SQLite and a Redis look-alike inside this process, whatever ``TANDEMQ_*`` variables are set.

    Nothing outlives the test. Its clock stands still: ``tandemq_clock.advance(60)`` makes delayed tasks due.
    """
    for name in ("DATABASE_URL", "REDIS_URL", "EMBEDDED", "NAMESPACE", "TABLE_PREFIX", "CRASH"):
        monkeypatch.delenv(f"TANDEMQ_{name}", raising=False)
    broker = in_process("tandemq", SystemClock())
    with TandemQ(data_dir=str(tmp_path / "tandemq"), clock=tandemq_clock, broker=broker) as app:
        yield app
