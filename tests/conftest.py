"""Fixtures: private real servers, one pair per test process, and a fresh database and namespace for every test."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tests import recipes, servers
from tests.probe import Probe
from tests.servers import ExternalMySQL, ExternalRedis, MySQLServer, RedisServer
from tests.weather import Weather

SERVER_FIXTURES = {"mysql_server", "redis_server", "own_mysql", "own_redis"}
UNIT = Path(__file__).parent / "unit"
#: What starts processes or servers may take this long on a busy machine; unit tests keep the limit of pyproject.toml.
PATIENCE_S = 400
_numbers = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs servers (so that ``-m "not servers"`` is the rest); give time to all that is no unit test."""
    for item in items:
        if item.get_closest_marker("timeout") is None and not item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.timeout(PATIENCE_S))
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("servers")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """A run that would need a server which is not here ends at once, as a failure: never a skip.

    In a worker of pytest-xdist each such test fails (MissingServer): a worker that exits is taken for a crash.
    """
    if hasattr(session.config, "workerinput"):
        return
    if any(item.get_closest_marker("servers") for item in session.items) and (lacking := servers.missing()):
        pytest.exit(lacking, returncode=1)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Verbs that are run inside the test process (demo, bench) silence the log for good: not for the next test."""
    yield
    logging.getLogger("tandemq").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySQLServer]:
    """The MariaDB or MySQL of this test process; do not stop it or change its settings: take ``own_mysql``."""
    if url := os.environ.get("TANDEMQ_TEST_DATABASE_URL"):
        yield ExternalMySQL(url)
        return
    server = MySQLServer()
    server.start()
    yield server
    server.discard()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The Redis of this test process; do not stop it or change its settings: take ``own_redis``."""
    if url := os.environ.get("TANDEMQ_TEST_REDIS_URL"):
        yield ExternalRedis(url)
        return
    server = RedisServer()
    server.start()
    yield server
    server.discard()


@pytest.fixture
def own_mysql() -> Iterator[Callable[..., MySQLServer]]:
    """``own_mysql(*options)``: a started server of this test alone, to be killed, frozen or configured."""
    made: list[MySQLServer] = []

    def make(*options: str) -> MySQLServer:
        made.append(server := MySQLServer(*options))
        server.start()
        return server

    yield make
    for server in made:
        server.discard()


@pytest.fixture
def own_redis() -> Iterator[Callable[..., RedisServer]]:
    """``own_redis(*options)``: a started server of this test alone, to be killed, frozen or configured."""
    made: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        made.append(server := RedisServer(*options))
        server.start()
        return server

    yield make
    for server in made:
        server.discard()


@pytest.fixture
def mysql_url(mysql_server: MySQLServer) -> Iterator[str]:
    """SQLAlchemy URL of a fresh empty database, dropped afterwards."""
    name = mysql_server.create_database()
    yield mysql_server.url(name)
    mysql_server.drop_database(name)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of an empty Redis database (flushed just now)."""
    redis_server.flush()
    return redis_server.url()


@pytest.fixture
def namespace() -> str:
    """A namespace nobody else uses: a hard-coded one in the product would show."""
    return f"t{os.getpid()}.{next(_numbers)}"


@pytest.fixture
def settings_for(namespace: str, tmp_path: Path) -> Callable[..., Settings]:
    """``settings_for(database_url, redis_url, **changes)``: Settings with the database migrated."""

    def make(database_url: str, redis_url: str, **changes: object) -> Settings:
        given = {"namespace": namespace, "data_dir": str(tmp_path / "tandemq"), **changes}
        return recipes.prepared(Settings.load({}, database_url=database_url, redis_url=redis_url, **given))

    return make


@pytest.fixture
def env(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Settings:
    """Settings for a fresh migrated MySQL database and an empty Redis, both real."""
    return settings_for(mysql_url, redis_url)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """The judge of what ran: see ``tests.probe``. Its path reaches subprocesses as TANDEMQ_TEST_PROBE."""
    return Probe(tmp_path / "probe")


@pytest.fixture
def weather(mysql_server: MySQLServer) -> Iterator[Weather]:
    """How slow this machine and its MySQL's disk are while the test runs: see ``tests.weather``."""
    name = mysql_server.create_database()
    mysql_server.sql("CREATE TABLE weather (n BIGINT NOT NULL) ENGINE=InnoDB", database=name)
    mysql_server.sql("INSERT INTO weather VALUES (0)", database=name)
    connection = mysql_server.connect(name)

    def commit() -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE weather SET n = n + 1")

    with Weather(commit) as made:
        yield made
    connection.close()
    mysql_server.drop_database(name)
