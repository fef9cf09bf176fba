"""A broker inside this process, over fakeredis without a socket: for unit tests of applications and of tandemq."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tandemq.broker.client import Role
from tandemq.broker.embedded import require_fakeredis
from tandemq.broker.errors import translated


class InProcessPools:
    """See ``Pools``: one fakeredis server that ends with this object."""

    max_block_s = 0.25

    def __init__(self) -> None:
        require_fakeredis()
        from fakeredis import FakeRedis, FakeServer

        self._client: redis.Redis = FakeRedis(server=FakeServer(version=(7, 0)), protocol=2)

    @contextmanager
    def use(self, role: Role) -> Iterator[redis.Redis]:
        """See ``Pools.use``; every role has the same client."""
        with translated(self._client):
            yield self._client

    def close(self) -> None:
        """Nothing to drop."""
