from __future__ import annotations

import threading
import time

import pytest

from tandemq.core.clock import SystemClock
from tandemq.core.errors import TaskTimeout
from tandemq.worker import limits
from tandemq.worker.limits import TimeLimits


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_short_limit_fires_while_a_long_one_is_watched() -> None:
    """Red under: a watcher that sleeps until the first limit it heard of."""
    watching = TimeLimits(SystemClock())
    release = threading.Event()
    other = threading.Thread(target=lambda: watching.call(release.wait, 1000.0, 60))
    other.start()
    while not watching._entries or watching._next_due == limits._NEVER:
        time.sleep(0.001)
    with pytest.raises(TaskTimeout):
        watching.call(spin, 0.1, 60)
    release.set()
    other.join()
    watching.stop()


def test_a_limit_that_hit_the_end_of_a_call_does_not_unwatch_the_next() -> None:
    watching = TimeLimits(SystemClock())
    watching.call(int, 1000.0)
    watching._mine.entry.fired = True  # as the last call's very end may leave it
    with pytest.raises(TaskTimeout):
        watching.call(spin, 0.1, 60)
    watching.stop()


def test_a_call_that_returned_is_never_hit() -> None:
    watching = TimeLimits(SystemClock())
    for _ in range(300):
        try:
            watching.call(spin, 0.002, 0.0019)
        except TaskTimeout:
            continue
        spin(0.0005)  # where a late one would fall
    watching.stop()


def test_limits_that_fire_all_the_time_leave_no_lock_behind() -> None:
    """Red under: waking the watcher by an Event, whose lock is taken in Python code."""
    watching = TimeLimits(SystemClock())
    fired = [0] * 4

    def hammer(slot: int) -> None:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            try:
                watching.call(spin, 0.0003 * (1 + slot), 0.002)
            except TaskTimeout:
                fired[slot] += 1

    threads = [threading.Thread(target=hammer, args=(slot,), daemon=True) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(fired)
    watching.stop()
