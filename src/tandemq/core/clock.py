"""The only module that reads a clock or sleeps. Everything else is given a ``Clock``."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic seconds for durations and deadlines."""

    def now(self) -> datetime:
        """Aware UTC time with microseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; on Linux comparable between processes of one machine."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Aware UTC time with microseconds."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC: one value for all processes of this machine."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
