"""Moves the wall clock of every process of tandemq that has this folder on its PYTHONPATH by CHAOS_SKEW_S seconds.

The product reads the time in one place, ``SystemClock.now``; monotonic time is left alone, as a clock step leaves it.
"""

import os
from datetime import timedelta

if skew := float(os.environ.get("CHAOS_SKEW_S", "0")):
    from tandemq.core.clock import SystemClock

    true_now = SystemClock.now
    SystemClock.now = lambda self: true_now(self) + timedelta(seconds=skew)
