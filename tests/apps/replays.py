"""Handlers whose cause of failure is mended by a file; the probe tells what ran."""

from __future__ import annotations

import time
from pathlib import Path

from tandemq import NonRetryable, TandemQ
from tests import probe

app = TandemQ()


@app.task(name="r.pay", max_retries=0)
def pay(mended: str) -> str:
    with probe.running():
        if not Path(mended).exists():
            raise NonRetryable("the bank is away")
    return "paid"


@app.task(name="r.fine", max_retries=0)
def fine(n: int = 0) -> None:
    with probe.running():
        pass


@app.task(name="r.gated", max_retries=0)
def gated(gate: str, fails: bool) -> None:
    """Waits until the file exists, so that a test decides when it ends."""
    with probe.running():
        while not Path(gate).exists():
            time.sleep(0.005)
        if fails:
            raise NonRetryable("for good")
