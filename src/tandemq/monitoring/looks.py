"""A look at a server that a scrape may wait for a moment, and no longer, however the server hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tandemq.core.clock import Clock

T = TypeVar("T")
_log = logging.getLogger("tandemq.monitoring")
#: How long an answer is good for at least; and one that took long for so many times as long as it took.
FRESH_S, SHARE = 1.0, 20.0
#: How long a scrape waits for the answer.
WAIT_S = 1.5


class Look(Generic[T]):
    """The last answer of ``ask``, asked anew when it is old, by one thread at a time however many want to know.

    So a look that takes 100 ms is taken every 2 s at most: monitoring costs the server 5 % of one connection.
    """

    def __init__(self, name: str, ask: Callable[[], T], clock: Clock, *, wait_s: float = WAIT_S) -> None:
        self._name, self._ask, self._clock, self._wait_s = name, ask, clock, wait_s
        self._lock = threading.Lock()
        self._asking: threading.Event | None = None
        self._asked_at = self._good_until = float("-inf")
        self._answer: T | None = None

    def begin(self) -> None:
        """Ask, if the last answer is old and nobody is asking; does not wait."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._good_until or self._asking is not None:
                return
            self._asking, self._asked_at = threading.Event(), now
            name = f"tandemq-look-{self._name}"
            try:
                threading.Thread(target=self._run, args=(self._asking,), name=name, daemon=True).start()
            except RuntimeError:  # no thread to be had: next time
                self._answer, self._asking = None, None

    def get(self) -> T | None:
        """The answer; None if asking failed or takes too long. An old answer is never given for a new one."""
        self.begin()
        with self._lock:
            asking, left_s = self._asking, self._asked_at + self._wait_s - self._clock.monotonic()
        if asking is not None and not asking.wait(max(0.0, left_s)):
            return None
        with self._lock:
            return self._answer

    def _run(self, done: threading.Event) -> None:
        began = self._clock.monotonic()
        answer = None
        try:
            answer = self._ask()
        except Exception as error:  # away, refused, or wrong: the page says that there is no answer
            _log.debug("%s cannot be read: %s", self._name, error)
        ended = self._clock.monotonic()
        with self._lock:
            self._answer, self._asking = answer, None
            self._good_until = ended + max(FRESH_S, SHARE * (ended - began) if answer is not None else 0.0)
        done.set()
