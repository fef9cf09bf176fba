"""One more handler for the scenarios about Redis, beside those of ``tests.apps.work``."""

from __future__ import annotations

import os
import time

from tandemq import current_task
from tests import probe
from tests.apps.work import QUICK, app


@app.task(name="hold_and_fail", retry=QUICK)
def hold_and_fail(until: str) -> int:
    """Fails in the moment in which this file appears; the second attempt succeeds."""
    probe.start()
    while not os.path.exists(until):  # noqa: PTH110 - a test's file
        time.sleep(0.005)
    attempt = current_task().attempt
    if attempt == 1:
        raise OSError("the first attempt fails")
    probe.end()
    return attempt
