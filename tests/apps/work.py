"""Handlers for tests that run real workers: what ran is told by the probe file alone."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from typing import Any

from tandemq import NonRetryable, RetryPolicy, Snooze, TandemQ, TaskHandler, current_task
from tests import probe

app = TandemQ()
QUICK = RetryPolicy(backoff=[0.05], jitter=0)


@app.task(name="noop", retry=RetryPolicy(backoff=[0.2], jitter=0.5))
def noop(n: int = 0) -> None:
    with probe.running():
        pass


@app.task(name="sleep", retry=QUICK)
def sleep(seconds: float) -> str:
    with probe.running():
        time.sleep(seconds)
    return "slept"


@app.task(name="hold", retry=QUICK)
def hold(until: str) -> str:
    """Keeps its slot until this file exists, so that a test decides how long."""
    with probe.running():
        while not os.path.exists(until):  # noqa: PTH110 - a test's file
            time.sleep(0.005)
    return "held"


@app.task(name="hold_again", retry=QUICK)
def hold_again(until: str) -> str:
    """Returns at once in its first attempt; in a later one it keeps its slot until this file exists."""
    with probe.running():
        while current_task().attempt > 1 and not os.path.exists(until):  # noqa: PTH110 - a test's file
            time.sleep(0.005)
    return "held"


@app.task(name="asleep", retry=QUICK)
async def asleep(seconds: float) -> str:
    with probe.running():
        await asyncio.sleep(seconds)
    return "slept"


@app.task(name="fail", retry=QUICK)
def fail(text: str = "no luck") -> None:
    probe.start()
    raise ValueError(f"{text}, attempt {current_task().attempt}")


@app.task(name="flaky", retry=QUICK)
def flaky(fails: int = 1) -> int:
    probe.start()
    if current_task().attempt <= fails:
        raise OSError("flaky disk")
    probe.end()
    return current_task().attempt


@app.task(name="poison", retry=QUICK)
def poison() -> None:
    probe.start()
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="wedge", retry=QUICK, timeout=0.5)
def wedge(seconds: float) -> None:
    """Holds the interpreter: no exception can reach it, no other thread of the process runs."""
    probe.start()
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
    probe.end()


@app.task(name="echo")
def echo(**payload: Any) -> dict[str, Any]:
    with probe.running():
        return payload


@app.task(name="snooze")
def snooze(delay: float) -> int:
    probe.start()
    if len(probe_starts()) < 3:
        raise Snooze(delay)
    return current_task().attempt


def probe_starts() -> list[str]:
    with open(os.environ[probe.VARIABLE]) as lines:  # noqa: PTH123 - a test's file
        return [line for line in lines if " start " in line and line.startswith(f"{current_task().id} ")]


@app.task(name="final")
def final() -> None:
    probe.start()
    raise NonRetryable("never again")


@app.task(name="obedient", retry=QUICK)
def obedient() -> str:
    """Runs until it is told that it is cancelled."""
    probe.start()
    while not current_task().cancelled:
        time.sleep(0.02)
    return "stopped early"


@app.task
class Order(TaskHandler):
    name = "order"
    retry = QUICK
    max_retries = 1

    def process(self, payload: dict[str, Any]) -> Any:
        probe.start()
        raise RuntimeError("no stock")

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Any) -> None:
        probe.note("dead-letter", task_id, 0)


@app.task
class PoisonOrder(TaskHandler):
    name = "poison_order"
    retry = QUICK
    max_retries = 0

    def process(self, payload: dict[str, Any]) -> Any:
        probe.start()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Any) -> None:
        probe.note("dead-letter", task_id, 0)


@app.task(name="forker", retry=QUICK)
def forker() -> None:
    """Leaves a process behind that holds every descriptor this one has."""
    probe.start()
    if os.fork() == 0:
        time.sleep(90)
        os._exit(0)
    time.sleep(90)


@app.task(name="stdin", retry=QUICK)
def stdin() -> str:
    with probe.running():
        return subprocess.run(["head", "-c", "3"], capture_output=True, check=True, text=True).stdout
