"""A migrated MySQL database, the store on it, and the same store behind a proxy. Contract classes bring their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tests import recipes
from tests.proxy import Proxy
from tests.servers import MySQLServer


@pytest.fixture
def settings(mysql_url: str) -> Settings:
    return recipes.prepared(Settings(database_url=mysql_url, redis_url="redis://nowhere"))


@pytest.fixture
def store(settings: Settings) -> Iterator[SqlStore]:
    store = connect(settings)
    yield store
    store.close()


@pytest.fixture
def database(settings: Settings) -> str:
    return settings.database_url.rpartition("/")[2]


@pytest.fixture
def proxy(mysql_server: MySQLServer) -> Iterator[Proxy]:
    with Proxy(*mysql_server.address) as proxy:
        yield proxy


@pytest.fixture
def far(settings: Settings, mysql_server: MySQLServer, proxy: Proxy) -> Iterator[SqlStore]:
    """A store behind the proxy, with a connection in its pool."""
    url = settings.database_url.replace(f":{mysql_server.port}/", f":{proxy.port}/")
    store = connect(replace(settings, database_url=url))
    store.ping()
    yield store
    proxy.silent = False
    proxy.disarm()
    store.close()
