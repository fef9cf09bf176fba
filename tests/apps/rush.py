"""Many callers of one idempotency key at the same moment, in a process of its own.

``python -m tests.apps.rush PREFIX KEYS THREADS`` says ``ready``, waits for a line, enqueues ``b.noop`` under each key
``PREFIX0``, ``PREFIX1``, ... from all threads at once, and prints one JSON object: key -> list of [id, created], or
[error, text] for a call that failed.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.apps.scenarios_b import app


def rush(prefix: str, keys: int, threads: int) -> dict[str, list[list[Any]]]:
    barrier = threading.Barrier(threads)

    def call(key: str, n: int) -> list[Any]:
        barrier.wait(60)
        try:
            handle = app.enqueue("b.noop", {"n": n}, idempotency_key=key)
        except Exception as error:
            return [type(error).__name__, str(error)]
        return [handle.id, handle.created]

    with ThreadPoolExecutor(threads) as pool:
        return {f"{prefix}{n}": list(pool.map(call, [f"{prefix}{n}"] * threads, [n] * threads)) for n in range(keys)}


if __name__ == "__main__":
    app.get(1)  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(rush(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
