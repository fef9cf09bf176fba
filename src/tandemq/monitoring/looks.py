"""A look at a server that a scrape may wait for a moment, and no longer, however the server hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from tandemq.core.clock import Clock

T = TypeVar("T")
_log = logging.getLogger("tandemq.monitoring")
#: How long a scrape waits for the answer.
WAIT_S = 1.5
#: How long an answer is good for at least.
FRESH_S = 1.0
#: One that took long is good for so many times as long as it took, up to ten seconds; one that took longer than a
#: scrape waits, by all who look, up to a minute: it is only ever shown with its age.
SHARE, REST_S, SLOW_REST_S = 20.0, 10.0, 60.0
#: An answer that is older than this is shown to nobody.
OLDEST_S = 300.0


class Answer(NamedTuple, Generic[T]):
    """What was found, and how old it is: as old as its question."""

    found: T
    age_s: float


class Look(Generic[T]):
    """The last answer of ``ask``, asked anew when it is old, by one thread at a time however many want to know.

    So a look that takes 100 ms is taken every 2 s at most: monitoring costs the server 5 % of one connection. ``crowd``
    says of an answer how many take the same look, so that they cost that together.
    """

    def __init__(
        self, name: str, ask: Callable[[], T], clock: Clock, *, wait_s: float = WAIT_S,
        crowd: Callable[[T], int] = lambda _: 1,
    ) -> None:  # fmt: skip
        self._name, self._ask, self._clock, self._wait_s, self._crowd = name, ask, clock, wait_s, crowd
        self._lock = threading.Lock()
        self._asking: threading.Event | None = None
        self._asked_at = self._answered_at = self._good_until = float("-inf")
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
                threading.Thread(target=self._run, args=(self._asking, now), name=name, daemon=True).start()
            except RuntimeError:  # no thread to be had: next time
                self._answer, self._asking = None, None

    def get(self) -> T | None:
        """The answer; None if asking failed or takes too long. An old answer is never given for a new one."""
        if not self._waited():
            return None
        with self._lock:
            return self._answer

    def last(self) -> Answer[T] | None:
        """The answer, or while asking takes too long the one before; None if asking failed, or that is too old."""
        self._waited()
        with self._lock:
            age_s = self._clock.monotonic() - self._answered_at
            return None if self._answer is None or age_s > OLDEST_S else Answer(self._answer, age_s)

    def forget_rest(self) -> None:
        """Ask anew at the next look: what the last answer took says nothing, its server hung or was away."""
        with self._lock:
            self._good_until = float("-inf")

    def _waited(self) -> bool:
        self.begin()
        with self._lock:
            asking, left_s = self._asking, self._asked_at + self._wait_s - self._clock.monotonic()
        return asking is None or asking.wait(max(0.0, left_s))

    def _run(self, done: threading.Event, began: float) -> None:
        answer, crowd = None, 1
        try:
            answer = self._ask()
            crowd = max(1, self._crowd(answer))
        except Exception as error:  # away, refused, or wrong: the page says that there is no answer
            _log.debug("%s cannot be read: %s", self._name, error)
        ended = self._clock.monotonic()
        cost_s = crowd * (ended - began)
        rest_s = min(SHARE * cost_s, REST_S if cost_s <= self._wait_s else SLOW_REST_S)
        with self._lock:
            self._answer, self._answered_at, self._asking = answer, began, None
            self._good_until = ended + (FRESH_S if answer is None else max(FRESH_S, rest_s))
        done.set()
