"""Makes a Python process believe that it runs on another host, as another process, at another time.

With this folder in PYTHONPATH it is imported before anything else. ``TANDEMQ_TEST_HOST`` and ``TANDEMQ_TEST_PID`` are
the host's name and the process id; ``TANDEMQ_TEST_CLOCK`` is a file that says how many seconds the wall clock is ahead.
It is read at every look at the clock, so that a test can set it while the process runs. ``time.clock_gettime`` and the
monotonic clock tell the truth.
"""

from __future__ import annotations

import datetime
import os
import socket
import time
from pathlib import Path
from typing import Any

Real = datetime.datetime


def ahead_s() -> float:
    return float(Path(os.environ["TANDEMQ_TEST_CLOCK"]).read_text())


def seconds() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME) + ahead_s()


class _LikeReal(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Real)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, Real)


class Shifted(Real, metaclass=_LikeReal):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(seconds(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now(datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Any:
        return cls.now()


if "TANDEMQ_TEST_CLOCK" in os.environ:
    time.time = seconds
    time.time_ns = lambda: int(seconds() * 1e9)
    datetime.datetime = Shifted  # type: ignore[misc]
if "TANDEMQ_TEST_HOST" in os.environ:
    socket.gethostname = lambda: os.environ["TANDEMQ_TEST_HOST"]
if "TANDEMQ_TEST_PID" in os.environ:
    os.getpid = lambda: int(os.environ["TANDEMQ_TEST_PID"])
