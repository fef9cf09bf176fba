"""How connections are made: URL, timeouts, session settings, pool."""

from __future__ import annotations

import importlib
import sqlite3
from datetime import timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import ConfigurationError
from tandemq.core.settings import Settings, mask
from tandemq.store.dialects import instant, stamp

#: Finite, so that a dead network is an error and not a hang.
#: A third of the default lease: one connection that hangs must not cost a worker the renewal of all its leases.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S, WRITE_TIMEOUT_S = 5, 10, 10
#: A connection that idled longer is replaced when taken out; the server drops it after ``wait_timeout`` = 60 s.
HANDLERS_READ_TIMEOUT_S = 3600
POOL_RECYCLE_S = 30
SQLITE_BUSY_S = 15
SQLITE_FILE = "tandemq.db"

#: Flags of the client protocol. An UPDATE answers how many rows it matched, not how many it changed; and a packet may
#: hold several statements. Both drivers escape every bound value, and ids are integers.
_FOUND_ROWS, _MULTI_STATEMENTS = 1 << 1, 1 << 16
_SESSION = (
    # Said here too: an init_connect of the server may have turned autocommit off without the driver's knowledge, and an
    # enqueue would return the id of a row that is never committed.
    "SET SESSION autocommit = 1, SESSION time_zone = '+00:00', SESSION wait_timeout = 60,"
    # The second is for metadata locks (somebody alters the table), whose default is a day or a year.
    " SESSION innodb_lock_wait_timeout = 3, SESSION lock_wait_timeout = 5,"
    " SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'"
)


