"""Handlers for the scenarios about leases, processes that die and clocks; all of ``tests.apps.work`` beside them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tandemq import NonRetryable, RetryPolicy, TandemQ, current_task
from tests import probe
from tests.apps import work

app = TandemQ()
QUICK = RetryPolicy(backoff=[0.05], jitter=0)
BACKOFF_S = 1.0
for task in work.app.registry:
    app.registry.add(task)

#: How a handler may take its process with it.
DEATHS: dict[str, Callable[[], object]] = {
    "kill9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "exit 0": lambda: os._exit(0),
    "exit 1": lambda: os._exit(1),
}
_leaked: list[bytes] = []


def wait_for(gate: str) -> None:
    while gate and not Path(gate).exists():
        time.sleep(0.005)


@app.task(name="l.gil", retry=QUICK, timeout=None)
def gil(seconds: float) -> str:
    """Holds the interpreter: no other thread of the process runs meanwhile."""
    with probe.running():
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
    return "held"


@app.task(name="l.die", retry=QUICK)
def die(how: str, gate: str = "") -> None:
    probe.start()
    wait_for(gate)
    if not Path(f"{os.environ[probe.VARIABLE]}.mended").exists():
        DEATHS[how]()
    probe.end()


@app.task(name="l.late", retry=QUICK)
def late(gate: str, then: str) -> str:
    """The first attempt waits for the gate; the others end at once, or as ``then`` says."""
    with probe.running():
        if current_task().attempt == 1:
            wait_for(gate)
        elif then == "bury":
            raise NonRetryable("the second one gives up")
        elif then == "run":
            wait_for(f"{gate}.second")
    return f"attempt {current_task().attempt}"


@app.task(name="l.flaky", retry=RetryPolicy(backoff=[BACKOFF_S], jitter=0))
def flaky() -> None:
    """Fails once."""
    with probe.running():
        if current_task().attempt == 1:
            raise OSError("flaky disk")


@app.task(name="l.greedy", retry=QUICK)
def greedy(megabytes: int) -> int:
    """More at once than the process may have."""
    with probe.running():
        return len(bytearray(megabytes << 20))


@app.task(name="l.leak", retry=QUICK)
def leak(megabytes: int) -> None:
    with probe.running():
        _leaked.append(os.urandom(1 << 20) * megabytes)
