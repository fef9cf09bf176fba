"""The event loop of all ``async def`` handlers of a process: their time limits, and stopping those that shall stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

from tandemq.core.errors import TaskTimeout
from tandemq.worker.forked import leave_if_forked


class AsyncLoop:
    """One event loop in one thread for all ``async def`` handlers of the process; started when first needed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        #: What runs and was not told to stop; touched on the loop alone.
        self._running: dict[asyncio.Task[Any], Callable[[], bool]] = {}

    def run(self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None, is_unwanted: Callable[[], bool]) -> Any:
        """Run on the loop and wait for it in this (slot) thread.

        Raises TaskTimeout, or whatever it raises inside of an ``Escaped``.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(self._loop,), name="tandemq-async", daemon=True).start()
        limited = self._limited(coroutine, limit_s, is_unwanted)
        return asyncio.run_coroutine_threadsafe(limited, self._loop).result()

    async def _limited(
        self, coroutine: Coroutine[Any, Any, Any], limit_s: float | None, is_unwanted: Callable[[], bool]
    ) -> Any:
        # The outermost coroutine catches: one around it would be thrown a GeneratorExit, and only close this one.
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        timer, pid = asyncio.timeout(limit_s), os.getpid()
        self._running[task] = is_unwanted
        try:
            async with timer:
                value = await coroutine
            leave_if_forked(pid)
            return value
        except BaseException as exc:
            leave_if_forked(pid, exc)
            if timer.expired() and isinstance(exc, TimeoutError):
                raise TaskTimeout(f"still running after its time limit of {limit_s:g} s") from None
            raise Escaped(exc) from None
        finally:
            self._running.pop(task, None)

    def stop_unwanted(self) -> None:
        """Cancel what is unwanted, each once: what it does about it, cleaning up, may take its time. Any thread."""
        with contextlib.suppress(RuntimeError):  # it is closed: nothing runs
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop_unwanted)

    def _stop_unwanted(self) -> None:
        for task, is_unwanted in list(self._running.items()):
            if is_unwanted():
                del self._running[task]
                task.cancel()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        # asyncio hands a SystemExit or KeyboardInterrupt of one of its tasks to whoever awaits that task, and then lets
        # it out of run_forever as well: without another turn every later coroutine of the process would wait for ever.
        while not _has_stopped(loop):
            pass
        loop.close()

    def stop(self) -> None:
        """Stop the loop; what still runs on it is left behind."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _has_stopped(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        loop.run_forever()
    except BaseException:  # a handler's, on record where it was awaited
        return False
    return True


class Escaped(Exception):
    """Carries a BaseException out of a coroutine: a SystemExit that leaves a task would end the event loop."""

    def __init__(self, exc: BaseException) -> None:
        super().__init__("escaped")
        self.exc = exc
