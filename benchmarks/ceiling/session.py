"""One connection to MySQL by either driver, without SQLAlchemy: statements in, rows out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

Statement = tuple[str, Sequence[Any]]


class Session:
    """``send`` sends its statements in one packet, and so in one round trip, however many they are.

    ``first_id`` is the id of the first row that the last packet inserted. Autocommit is on.
    """

    first_id = 0

    def __init__(self, *setup: str) -> None:
        login: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": int(os.environ["BENCH_MYSQL_PORT"]),
            "user": "root",
            "database": os.environ["BENCH_DATABASE"],
            "charset": "utf8mb4",
            "autocommit": True,
        }
        if os.environ.get("BENCH_DRIVER") == "mysqldb":
            import MySQLdb

            self._connection: Any = MySQLdb.connect(**login)  # takes several statements a packet by itself
        else:
            import pymysql
            from pymysql.constants import CLIENT

            self._connection = pymysql.connect(**login, client_flag=CLIENT.MULTI_STATEMENTS)
        self._cursor = self._connection.cursor()
        for one in setup:
            self.send((one, ()))

    def send(self, *statements: Statement) -> list[Sequence[Any]]:
        """The rows of each statement."""
        cursor = self._cursor
        if len(statements) == 1:
            sql, params = statements[0]
            cursor.execute(sql, params or None)
        else:
            cursor.execute(";".join([self._with_values(*one) for one in statements]))
        answers, self.first_id = [cursor.fetchall()], cursor.lastrowid or 0
        while cursor.nextset():
            answers.append(cursor.fetchall())
            self.first_id = self.first_id or cursor.lastrowid or 0
        return answers

    def _with_values(self, sql: str, params: Sequence[Any]) -> str:
        if not params:
            return sql
        literal = self._connection.literal
        values = [literal(value) for value in params]
        return sql % tuple(value.decode() if isinstance(value, bytes) else value for value in values)
