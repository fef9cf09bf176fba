"""Handlers that are asked to stop, and what they make of it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

from tandemq import RetryPolicy, TandemQ, TaskCancelled, current_task
from tests import probe

app = TandemQ()
QUICK = RetryPolicy(backoff=[0.05], jitter=0)


@app.task(name="polite", retry=QUICK)
async def polite() -> None:
    """Cancelled at its await, it takes some time to clean up."""
    probe.start()
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        await asyncio.sleep(1.5)
        probe.note("cleaned", current_task().id, current_task().attempt)
        raise


@app.task(name="swallows", retry=QUICK)
async def swallows() -> str:
    probe.start()
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        pass
    return "done all the same"


@app.task(name="bows_out", retry=QUICK)
def bows_out() -> None:
    probe.start()
    while not current_task().cancelled:
        time.sleep(0.02)
    raise TaskCancelled("as you wish")


@app.task(name="quits_by_itself", retry=QUICK)
async def quits_by_itself() -> None:
    """Nobody asked it to stop: a failure as any other."""
    probe.start()
    raise asyncio.CancelledError


@app.task(name="deaf", retry=QUICK)
def deaf() -> None:
    """Never looks, never ends, and lets the others of its process run."""
    probe.start()
    time.sleep(100)


@app.task(name="wedged", retry=QUICK)
def wedged() -> None:
    """Nor does it let anything else of its process run."""
    probe.start()
    ctypes.PyDLL(None).usleep(ctypes.c_uint(100_000_000))


@app.task(name="wait", retry=QUICK)
def wait(until: str) -> str:
    with probe.running():
        while not os.path.exists(until):  # noqa: PTH110 - a test's file
            time.sleep(0.005)
    return "held"
