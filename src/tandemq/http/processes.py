"""Several processes behind one port: the parent opens it and starts them, they accept from it.

One socket for all, not one each (SO_REUSEPORT): connections that wait to be accepted are nobody's yet, so none is lost
with a process that dies. It is replaced. Each holds the reading end of a pipe whose other end is the parent's alone: if
the parent is gone, however that happened, they end by themselves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from tandemq.core.clock import Clock, SystemClock
from tandemq.http.options import ApiOptions
from tandemq.ownfolder import own_folder
from tandemq.series import MULTIPROC_DIR

_log = logging.getLogger("tandemq.http")
#: Between two starts of the same place, when a process has not lived longer than that.
PAUSE_S: Final = 1.0
#: A process that has not ended this long after its requests' time is killed.
KILL_S: Final = 10.0
TURN_S: Final = 0.2
READY: Final = b"ready\n"
FAILED: Final = 1


class _Place:
    """The ``number``-th process, and whoever follows it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.report_fd = -1
        self.started = float("-inf")

    def close(self) -> None:
        """Let go of the pipes of a process that is gone."""
        if self.popen is not None and self.popen.stdin is not None:
            with contextlib.suppress(OSError):
                self.popen.stdin.close()
        if self.report_fd >= 0:
            os.close(self.report_fd)
        self.popen, self.report_fd = None, -1


class Processes:
    """The parent. ``run`` returns the exit code: 0 after TERM or INT."""

    def __init__(
        self,
        spec: str | None,
        options: ApiOptions,
        listeners: Sequence[socket.socket],
        then: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._options, self._listeners, self._then = options, listeners, then
        self._clock = clock or SystemClock()
        self._fds = [made.fileno() for made in listeners]
        self._orders: dict[str, Any] = {"app": spec, "options": asdict(options), "fds": self._fds, "own_folder": ""}
        self._places = [_Place(number) for number in range(options.workers)]
        self._signals = 0
        self._is_serving = False
        self._selector = selectors.DefaultSelector()
        self._environ = dict(os.environ)

    def run(self) -> int:
        """Until TERM or INT, then until all have ended; a second one kills them."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with self._metrics_folder():
            code = 0
            while not self._signals and not code:
                self._start_missing()
                self._wait()
                code = self._look_after()
            return self._end() or code

    def _on_signal(self, *_: object) -> None:
        self._signals += 1

    @contextlib.contextmanager
    def _metrics_folder(self) -> Iterator[None]:
        if self._environ.get(MULTIPROC_DIR):
            yield
            return
        with own_folder() as folder:
            self._environ[MULTIPROC_DIR] = self._orders["own_folder"] = folder
            yield

    def _start_missing(self) -> None:
        now = self._clock.monotonic()
        for place in self._places:
            if place.popen is None and now - place.started >= PAUSE_S:
                place.started = now
                try:
                    self._start(place)
                except OSError as refused:
                    _log.error("a process cannot be started, trying again: %s", refused)

    def _start(self, place: _Place) -> None:
        read_fd, write_fd = os.pipe()
        try:
            place.popen = subprocess.Popen(
                # -P: the working directory must not shadow the standard library; load_app adds it behind.
                [sys.executable, "-P", "-m", "tandemq.http.process"],
                stdin=subprocess.PIPE,
                pass_fds=(*self._fds, write_fd),
                env=self._environ,
                start_new_session=True,  # a Ctrl-C in the terminal is the parent's
            )
        except OSError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        place.report_fd = read_fd
        self._selector.register(read_fd, selectors.EVENT_READ, place)
        if place.popen.stdin is not None:
            orders = json.dumps({**self._orders, "number": place.number, "report_fd": write_fd})
            with contextlib.suppress(BrokenPipeError):
                place.popen.stdin.write(orders.encode() + b"\n")
                place.popen.stdin.flush()

    def _wait(self) -> None:
        for key, _ in self._selector.select(TURN_S):
            said = os.read(key.fd, 64)
            if said and not self._is_serving:
                self._is_serving = True
                self._then()
            if not said:
                self._selector.unregister(key.fd)

    def _look_after(self) -> int:
        """Take note of those that are gone; an exit code if none of them can ever serve."""
        for place in self._places:
            code = None if place.popen is None else place.popen.poll()
            if code is None or place.popen is None:
                continue
            _log.error("process %d ended (exit code %d)", place.popen.pid, code)
            self._forget(place)
            if not self._is_serving:
                return FAILED
        return 0

    def _forget(self, place: _Place) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(place.report_fd)
        place.close()

    def _end(self) -> int:
        for listener in self._listeners:
            listener.close()
        left = [place for place in self._places if place.popen is not None]
        for place in left:
            _signal(place, signal.SIGTERM)
        give_up_at = self._clock.monotonic() + self._options.grace_s + KILL_S
        code, signals = 0, self._signals
        while left:
            if self._signals > signals or self._clock.monotonic() > give_up_at:
                code = FAILED
                for place in left:
                    _signal(place, signal.SIGKILL)
            self._clock.sleep(0.05)
            for place in list(left):
                ended = place.popen.poll() if place.popen else 0
                if ended is not None:
                    # One that dies of the signal was still starting: it knows what to do with it once it serves.
                    code = code or (FAILED if ended not in {0, -signal.SIGTERM} else 0)
                    left.remove(place)
                    self._forget(place)
        return code


def _signal(place: _Place, number: int) -> None:
    if place.popen is not None:
        place.popen.send_signal(number)
