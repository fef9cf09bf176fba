"""How big the scenarios are: small enough for every test run, or with ``TANDEMQ_SCENARIOS=full`` as the reports say."""

from __future__ import annotations

import os
from typing import TypeVar

Number = TypeVar("Number", int, float)

FULL = os.environ.get("TANDEMQ_SCENARIOS") == "full"


def size(scaled: Number, full: Number) -> Number:
    """A count, or a number of seconds."""
    return full if FULL else scaled
