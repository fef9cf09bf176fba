"""Time limits of handlers that run in threads: TaskTimeout raised in the handler's thread at its next bytecode.

CPython's PyThreadState_SetAsyncExc delivers between two bytecodes, so it cannot end a C call; the supervisor, which
sees the same limit in the shared memory, replaces the process of a handler that is still there 5 s later.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from tandemq.core.clock import Clock
from tandemq.core.errors import TaskTimeout

#: After the limit, before the process is replaced.
OVERRUN_S = 5.0
_NEVER = float("inf")


def _set_async_exc(thread_id: int, exc: type[BaseException] | None) -> None:
    """Set, or with None (the NULL pointer) take back, the exception that is pending for a thread."""
    value = None if exc is None else ctypes.py_object(exc)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), value)


class _Watch(threading.local):
    """One per thread, used again for every call: ``due`` is infinite while nothing of the thread is limited."""

    def __init__(self, entries: list[_Entry]) -> None:
        self.entry = _Entry(threading.get_ident())
        entries.append(self.entry)


@dataclass(slots=True)
class _Entry:
    thread_id: int
    due: float = _NEVER
    fired: bool = False
    #: Of the last call: its time was up, whatever it made of the TaskTimeout.
    has_fired: bool = False
    # A bare lock: entering it is one C call, so a TaskTimeout cannot fall between taking it and the body.
    lock: threading.Lock = field(default_factory=threading.Lock)


class TimeLimits:
    """One thread that watches every limited handler of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[_Entry] = []
        self._mine = _Watch(self._entries)
        # Not an Event: its lock is taken in Python code, where a TaskTimeout could fall and leave it taken for ever.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next_due = _NEVER
        self._stopped = False

    def call(self, fn: Callable[..., Any], limit_s: float | None, *args: Any) -> Any:
        """Run ``fn(*args)`` here; TaskTimeout if it takes longer. None is ever raised after this returned."""
        entry = self._mine.entry
        entry.has_fired = False
        if limit_s is None:
            return fn(*args)
        if self._thread is None:
            self._start_watching()  # before anything can be raised here
        try:
            due = self._clock.monotonic() + limit_s
            entry.due = due
            entry.fired = False  # a TaskTimeout that hit the very end of the last call has left it set
            if due < self._next_due:
                self._wake.put(None)
            return fn(*args)
        finally:
            _close(entry)

    @property
    def fired(self) -> bool:
        """Whether the last call in this thread ran into its limit, also if it caught the TaskTimeout."""
        return self._mine.entry.has_fired

    def _start_watching(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tandemq-time-limits", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the watching thread."""
        self._stopped = True
        self._wake.put(None)

    def _run(self) -> None:
        while not self._stopped:
            self._next_due = _NEVER  # whoever is limited from here on wakes this thread
            now = self._clock.monotonic()
            entries = list(self._entries)
            for entry in entries:
                if entry.due <= now:
                    _fire(entry, now)
            due = min([e.due for e in entries if not e.fired], default=_NEVER)
            self._next_due = due
            with suppress(Empty):
                self._wake.get(timeout=None if due == _NEVER else max(0.0, due - now))


def _fire(entry: _Entry, now: float) -> None:
    with entry.lock:
        if entry.due <= now and not entry.fired:
            entry.fired = True
            _set_async_exc(entry.thread_id, TaskTimeout)


def _close(entry: _Entry) -> None:
    # A TaskTimeout that is on its way can hit any bytecode here; go on until the entry is closed, then take back one
    # that was set but not delivered. The handler has returned: its result stands.
    while True:
        try:
            with entry.lock:
                entry.due = _NEVER
            if entry.fired:
                entry.has_fired = True
                _set_async_exc(entry.thread_id, None)
                entry.fired = False
            return
        except TaskTimeout:
            continue
