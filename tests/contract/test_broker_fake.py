"""The broker contract on fakeredis: over TCP, as the embedded default runs it, and inside the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from tandemq.broker.client import Connections, Pools, Role
from tandemq.broker.embedded_server import make_server
from tandemq.broker.local import InProcessPools
from tests.contract.broker_contract import BrokerContract


class TestEmbeddedServer(BrokerContract):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        server = make_server()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()
        server.server_close()
        thread.join()

    @pytest.fixture
    def pools(self, url: str) -> Iterator[Pools]:
        connections = Connections(url)
        yield connections
        connections.close()

    @pytest.fixture
    def raw(self, url: str) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(url, protocol=2) as client:
            yield client


class TestInProcess(BrokerContract):
    @pytest.fixture
    def pools(self) -> Pools:
        return InProcessPools()

    @pytest.fixture
    def raw(self, pools: Pools) -> redis.Redis:
        with pools.use(Role.SERVE) as client:
            return client
