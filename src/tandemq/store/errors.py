"""One classifier for every error a driver raises: what is it, and may the transaction be sent again?"""

from __future__ import annotations

from enum import Enum
from typing import Final

from sqlalchemy import exc as sa

from tandemq.core.errors import StoreBusy, StoreUnavailable
from tandemq.core.settings import mask


class Kind(Enum):
    """What to do about a database error."""

    CONFLICT = "the transaction lost against another one: roll back, send it again"
    LOCK_WAIT = "a row stayed locked: roll back (the server does not), send it again"
    GONE = "this connection, or this server for now, is of no use: throw the connection away"
    DUPLICATE = "a unique key exists already"
    NOT_MIGRATED = "a table or column is missing"
    DENIED = "wrong password, no such database, or a missing grant"
    TOO_LARGE = "the statement is over max_allowed_packet; the server drops the connection"
    REFUSED = "anything else: the database will say the same again"


LOCK_WAIT_CODES: Final = frozenset({1205})
#: 1020: snapshot isolation of MariaDB 11.6+; 1412: the table was altered meanwhile; 1206: lock table full.
CONFLICT_CODES: Final = frozenset({1213, 1020, 1412, 1206, 1614})
#: 1047 Galera without quorum; 1290, 1792, 1836 read-only; 1021, 1030, 1114 disk full; 1040, 1203 too many connections;
#: 1053 shutdown; 1317, 1927, 1969, 3024 killed; 4031 idle; 115x, 116x the network; 2xxx the client; 9001 ProxySQL.
GONE_CODES: Final = frozenset(
    {1021, 1030, 1040, 1041, 1047, 1053, 1077, 1079, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226}
    | {1290, 1317, 1792, 1836, 1927, 1969, 3024, 3100, 3101, 3168, 3169, 4031, 9001}
    | {2000, 2002, 2003, 2005, 2006, 2013, 2014, 2026, 2027, 2045, 2055}
)
DENIED_CODES: Final = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1251, 1370, 1698, 1820, 2059, 2061})
NOT_MIGRATED_CODES: Final = frozenset({1146, 1054, 1356})
#: Answers to COMMIT that do not say whether it happened; other answers of the server mean that it did not.
UNKNOWN_AT_COMMIT: Final = frozenset({1053, 1180, 1317, 1927, 1969, 3024, 3100, 3101, 9001})

_SQLITE: Final = (
    (("database is locked", "database table is locked", "database schema is locked"), Kind.CONFLICT),
    (("no such table", "no such column", "has no column named"), Kind.NOT_MIGRATED),
    (("unique constraint failed",), Kind.DUPLICATE),
    (("string or blob too big", "too large"), Kind.TOO_LARGE),
    (
        (
            "unable to open database file",
            "disk i/o error",
            "disk is full",
            "readonly database",
            "not a database",
            "malformed",
        ),
        Kind.GONE,
    ),
)


def original(error: BaseException) -> BaseException:
    """The driver's error inside SQLAlchemy's."""
    return error.orig if isinstance(error, sa.DBAPIError) and error.orig is not None else error


def code(error: BaseException) -> int:
    """The server's or client library's error number; 0 for none, and for ``InterfaceError(0, '')``: a closed socket."""
    args = original(error).args
    return args[0] if args and isinstance(args[0], int) else 0


def classify(error: BaseException) -> Kind:
    """What kind of error this is, for anything that comes out of SQLAlchemy, a driver or the socket below."""
    cause = original(error)
    if isinstance(error, sa.TimeoutError) or isinstance(cause, OSError | EOFError):
        return Kind.GONE
    if type(cause).__module__.startswith("sqlite3"):
        return _classify_sqlite(str(cause).lower())
    number = code(error)
    for codes, kind in _BY_CODE:
        if number in codes:
            return kind
    text = str(cause).lower()
    closed = number == 0 and type(cause).__name__ in {"InterfaceError", "InternalError", "Error", "OperationalError"}
    return Kind.GONE if closed or "packet sequence" in text or "already closed" in text else Kind.REFUSED


_BY_CODE: Final = (
    (LOCK_WAIT_CODES, Kind.LOCK_WAIT),
    (CONFLICT_CODES, Kind.CONFLICT),
    (GONE_CODES, Kind.GONE),
    (frozenset({1062}), Kind.DUPLICATE),
    (NOT_MIGRATED_CODES, Kind.NOT_MIGRATED),
    (DENIED_CODES, Kind.DENIED),
    (frozenset({1153, 1162, 1301}), Kind.TOO_LARGE),
)


def _classify_sqlite(text: str) -> Kind:
    for words, kind in _SQLITE:
        if any(word in text for word in words):
            return kind
    return Kind.REFUSED


def commit_is_unknown(error: BaseException) -> bool:
    """Whether an error at COMMIT leaves open if it happened. A closed socket (code 0) was not written to at all."""
    cause = original(error)
    if type(cause).__module__.startswith("sqlite3"):
        return False
    number = code(error)
    if isinstance(cause, OSError | EOFError) or number == 0:
        return type(cause).__name__ != "InterfaceError"
    return 2000 <= number < 3000 or number in UNKNOWN_AT_COMMIT


def unavailable(url: str, error: BaseException) -> StoreUnavailable:
    """StoreUnavailable (or StoreBusy) with the server's words and without the password."""
    cause = original(error)
    text = " ".join(str(a) for a in cause.args) or type(cause).__name__
    denied = classify(error) is Kind.DENIED
    prefix = "the database refused the connection" if denied else "the database is unavailable"
    # SQLite locks all of the database: there nobody can go on with other rows.
    is_busy = code(error) in LOCK_WAIT_CODES | CONFLICT_CODES
    made = (StoreBusy if is_busy else StoreUnavailable)(f"{prefix} ({mask(url)}): {text}")
    made.denied = denied
    return made
