"""Calling something again and again, and how long that takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tandemq.core.clock import Clock


@dataclass(frozen=True, slots=True)
class Pace:
    """``n`` units of work in ``seconds``."""

    n: int
    seconds: float

    @property
    def per_s(self) -> float:
        """Units a second."""
        return self.n / max(self.seconds, 1e-9)


def each_call(call: Callable[[], object], clock: Clock, *, n: int, within_s: float) -> list[float]:
    """Seconds of each of ``n`` calls; fewer, but at least one, when the time is over."""
    took: list[float] = []
    begun = at = clock.monotonic()
    while len(took) < n and (not took or at - begun < within_s):
        call()
        took.append(clock.monotonic() - at)
        at += took[-1]
    return took


def in_a_row(call: Callable[[int], object], clock: Clock, *, n: int, within_s: float, step: int = 1) -> Pace:
    """``call(0)``, ``call(step)``, ... below ``n``, each of which does ``step`` units of work."""
    took = each_call(iter_call(call, step), clock, n=max(1, n // step), within_s=within_s)
    return Pace(len(took) * step, sum(took))


def iter_call(call: Callable[[int], object], step: int) -> Callable[[], object]:
    """A call without arguments that counts on by ``step``."""
    at = -step

    def next_one() -> object:
        nonlocal at
        at += step
        return call(at)

    return next_one


def at_once(call: Callable[[int], object], clock: Clock, *, n: int, within_s: float, threads: int) -> Pace:
    """The same calls shared among threads. The first error of any of them ends all, and is raised."""
    over = threading.Event()
    done = [0] * threads
    errors: list[Exception] = []
    begun = clock.monotonic()

    def work(mine: int) -> None:
        try:
            for i in range(mine, n, threads):
                if over.is_set() or clock.monotonic() - begun >= within_s:
                    return
                call(i)
                done[mine] += 1
        except Exception as error:
            errors.append(error)
            over.set()

    workers = [threading.Thread(target=work, args=(i,), name=f"tandemq-bench-{i}") for i in range(threads)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        # Interrupted: nobody may still be at it when the tables go.
        over.set()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
    if errors:
        raise errors[0]
    return Pace(sum(done), clock.monotonic() - begun)
