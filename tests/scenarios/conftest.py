"""Fixtures of the scenarios: a bench over real servers at their pace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.migrate import migrate
from tests.bulk import fill
from tests.probe import Probe
from tests.scenarios.big import VOLUME, narrow
from tests.scenarios.truth import CALM, PACE
from tests.servers import MySQLServer, RedisServer
from tests.workers import Bench, bench


@pytest.fixture
def calm() -> None:
    """``usefixtures("calm")``: no lease of ``work`` is to run out."""


@pytest.fixture
def work(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    redis_url: str,
    tmp_path: Path,
    probe: Probe,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    pace = CALM if "calm" in request.fixturenames else PACE
    with bench(settings_for(mysql_url, redis_url, **pace), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture(scope="session")
def big(mysql_server: MySQLServer) -> Iterator[Settings]:
    """A database with ``big.VOLUME`` rows: to be read; its ready rows may be claimed."""
    name = mysql_server.create_database()
    settings = Settings(database_url=mysql_server.url(name), redis_url="redis://127.0.0.1:1/0")
    migrate(settings)
    fill(settings, VOLUME)
    yield settings
    mysql_server.drop_database(name)


@pytest.fixture
def big_store(big: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    """A store on it whose bounds are small in proportion."""
    narrow(monkeypatch)
    store = connect(big)
    yield store
    store.close()


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of this test's Redis."""
    with redis_server.client() as client:
        yield client
