"""A handler's own transaction on MariaDB or MySQL: deadlocks, locks, and what a handler leaves in the session."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pymysql
import pytest
import sqlalchemy as sa

from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.handling import TaskTransaction
from tandemq.store.migrate import migrate
from tests.contract.store_contract import lease
from tests.servers import MySQLServer


@pytest.fixture
def store(mysql_url: str) -> Iterator[SqlStore]:
    settings = Settings(database_url=mysql_url, redis_url="redis://nowhere")
    migrate(settings)
    made = connect(settings)
    yield made
    made.close()


@pytest.fixture
def other(mysql_server: MySQLServer, mysql_url: str, store: SqlStore) -> Iterator[pymysql.Connection]:
    """Another program's connection; the table ``effects`` holds rows 1 and 2."""
    connection = mysql_server.connect(mysql_url.rpartition("/")[2], autocommit=False)
    run(connection, "CREATE TABLE effects (n INT PRIMARY KEY, v INT NOT NULL DEFAULT 0) ENGINE=InnoDB")
    run(connection, "INSERT INTO effects (n) VALUES (1), (2)")
    connection.commit()
    yield connection
    connection.close()


def run(connection: pymysql.Connection, text: str) -> tuple[tuple[object, ...], ...]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall()


def rows(connection: pymysql.Connection) -> list[tuple[object, ...]]:
    connection.rollback()
    return list(run(connection, "SELECT n, v FROM effects ORDER BY n"))


def set_v(tx: TaskTransaction, n: int, v: int = 1) -> None:
    tx.connection.execute(sa.text("UPDATE effects SET v = :v WHERE n = :n"), {"n": n, "v": v})


def deadlock(tx: TaskTransaction, other: pymysql.Connection) -> None:
    """``tx`` has row 1 and wants row 2, the other the other way round, and has more to lose."""
    run(other, "INSERT INTO effects (n) VALUES " + ",".join(f"({n})" for n in range(100, 200)))
    run(other, "UPDATE effects SET v = 9 WHERE n = 2")
    wants = threading.Thread(target=run, args=(other, "UPDATE effects SET v = 9 WHERE n = 1"))
    wants.start()
    try:
        set_v(tx, 2)
    finally:
        other_ends = threading.Thread(target=wants.join)
        other_ends.start()
        other_ends.join()
        other.rollback()


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_deadlock_that_the_handler_swallows_spoils_everything(
    store: SqlStore, other: pymysql.Connection, savepoint: bool
) -> None:
    """InnoDB has rolled back all of it; what is written afterwards alone would be half the promise."""
    one = lease(store)
    tx = store.transaction(30.0)
    set_v(tx, 1)
    with pytest.raises(sa.exc.DBAPIError):
        if savepoint:
            with tx.connection.begin_nested():
                deadlock(tx, other)
        else:
            deadlock(tx, other)
    if not savepoint:
        set_v(tx, 2)
    with pytest.raises(RuntimeError, match="rolled back what the handler had written"):
        tx.succeed(one, None)
    tx.close()
    assert [v for _, v in rows(other)] == [0, 0]
    assert store.ending(one.id)[0] is Status.RUNNING


def test_after_a_rollback_of_its_own_the_handler_may_write_it_again(store: SqlStore, other: pymysql.Connection) -> None:
    one = lease(store)
    tx = store.transaction(30.0)
    set_v(tx, 1)
    with pytest.raises(sa.exc.DBAPIError):
        deadlock(tx, other)
    tx.connection.rollback()
    set_v(tx, 1)
    set_v(tx, 2)
    tx.succeed(one, None)
    tx.close()
    assert [v for _, v in rows(other)] == [1, 1]


def test_nothing_of_a_session_is_left_to_the_next_handler(store: SqlStore, other: pymysql.Connection) -> None:
    tx = store.transaction(30.0)
    first = tx.connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()
    tx.connection.exec_driver_sql(
        "SET SESSION autocommit = 1, SESSION foreign_key_checks = 0, SESSION sql_mode = '',"
        " SESSION time_zone = '+09:00'"
    )
    tx.connection.exec_driver_sql("SELECT GET_LOCK('tandemq_test', 0)")
    tx.close()
    tx = store.transaction(30.0)
    state = tx.connection.exec_driver_sql(
        "SELECT CONNECTION_ID(), @@autocommit, @@foreign_key_checks, @@sql_mode <> '', @@time_zone,"
        " IS_FREE_LOCK('tandemq_test')"
    ).one()
    assert tuple(state) == (first, 0, 1, 1, "+00:00", 1)
    set_v(tx, 1)
    tx.close()
    assert [v for _, v in rows(other)] == [0, 0]


def test_a_row_that_somebody_holds_for_a_while_costs_nothing(store: SqlStore, other: pymysql.Connection) -> None:
    one = lease(store)
    tx = store.transaction(30.0)
    tx.connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1")
    set_v(tx, 1)
    run(other, f"SELECT id FROM tandemq_tasks WHERE id = {one.id} FOR UPDATE")
    release = threading.Timer(1.5, other.rollback)
    release.start()
    tx.succeed(one, None)
    tx.close()
    release.join()
    assert [v for _, v in rows(other)] == [1, 0]
