"""Time limits of handlers that run in threads: TaskTimeout raised in the handler's thread at its next bytecode.

CPython's PyThreadState_SetAsyncExc delivers between two bytecodes, so it cannot end a C call; the supervisor, which
sees the same limit in the shared memory, replaces the process of a handler that is still there 5 s later.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tandemq.core.clock import Clock
from tandemq.core.errors import TaskTimeout

#: After the limit, before the process is replaced.
OVERRUN_S = 5.0


def _set_async_exc(thread_id: int, exc: type[BaseException] | None) -> None:
    """Set, or with None (the NULL pointer) take back, the exception that is pending for a thread."""
    value = None if exc is None else ctypes.py_object(exc)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), value)


@dataclass(slots=True)
class _Watch:
    thread_id: int
    due: float
    fired: bool = False
    done: bool = False
    # A bare lock: entering it is one C call, so a TaskTimeout cannot fall between taking it and the body.
    lock: threading.Lock = field(default_factory=threading.Lock)


class TimeLimits:
    """One thread that watches every limited handler of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: dict[int, _Watch] = {}
        self._wake = threading.Event()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next_due = float("inf")
        self._stopped = False

    def call(self, fn: Callable[[], Any], limit_s: float | None) -> Any:
        """Run ``fn`` here; TaskTimeout if it takes longer. No TaskTimeout is ever raised after this returned."""
        if limit_s is None:
            return fn()
        watch = self._watch(limit_s)
        try:
            return fn()
        finally:
            _unwatch(watch)
            self._watched.pop(id(watch), None)

    def _watch(self, limit_s: float) -> _Watch:
        watch = _Watch(threading.get_ident(), self._clock.monotonic() + limit_s)
        self._watched[id(watch)] = watch
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="tandemq-time-limits", daemon=True)
                    self._thread.start()
        if watch.due < self._next_due:
            self._wake.set()
        return watch

    def stop(self) -> None:
        """End the watching thread."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self._next_due = float("inf")  # whoever registers from here on wakes this thread
            now = self._clock.monotonic()
            watched = list(self._watched.values())
            for watch in watched:
                if watch.due <= now:
                    self._fire(watch)
            due = min((w.due for w in watched if not w.fired), default=float("inf"))
            self._next_due = due
            self._wake.wait(None if due == float("inf") else max(0.0, due - now))

    def _fire(self, watch: _Watch) -> None:
        with watch.lock:
            if not watch.done and not watch.fired:
                watch.fired = True
                _set_async_exc(watch.thread_id, TaskTimeout)
        self._watched.pop(id(watch), None)


def _unwatch(watch: _Watch) -> None:
    # A TaskTimeout that is on its way can hit any bytecode here; go on until the entry is closed, then take back one
    # that was set but not delivered. The handler has returned: its result stands.
    while True:
        try:
            with watch.lock:
                watch.done = True
            if watch.fired:
                _set_async_exc(watch.thread_id, None)
            return
        except TaskTimeout:
            continue
