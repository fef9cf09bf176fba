"""The only loop, and the only place that starts a service's thread. A service is a ``step()`` that says when to return.

Tests call ``step()`` (or ``Loop.turn()``) by hand with a test clock; nothing here needs a thread to be understood.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from random import Random
from typing import Protocol

from tandemq.core.clock import Clock
from tandemq.core.errors import Unavailable

QUIET_S = 30.0
BACKOFF_FIRST_S, BACKOFF_CAP_S, BACKOFF_JITTER = 0.5, 5.0, 0.2
MAX_KINDS = 500


class Service(Protocol):
    """Something that works in turns: mover, reconciler, heartbeat."""

    def step(self) -> float:
        """One bounded turn; returns the seconds until the next one is wanted (0: at once)."""
        ...


class PartlyDone(Exception):
    """Raised by a ``step`` that did what it could: no good turn, but the next one is wanted as usual, in ``wait_s``."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Throttle:
    """Logs the first event of a kind at once and the next ones at most every ``every_s`` seconds, with a count.

    Safe to share between threads. At most ``MAX_KINDS`` kinds are remembered; the oldest is forgotten first.
    """

    def __init__(self, log: logging.Logger, clock: Clock, every_s: float = QUIET_S) -> None:
        self._log, self._clock, self._every_s = log, clock, every_s
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}

    def __call__(
        self, level: int, kind: str, message: str, *, exc: BaseException | None = None,
        about: Mapping[str, object] | None = None,
    ) -> bool:  # fmt: skip
        """Log ``message`` unless its kind was logged lately; returns whether it was.

        ``exc`` adds its traceback, ``about`` fields of the record (``task_id``, ``queue``, ``task_type``, ``attempt``).
        """
        now = self._clock.monotonic()
        with self._lock:
            said_at, held = self._kinds.get(kind, (None, 0))
            if said_at is not None and now - said_at < self._every_s:
                self._kinds[kind] = (said_at, held + 1)
                return False
            self._kinds.pop(kind, None)
            self._kinds[kind] = (now, 0)
            while len(self._kinds) > MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]
        more = f" (and {held} more of this kind since)" if held else ""
        self._log.log(level, "%s%s", message, more, exc_info=exc, extra=about)
        return True

    def forget(self, kind: str) -> None:
        """The condition is over: the next event of this kind is news again."""
        with self._lock:
            self._kinds.pop(kind, None)


class Loop:
    """Runs ``service.step()`` in one daemon thread until ``stop()``.

    A step that raises never ends the loop: the error is logged once per kind (then every 30 s with a count) and the
    next turn comes after 0.5 s, doubling to 5 s, moved by up to 20 % either way. A good step resets that. Started
    once; ``stop`` may be called any number of times from any thread, also before ``start``.
    """

    def __init__(
        self, service: Service, clock: Clock, rng: Random, name: str, log: logging.Logger | None = None
    ) -> None:
        self.name = name
        self._service, self._clock, self._rng = service, clock, rng
        self._log = log or logging.getLogger("tandemq.service")
        self._throttle = Throttle(self._log, clock)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._last_ok_at: float | None = None
        self._last_turn_at: float | None = None

    @property
    def last_ok_at(self) -> float | None:
        """Monotonic time at which a step last ended well; None before the first. For health checks."""
        return self._last_ok_at

    @property
    def last_turn_at(self) -> float | None:
        """Monotonic time at which a step last ended, well or not; None before the first."""
        return self._last_turn_at

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def turn(self) -> float:
        """One guarded step: its own answer, or the pause that its error earned."""
        try:
            wait_s = self._service.step()
        except PartlyDone as partly:
            self._throttle(logging.WARNING, "partly", f"{self.name}: {partly}")
            return max(0.0, partly.wait_s)
        except Exception as exc:  # the loop outlives MySQL, Redis and bugs; nothing else would restart it
            return self._failed(exc)
        if self._failures:
            self._log.info("%s works again after %d failed turns", self.name, self._failures)
            self._failures = 0
        self._last_ok_at = self._clock.monotonic()
        return max(0.0, wait_s)

    def _failed(self, exc: Exception) -> float:
        self._failures += 1
        pause = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures - 1, 10))
        pause *= 1 + BACKOFF_JITTER * self._rng.uniform(-1.0, 1.0)
        kind = type(exc).__name__
        if isinstance(exc, Unavailable):
            self._throttle(logging.WARNING, kind, f"{self.name}: {exc}")
        else:
            self._throttle(logging.ERROR, kind, f"{self.name}: a turn failed: {kind}: {exc}", exc=exc)
        return pause

    def start(self) -> None:
        """Start the thread. A loop runs once: after ``stop`` make a new one."""
        if self._thread is not None:
            raise RuntimeError(f"{self.name} was started before")
        self._thread = threading.Thread(target=self._run, name=f"tandemq-{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = self.turn()
            self._last_turn_at = self._clock.monotonic()
            # `wake` may have been called during the turn: then the next turn is wanted at once.
            if wait_s > 0:
                self._wake.wait(wait_s)
            self._wake.clear()

    def wake(self) -> None:
        """Take the next turn now instead of after the pause."""
        self._wake.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End after the turn in progress, waking a pause at once; joins (``timeout_s`` at most). True: it has ended."""
        self._stop.set()
        self._wake.set()
        if self._thread is None or self._thread is threading.current_thread():
            return self._thread is None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
