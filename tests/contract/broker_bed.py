"""What the broker tests share: a clock moved by hand, levels, and the fixtures of a contract."""

from __future__ import annotations

from typing import Any

import pytest

from tandemq.broker.client import Pools
from tandemq.broker.keys import Keys
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.task import Level

LOW, MEDIUM, HIGH = (Level("default", p) for p in (0, 10, 20))
OTHER = Level("other", 10)


class HandClock:
    """Monotonic time that moves only by hand, or by the sleeps of the code under test (which are kept)."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> Any:
        raise AssertionError("the broker does not look at the wall clock")

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class BrokerBed:
    """Adapters give the fixtures ``pools``, ``raw`` (a plain client of the same server) and ``namespace``."""

    @pytest.fixture
    def clock(self) -> HandClock:
        return HandClock()

    @pytest.fixture
    def keys(self, namespace: str) -> Keys:
        return Keys(namespace)

    @pytest.fixture
    def broker(self, pools: Pools, keys: Keys, clock: HandClock) -> RedisBroker:
        return RedisBroker(pools, keys, clock)
