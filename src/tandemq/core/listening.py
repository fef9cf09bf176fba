"""Listeners of events about attempts: called with (attempt, policy, exc); what they raise changes nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import ClassVar

from tandemq.core.retry import RetryPolicy

#: ``exc`` is None where nothing has failed, or where only its text is known.
Listener = Callable[[int, RetryPolicy, BaseException | None], object]

#: What a queue tells of; ``docs/retries.md`` says when, and in which thread.
EVENTS = ("before_attempt", "on_success", "on_retry", "on_failure", "on_dead_letter")
_log = logging.getLogger("tandemq.listeners")


class Listeners:
    """Callbacks by event, in the order in which they were added. Adding is not meant for the middle of a run."""

    __slots__ = ("_by_event",)
    #: Whether anybody in this process has ever added a listener to anything: all that a task without any pays for.
    anybody: ClassVar[bool] = False

    def __init__(self, events: Sequence[str] = EVENTS) -> None:
        self._by_event: dict[str, list[Listener]] = {event: [] for event in events}

    def add(self, event: str, callback: Listener) -> None:
        """ValueError for an event that does not exist, TypeError for what cannot be called with three arguments."""
        if event not in self._by_event:
            raise ValueError(f"event {event!r} is unknown; use one of {', '.join(self._by_event)}")
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
            raise TypeError(f"a listener must be a plain function of (attempt, policy, exc), not {callback!r}")
        try:
            inspect.signature(callback).bind(1, None, None)
        except TypeError:  # not callable at all, too
            raise TypeError(f"the listener {callback!r} must take (attempt, policy, exc)") from None
        except ValueError:  # a builtin without a signature
            pass
        self._by_event[event].append(callback)
        Listeners.anybody = True

    def of(self, event: str) -> Sequence[Listener]:
        """Who listens to this event."""
        return self._by_event[event]

    def tell(self, event: str, attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
        """Call them all; an Exception of one is logged with its traceback."""
        for callback in self._by_event[event]:
            try:
                callback(attempt, policy, exc)
            except Exception:
                _log.exception("the listener %r of %s raised", callback, event)
