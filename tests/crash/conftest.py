"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tandemq.core import crash
from tandemq.core.settings import Settings
from tests.crash.fleet import PACE, Fleet, open_fleet
from tests.probe import Probe
from tests.servers import RedisServer
from tests.workers import Bench


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No point is armed in the test's own process before or after a test."""
    crash.arm(None)
    yield
    crash.arm(None)


@pytest.fixture
def fleet(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Fleet]:
    yield from open_fleet(settings_for(mysql_url, redis_url, **PACE), tmp_path, probe)


@pytest.fixture
def work(fleet: Fleet) -> Bench:
    """For a test with a worker or two."""
    return fleet.work


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client
