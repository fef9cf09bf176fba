"""Tasks whose events are noted in the probe file, as ``event/exception/retries allowed/thread``."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time

from tandemq import NonRetryable, RetryPolicy, TandemQ, current_task
from tandemq.core.listening import EVENTS
from tests import probe

app = TandemQ()
QUICK = RetryPolicy(max_retries=2, backoff=[0.05], jitter=0)


def hear(event: str, attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
    thread = threading.current_thread().name.rpartition("-")[0 if "slot" in threading.current_thread().name else 2]
    raised = type(exc).__name__ if exc is not None else "-"
    probe.note(f"{event}/{raised}/{policy.max_retries}/{thread.removeprefix('tandemq-')}", current_task().id, attempt)


def dawdle(attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
    probe.note("dawdling", current_task().id, attempt)
    time.sleep(float(os.environ.get("TOLD_DAWDLE_S", "0")))
    probe.note("dawdled", current_task().id, attempt)


for event in EVENTS:
    app.add_listener(event, functools.partial(hear, event))


@app.task(name="flaky", retry=QUICK)
def flaky(fails: int) -> int:
    if current_task().attempt <= fails:
        raise OSError("no")
    return fails


@app.task(name="final", retry=QUICK)
def final() -> None:
    raise NonRetryable("never")


@app.task(name="typed")
def typed(n: int) -> None: ...


@app.task(name="poison", retry=QUICK)
def poison() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="old", retry=RetryPolicy(backoff=60, jitter=0, max_age=1))
def old() -> None:
    raise OSError("no")


@app.task(name="quick")
def quick(n: int) -> None: ...


@app.task(name="dawdling", retry=RetryPolicy(max_retries=3, backoff=0))
def dawdling(n: int = 0) -> None:
    if n == 0 and current_task().attempt == 1:
        raise OSError("told slowly")


dawdling.add_listener("on_retry", dawdle)
dawdling.add_listener("on_success", dawdle)