def url_of(settings: Settings) -> URL:
    """The SQLAlchemy URL; the file in the data directory for the embedded default."""
    if settings.is_embedded:
        return URL.create("sqlite", database=str(settings.data_path / SQLITE_FILE))
    try:
        url = make_url(settings.database_url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(f"TANDEMQ_DATABASE_URL {mask(settings.database_url)!r} cannot be read") from error
    if url.get_backend_name() == "sqlite":
        if not url.database or ":memory:" in url.database:
            raise ConfigurationError("TANDEMQ_DATABASE_URL must name a file for SQLite: threads and processes share it")
        return url
    if not url.database:
        raise ConfigurationError(f"TANDEMQ_DATABASE_URL {mask(settings.database_url)!r} names no database")
    # One dialect for both servers: SQLAlchemy's mariadb:// refuses to speak to MySQL.
    named = url.drivername.partition("+")[2]
    driver = named or (default_driver() if _means_the_same(url) else "pymysql")
    url = url.set(drivername=f"mysql+{driver}").update_query_dict({"charset": "utf8mb4"})
    if driver == "mysqldb" and "ssl_ca" in url.query and "ssl_mode" not in url.query:
        # MariaDB's client library would take a certificate for a wish: no TLS at all is fine with it, and any name.
        url = url.update_query_dict({"ssl_mode": "VERIFY_IDENTITY"})
    return url


def _means_the_same(url: URL) -> bool:
    """Whether both drivers read this URL alike: parameters are each driver's own, and "localhost" is a socket for C."""
    return set(url.query) <= {"charset", "unix_socket"} and url.host != "localhost"


@cache
def default_driver() -> str:
    """The driver of a URL that names none: mysqlclient where it is installed (tandemq[fast]), else PyMySQL.

    It parses rows in C, which takes a quarter off what a worker spends on a task.
    """
    try:
        importlib.import_module("MySQLdb")
    except ImportError:  # not installed, or its C library is missing
        return "pymysql"
    return "mysqldb"


def build(url: URL, clock: Clock, *, read_timeout_s: int = READ_TIMEOUT_S, for_handlers: bool = False) -> sa.Engine:
    """An engine whose pool hands out the most recently used connection first and resets nothing by itself.

    ``for_handlers``: its connections are lent to handlers that take ``tx``, one to each that runs. Their statements may
    take as long as the handler may, autocommit is off, and what they leave is rolled back.
    """
    common: dict[str, Any] = {
        "poolclass": QueuePool,
        # Filled as needed. No overflow: that is closed on return, and a new connection costs PyMySQL 20 ms of CPU (it
        # reads the CA bundle). 24 threads that enqueue one by one took four times as long with 5 + 27.
        "pool_size": 32,
        "max_overflow": 0,
        "pool_timeout": 30,
        "pool_use_lifo": True,
        "pool_recycle": POOL_RECYCLE_S,
        # Every transaction of database.py ends in COMMIT, ROLLBACK or a thrown-away connection: no third round trip.
        "pool_reset_on_return": None,
        "hide_parameters": True,
    }
    if for_handlers:
        read_timeout_s = HANDLERS_READ_TIMEOUT_S
        common |= {"pool_size": 0, "pool_reset_on_return": "rollback", "pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        return _build_sqlite(url, clock, common, begins=for_handlers)
    timeouts: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": read_timeout_s,
        "write_timeout": WRITE_TIMEOUT_S,
        # Transactions begin with an explicit BEGIN (store.transaction): a single statement needs no COMMIT.
        "autocommit": not for_handlers,
        "client_flag": _FOUND_ROWS | _MULTI_STATEMENTS,
    }
    try:
        if url.get_driver_name() == "mysqldb":
            timeouts |= _as_pymysql_encrypts(url)
        engine = sa.create_engine(url, connect_args=timeouts, **common)
    except ImportError as missing:
        raise ConfigurationError(
            f"the driver of TANDEMQ_DATABASE_URL ({url.drivername}) is not installed: pip install 'tandemq[fast]'"
            f" ({missing})"
        ) from None
    except ValueError as bad:  # say, ?connect_timeout=soon
        raise ConfigurationError(f"an option of TANDEMQ_DATABASE_URL cannot be read: {bad}") from None
    event.listen(engine, "do_connect", _connect)
    # First of all listeners: SQLAlchemy's own asks for the sql_mode once, and must find the one that stays.
    event.listen(engine, "connect", _prepare_for_handlers if for_handlers else _prepare_mysql, insert=True)
    return engine


def _as_pymysql_encrypts(url: URL) -> dict[str, Any]:
    """TLS where the server offers it, as PyMySQL does by itself: MariaDB's client library wants to be told.

    Its REQUIRED means no more than that (tried); of MySQL's own library PREFERRED is the default already.
    """
    from MySQLdb import _mysql

    is_mariadb = str(_mysql.get_client_info()).startswith("3.")
    return {"ssl_mode": "REQUIRED"} if is_mariadb and not any(name.startswith("ssl") for name in url.query) else {}


def _prepare_mysql(dbapi_connection: Any, record: Any) -> None:
    cursor = dbapi_connection.cursor()
    try:
        # Not by SQLAlchemy's isolation_level, which turns autocommit off again.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(_SESSION)
        cursor.execute("SELECT VERSION(), @@max_allowed_packet")
        version, max_packet = cursor.fetchone()
        record.info["max_packet"] = int(max_packet)
        record.info["is_mariadb"] = "mariadb" in str(version).lower()
        if record.info["is_mariadb"]:
            # A client that is stopped inside a transaction loses its row locks after this time.
            # MySQL knows no such setting: there wait_timeout does it.
            cursor.execute("SET SESSION idle_transaction_timeout = 10")
    finally:
        cursor.close()


#: Set before every handler, for the last one may have changed it. The waits for locks are the server's own: how long
#: a handler's statement waits is not ours to say.
HANDLERS_SESSION = {
    "autocommit": "0",
    "time_zone": "'+00:00'",
    "sql_mode": "'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "innodb_lock_wait_timeout": "DEFAULT",
    "lock_wait_timeout": "DEFAULT",
}


def _connect(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> Any:
    try:
        return dialect.connect(*arguments, **options)
    except TypeError as unknown:  # which options there are only the driver knows
        raise ConfigurationError(
            f"an option of TANDEMQ_DATABASE_URL is none of the driver's ({dialect.driver}): {unknown}"
        ) from None


def _prepare_for_handlers(dbapi_connection: Any, record: Any) -> None:
    _prepare_mysql(dbapi_connection, record)
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute("SET SESSION autocommit = 0")
        cursor.execute("SELECT @@innodb_rollback_on_timeout")
        record.info["rolls_back_on_timeout"] = bool(int(cursor.fetchone()[0]))
    finally:
        cursor.close()


def _build_sqlite(url: URL, clock: Clock, common: dict[str, Any], *, begins: bool = False) -> sa.Engine:
    arguments = {"timeout": SQLITE_BUSY_S, "check_same_thread": False, "isolation_level": None}
    engine = sa.create_engine(url, connect_args=arguments, **common)

    def prepare(dbapi_connection: Any, record: Any) -> None:
        cell = record.info["now"] = [stamp(clock.now())]
        dbapi_connection.create_function("tandemq_now", 0, lambda: cell[0])
        dbapi_connection.create_function(
            "tandemq_shift", 1, lambda us: stamp(instant(cell[0]) + timedelta(microseconds=us))
        )
        dbapi_connection.execute("PRAGMA synchronous = FULL")
        _use_wal(dbapi_connection)

    event.listen(engine, "connect", prepare)
    if begins:
        # At once: a transaction that reads first cannot write any more once somebody else has written.
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for the lock that the change of mode needs: processes that start together meet here."""
    wall = SystemClock()
    give_up_at = wall.monotonic() + SQLITE_BUSY_S
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0].lower() != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if wall.monotonic() > give_up_at:
                raise
            wall.sleep(0.01)


def take_time(info: dict[str, Any], clock: Clock) -> None:
    """SQLite: one ``now`` per transaction, read once the write lock is held."""
    info["now"][0] = stamp(clock.now())
