"""Tables and keys for one run: made, measured, and gone without a trace, and nobody else's touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tandemq import broker as brokers
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.store import engines
from tandemq.store.scratch import Scratch
from tests import recipes
from tests.servers import MySQLServer, RedisServer, free_port

EITHER = [
    pytest.param("embedded_settings", id="embedded"),
    pytest.param("env", id="servers", marks=pytest.mark.servers),
]


@pytest.fixture
def embedded_settings(tmp_path: Path) -> Settings:
    return Settings.load({}, data_dir=str(tmp_path / "data"))


@pytest.fixture(params=EITHER)
def given(request: pytest.FixtureRequest) -> Settings:
    settings: Settings = request.getfixturevalue(request.param)
    if settings.is_embedded:
        return settings
    # Tables are made by who may: the application's user of deploy/mysql may not.
    urls = {name: recipes.administrator(getattr(settings, name)) for name in ("database_url", "redis_url")}
    return replace(settings, **urls)


def names(settings: Settings) -> set[str]:
    """Tables and views of the database."""
    engine = engines.build(engines.url_of(settings), SystemClock())
    try:
        with engine.connect() as connection:
            found = sa.inspect(connection)
            return {*found.get_table_names(), *found.get_view_names()} - {"sqlite_sequence"}
    finally:
        engine.dispose()


def run_sql(settings: Settings, statement: str) -> None:
    engine = engines.build(engines.url_of(settings), SystemClock())
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def test_everything_made_goes_and_neighbours_stay(given: Settings) -> None:
    settings = replace(given, table_prefix="tandemq_bench_1_")
    neighbour = Scratch(replace(given, table_prefix="tandemq_bench_10_"))
    neighbour.create()
    # An underscore in a LIKE pattern would stand for any letter.
    run_sql(settings, "CREATE TABLE tandemq_benchX1_tasks (id INTEGER)")
    before = names(settings)
    scratch = Scratch(settings)

    scratch.create()
    made = names(settings) - before
    dropped = scratch.drop()

    assert {"tandemq_bench_1_tasks", "tandemq_bench_1_tasks_view", "tandemq_bench_1_bare"} <= made
    assert set(dropped) == made
    assert names(settings) == before
    assert scratch.drop() == []


def test_bare_statements_run_and_the_server_is_known(given: Settings) -> None:
    settings = replace(given, table_prefix="tandemq_bench_2_")
    scratch = Scratch(settings)
    scratch.create()

    with scratch.bare() as bare:
        bare.select()
        bare.commit()
        bare.commit()
        server = bare.server()

    engine = engines.build(engines.url_of(settings), SystemClock())
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT COUNT(*) FROM tandemq_bench_2_bare").scalar() == 2, (
            "each is committed"
        )
    engine.dispose()
    assert server.version.split()[0] in {"MariaDB", "MySQL", "SQLite"}
    assert server.version.split()[1].replace(".", "").isdigit()
    assert scratch.drained("bench.noop") == (0, 0.0)


@pytest.mark.servers
def test_settings_under_which_commits_may_be_lost_are_named(env: Settings, own_mysql: type[MySQLServer]) -> None:
    lax = own_mysql("--innodb-flush-log-at-trx-commit=2", "--log-bin=log", "--server-id=1", "--sync-binlog=0")
    name = lax.create_database()
    found = []
    for url in (env.database_url, lax.url(name)):
        with Scratch(replace(env, database_url=url)).bare() as bare:
            found.append(bare.server().unsafe)

    assert found == ["", "innodb_flush_log_at_trx_commit = 2, sync_binlog = 0"]


@pytest.mark.servers
def test_every_key_of_a_namespace_goes_and_neighbours_stay(redis_server: RedisServer, redis_url: str) -> None:
    clock = SystemClock()
    settings = Settings.load({}, database_url="mysql://h/x", redis_url=redis_url, namespace="tandemq-bench-1")
    for namespace in ("tandemq-bench-1", "tandemq-bench-10", "tandemq"):
        broker = brokers.connect(replace(settings, namespace=namespace), clock)
        broker.mark_install("abc")
        for queue in ("bench", "other"):
            broker.push(Level(queue, 0), [1, 2])
            broker.push(Level(queue, 77), [3])
            broker.delay(Level(queue, -5), {4: 5})
            broker.advance_generation(queue, old=None, new="abc:1:ready")
        broker.close()
    with redis_server.client(decode_responses=True) as client:
        before = set(client.keys("*"))

        brokers.clear(settings, clock)

        left = set(client.keys("*"))
    assert left == {key for key in before if not key.startswith("tandemq-bench-1:")}
    assert len(left) == 2 * (len(before) // 3)
    brokers.clear(settings, clock)


def test_a_redis_that_is_away_is_told(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    settings = Settings.load({}, database_url=f"sqlite:///{tmp_path}/x.db", redis_url=url)

    with pytest.raises(BrokerUnavailable):
        brokers.clear(settings, SystemClock())
