"""A resource outside the queue that fences: a MySQL schema of its own, reached directly, never by the queue's proxies.

Per task (``ref``) it remembers the highest fence it has seen and takes one write, only from the run with that fence. A
run first says ``begin`` (as a lock service's client would), then ``apply``; a run that was overtaken meanwhile is
refused and counted. Every write that was taken is a row of its own, so that a second one would show.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pymysql

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS guards (ref VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,"
    " seen BIGINT NOT NULL, applied BIGINT NULL, refused INT NOT NULL DEFAULT 0) ENGINE=InnoDB",
    "CREATE TABLE IF NOT EXISTS applied (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, ref VARCHAR(64) CHARACTER SET"
    " ascii COLLATE ascii_bin NOT NULL, fence BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
)
_BEGIN = "INSERT INTO guards (ref, seen) VALUES (%s, %s) ON DUPLICATE KEY UPDATE seen = GREATEST(seen, VALUES(seen))"


class Effects:
    """The client of one process; every thread has a connection of its own. ``url``: mysql://user@host:port/database."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._login: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": parts.password or "",
            "database": parts.path.lstrip("/"),
            "connect_timeout": 5,
            "read_timeout": 10,
            "write_timeout": 10,
            "init_command": "SET SESSION innodb_lock_wait_timeout = 5",
        }
        self._own = threading.local()

    def create(self) -> None:
        """The tables, in a database that exists."""
        for statement in SCHEMA:
            self._run(lambda cursor, statement=statement: cursor.execute(statement))

    def begin(self, ref: str, fence: int) -> None:
        """Here comes the run with this fence: every lower one is over. Raises the driver's errors."""
        self._run(lambda cursor: cursor.execute(_BEGIN, (ref, fence)))

    def apply(self, ref: str, fence: int, token: int) -> str:
        """``applied``, ``already`` (by an earlier run) or ``refused``; one transaction.

        An error leaves open whether the write was taken; the next run is told ``already`` if it was.
        """

        def work(cursor: Any) -> str:
            cursor.execute("SELECT seen, applied FROM guards WHERE ref = %s FOR UPDATE", (ref,))
            row = cursor.fetchone() or (fence, None)
            if fence < row[0]:
                cursor.execute("UPDATE guards SET refused = refused + 1 WHERE ref = %s", (ref,))
                return "refused"
            if row[1] is not None and row[1] != fence:
                return "already"
            # With its own fence once more, which no queue may hand out twice: taken, and the checker counts two.
            cursor.execute("INSERT INTO applied (ref, fence, token) VALUES (%s, %s, %s)", (ref, fence, token))
            cursor.execute("UPDATE guards SET applied = %s WHERE ref = %s", (fence, ref))
            return "applied"

        return str(self._run(work))

    def taken(self) -> Iterator[dict[str, Any]]:
        """Every write that was taken, in order, as ``applied`` events."""
        connection = self._connect()
        try:
            with connection.cursor(pymysql.cursors.SSCursor) as cursor:
                cursor.execute("SELECT ref, fence, token FROM applied ORDER BY n")
                for ref, fence, token in cursor:
                    yield {"e": "applied", "ref": ref, "fence": fence, "token": token}
        finally:
            connection.close()

    def refused(self) -> int:
        """How many late writes were refused."""
        return int(
            self._run(lambda cursor: cursor.execute("SELECT SUM(refused) FROM guards") and cursor.fetchone()[0]) or 0
        )

    def _connect(self) -> Any:
        connection = pymysql.connect(**self._login)
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def _run(self, work: Any) -> Any:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect()
        try:
            with connection.cursor() as cursor:
                answer = work(cursor)
            connection.commit()
        except BaseException:
            # Whatever it was (a kill of the server, a time limit in the middle of a read): start anew next time.
            self._own.connection = None
            connection.close()
            raise
        return answer
