"""The drivers that this test run claims to use are the ones that speak to the servers."""

from __future__ import annotations

import os

from sqlalchemy.engine import make_url

from tandemq.broker.client import Connections, Role
from tandemq.core.settings import Settings
from tandemq.store import connect

DRIVER = os.environ.get("TANDEMQ_TEST_DRIVER")


def test_mysql_is_spoken_to_by_the_driver_of_the_url(env: Settings) -> None:
    named = make_url(env.database_url).drivername.partition("+")[2]
    store = connect(env)

    assert named == (DRIVER or named)
    assert store.db.engine.driver == (named or store.db.engine.driver)
    assert store.db.read(lambda tx: tx.one("SELECT 1"))[0] == 1
    store.close()


def test_redis_is_spoken_to_through_hiredis_where_the_fast_drivers_are_tested(redis_url: str) -> None:
    connections = Connections(redis_url)
    with connections.use(Role.SERVE) as client:
        client.ping()
        connection = client.connection_pool.get_connection()
        parser = type(connection._parser).__name__
        client.connection_pool.release(connection)
    connections.close()

    # redis-py leaves a hiredis that is too old for it aside without a word.
    assert "Hiredis" in parser or DRIVER != "mysqldb"
