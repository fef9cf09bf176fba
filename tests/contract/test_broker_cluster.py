"""The broker contract on a Redis Cluster of one node: every command stays within one slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tandemq.broker.client import Connections, Pools
from tests.contract.broker_contract import BrokerContract
from tests.servers import RedisServer
from tests.waiting import eventually

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    server = RedisServer("--cluster-enabled", "yes")
    server.start()
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    yield server
    server.discard()


class TestOneNodeCluster(BrokerContract):
    @pytest.fixture
    def pools(self, cluster: RedisServer) -> Iterator[Pools]:
        cluster.flush()
        connections = Connections(cluster.url())
        yield connections
        connections.close()

    @pytest.fixture
    def raw(self, cluster: RedisServer) -> Iterator[redis.Redis]:
        with cluster.client() as client:
            yield client
