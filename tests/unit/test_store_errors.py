"""The classifier: what a driver's error means, and whether a COMMIT that failed may have happened."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa
from pymysql import err

from tandemq.store.chunks import by_size
from tandemq.store.errors import Kind, classify, code, commit_is_unknown, unavailable

MYSQL = [
    (err.OperationalError(1205, "Lock wait timeout exceeded"), Kind.LOCK_WAIT),
    (err.OperationalError(1213, "Deadlock found"), Kind.CONFLICT),
    (err.OperationalError(1020, "Record has changed since last read"), Kind.CONFLICT),
    (err.IntegrityError(1062, "Duplicate entry"), Kind.DUPLICATE),
    (err.ProgrammingError(1146, "Table doesn't exist"), Kind.NOT_MIGRATED),
    (err.OperationalError(1054, "Unknown column"), Kind.NOT_MIGRATED),
    (err.OperationalError(1045, "Access denied"), Kind.DENIED),
    (err.OperationalError(1049, "Unknown database"), Kind.DENIED),
    (err.OperationalError(1142, "INSERT command denied"), Kind.DENIED),
    (err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), Kind.TOO_LARGE),
    (err.DataError(1406, "Data too long"), Kind.REFUSED),
    (err.ProgrammingError(1064, "You have an error in your SQL syntax"), Kind.REFUSED),
    (err.InterfaceError(0, ""), Kind.GONE),
    (err.InternalError("Packet sequence number wrong - got 1 expected 2"), Kind.GONE),
    *((err.OperationalError(n, "away"), Kind.GONE) for n in (2002, 2003, 2006, 2013, 2014, 2055)),
    *((err.OperationalError(n, "not now"), Kind.GONE) for n in (1040, 1047, 1053, 1290, 1792, 1836, 1927, 1021, 1114)),
]
SQLITE = [
    ("database is locked", Kind.CONFLICT),
    ("no such table: tandemq_tasks", Kind.NOT_MIGRATED),
    ("table tandemq_tasks has no column named x", Kind.NOT_MIGRATED),
    ("UNIQUE constraint failed: tandemq_tasks.idempotency_key", Kind.DUPLICATE),
    ("string or blob too big", Kind.TOO_LARGE),
    ("database or disk is full", Kind.GONE),
    ("attempt to write a readonly database", Kind.GONE),
    ("unable to open database file", Kind.GONE),
    ('near "SELEKT": syntax error', Kind.REFUSED),
]


@pytest.mark.parametrize(("error", "kind"), MYSQL, ids=lambda v: str(v)[:40])
def test_mysql_errors_mean_the_same_bare_and_wrapped(error: Exception, kind: Kind) -> None:
    assert classify(error) is kind
    assert classify(sa.exc.DBAPIError("SELECT 1", {}, error)) is kind


@pytest.mark.parametrize(("text", "kind"), SQLITE)
def test_sqlite_errors_are_told_by_their_text(text: str, kind: Kind) -> None:
    assert classify(sqlite3.OperationalError(text)) is kind


def test_sockets_and_pools_count_as_gone() -> None:
    for error in (ConnectionResetError(104, "reset"), TimeoutError("timed out"), sa.exc.TimeoutError("pool")):
        assert classify(error) is Kind.GONE
    assert classify(ValueError("a bug")) is Kind.REFUSED


@pytest.mark.parametrize("number", [2006, 2013, 2055, 1053, 1317, 1927, 1180])
def test_a_commit_without_an_answer_is_unknown(number: int) -> None:
    assert commit_is_unknown(err.OperationalError(number, "lost"))
    assert commit_is_unknown(sa.exc.DBAPIError("COMMIT", {}, err.OperationalError(number, "lost")))


@pytest.mark.parametrize("number", [1213, 1290, 1205, 1047])
def test_a_commit_that_the_server_answered_with_no_did_not_happen(number: int) -> None:
    assert not commit_is_unknown(err.OperationalError(number, "no"))


def test_a_commit_on_a_closed_socket_was_never_sent() -> None:
    assert not commit_is_unknown(err.InterfaceError(0, ""))
    assert commit_is_unknown(ConnectionResetError(104, "reset"))
    assert not commit_is_unknown(sqlite3.OperationalError("database is locked"))


def test_the_text_for_people_has_the_servers_words_and_no_password() -> None:
    error = unavailable("mysql+pymysql://app:***@db/shop", err.OperationalError(1045, "Access denied for user 'app'"))

    assert str(error) == (
        "the database refused the connection (mysql+pymysql://***@db/shop): 1045 Access denied for user 'app'"
    )
    assert code(err.OperationalError(2013, "Lost")) == 2013


def test_chunks_keep_the_order_and_let_a_big_item_go_alone() -> None:
    sizes = [4, 4, 3, 20, 1, 9, 1]

    assert by_size(sizes, int, 10) == [[4, 4], [3], [20], [1, 9], [1]]
    assert by_size([], int, 10) == []
