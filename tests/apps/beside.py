"""The Python worker beside one in JavaScript (handlers.mjs): the same type, the same marks; ``n`` names a task."""

from __future__ import annotations

import time

from tandemq import TandemQ, current_task
from tests.probe import note

app = TandemQ()


@app.task(name="beside")
def beside(n: int, ms: int = 0) -> dict[str, object]:
    note("start", n, current_task().attempt)
    time.sleep(ms / 1000)
    note("end", n, current_task().attempt)
    return {"n": n, "by": "python"}
