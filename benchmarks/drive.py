"""The producer process of any side: ``python -m benchmarks.drive MODULE [phase[@way]:n ...]``, a JSON line for each.

Runs in the side's own interpreter; standard library only (and uvloop where the side's interpreter has it). The enqueue
is warmed up by whoever calls (``single:50``). A side that can be called both ways (``enqueue`` and ``aenqueue``) runs
``single`` and ``threads`` once each way, n tasks each; ``@sync`` or ``@async`` asks for one of them.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

BULK = 1000
THREADS = 32
PAUSE_S = 0.05
Enqueue = Callable[[int], Any]


def single(enqueue: Enqueue, n: int) -> None:
    for i in range(n):
        enqueue(i)


def threads(enqueue: Enqueue, n: int) -> None:
    def work(first: int) -> None:
        for i in range(first, n, THREADS):
            enqueue(i)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()


async def asingle(enqueue: Enqueue, n: int) -> None:
    for i in range(n):
        await enqueue(i)


async def athreads(enqueue: Enqueue, n: int) -> None:
    async def work(first: int) -> None:
        for i in range(first, n, THREADS):
            await enqueue(i)

    await asyncio.gather(*(work(k) for k in range(THREADS)))


async def bulk(enqueue_bulk: Callable[[range], Any], n: int) -> None:
    for start in range(0, n, BULK):
        answer = enqueue_bulk(range(start, min(n, start + BULK)))
        if inspect.isawaitable(answer):
            await answer


async def latency(enqueue: Enqueue, n: int) -> list[int]:
    sent = []
    for i in range(n):
        sent.append(time.time_ns())
        answer = enqueue(i)
        if inspect.isawaitable(answer):
            await answer
        await asyncio.sleep(PAUSE_S)
    return sent


def _ways(side: Any, way: str) -> Iterator[tuple[str, Enqueue]]:
    """How a single task can be enqueued, or the one way that is asked for."""
    for name in ("enqueue", "aenqueue"):
        enqueue = getattr(side, name, None)
        if enqueue is not None:
            kind = "async" if inspect.iscoroutinefunction(enqueue) else "sync"
            if way in {"", kind}:
                yield kind, enqueue


def plan(side: Any, phase: str, way: str, n: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is run for a phase, by way; none of it has begun."""
    if phase == "bulk":
        yield "", lambda: bulk(side.enqueue_bulk, n)
    elif phase == "latency":
        yield "", lambda: latency(side.enqueue_stamp, n)
    else:
        for kind, enqueue in _ways(side, way):
            run: Callable[[Enqueue, int], Any] = {
                ("single", "sync"): single,
                ("single", "async"): asingle,
                ("threads", "sync"): threads,
                ("threads", "async"): athreads,
            }[phase, kind]
            yield kind, lambda run=run, enqueue=enqueue: run(enqueue, n)  # type: ignore[misc]


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all phases: a side's connections belong to it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_to_end(run: Callable[[], Any]) -> Any:
    """Its answer; a coroutine is run on the loop."""
    answer = run()
    return _loop().run_until_complete(answer) if isinstance(answer, Coroutine) else answer


def main() -> None:
    side = importlib.import_module(sys.argv[1])
    asyncio.set_event_loop(_loop())
    for arg in sys.argv[2:]:
        name, _, n = arg.partition(":")
        phase, _, wanted = name.partition("@")
        for way, run in plan(side, phase, wanted, int(n)):
            start, cpu = time.perf_counter(), time.process_time()
            sent = run_to_end(run)
            took, spent = time.perf_counter() - start, time.process_time() - cpu
            line = {"phase": phase, "way": way, "n": int(n), "s": took, "cpu_s": spent, "sent": sent}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
