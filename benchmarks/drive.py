"""The producer process of any side: ``python -m benchmarks.drive MODULE [phase:n ...]`` prints one JSON line a phase.

Runs in the side's own interpreter; standard library only. The enqueue is warmed up by whoever calls (``single:50``).
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from typing import Any

BULK = 1000
THREADS = 32
PAUSE_S = 0.05


def single(side: Any, n: int) -> None:
    for i in range(n):
        side.enqueue(i)


def threads(side: Any, n: int) -> None:
    def work(first: int) -> None:
        for i in range(first, n, THREADS):
            side.enqueue(i)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()


def bulk(side: Any, n: int) -> None:
    for start in range(0, n, BULK):
        side.enqueue_bulk(range(start, min(n, start + BULK)))


def latency(side: Any, n: int) -> list[int]:
    sent = []
    for i in range(n):
        sent.append(time.time_ns())
        side.enqueue_stamp(i)
        time.sleep(PAUSE_S)
    return sent


PHASES = {"single": single, "threads": threads, "bulk": bulk, "latency": latency}


def main() -> None:
    side = importlib.import_module(sys.argv[1])
    for arg in sys.argv[2:]:
        name, _, n = arg.partition(":")
        start, cpu = time.perf_counter(), time.process_time()
        sent = PHASES[name](side, int(n))
        line = {"phase": name, "n": int(n), "s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
        print(json.dumps({**line, "sent": sent}), flush=True)


if __name__ == "__main__":
    main()
