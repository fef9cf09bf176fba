"""How big the scenarios are: small enough for every test run, or with ``TANDEMQ_SCENARIOS=full`` as the reports say."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

FULL = os.environ.get("TANDEMQ_SCENARIOS") == "full"


def size(scaled: T, full: T) -> T:
    """The count, number of seconds or list of cases for this run."""
    return full if FULL else scaled
