"""Fixtures of the scenarios: a bench over real servers at their pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.truth import PACE
from tests.servers import RedisServer
from tests.workers import Bench, bench


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **PACE), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of this test's Redis."""
    with redis_server.client() as client:
        yield client
