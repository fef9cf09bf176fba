"""The broker contract on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tandemq.broker.client import Connections, Pools
from tests import recipes
from tests.contract.broker_contract import BrokerContract


class TestRedisBroker(BrokerContract):
    @pytest.fixture
    def pools(self, redis_url: str, namespace: str) -> Iterator[Pools]:
        connections = Connections(recipes.pool_url(redis_url, namespace))
        yield connections
        connections.close()

    @pytest.fixture
    def raw(self, redis_url: str) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(redis_url) as client:
            yield client
