"""Millions of rows by INSERT ... SELECT, as a queue that has run for a month would have them."""
# ruff: noqa: S608 - SQL from constants and integers

from __future__ import annotations

import shutil
from pathlib import Path

from tandemq import TandemQ
from tandemq.core.task import Level
from tests.servers import MySQLServer

CHUNK = 50_000
PUSH = 1000
#: Generous: measured 390 with its indexes.
BYTES_PER_ROW = 800
NUMBERS = "bench_numbers"
PAYLOAD = (
    "CONCAT('{{\"order_id\":', {i}, ',\"customer\":\"c', MOD({i} * 7919, 100000), '\",\"items\":[', MOD({i}, 9), ',',"
    " MOD({i}, 17), '],\"note\":\"', REPEAT('x', MOD({i} * 31, 80)), '\"}}')"
)
PRIORITY = "CASE WHEN MOD({i} * 3, 20) < 15 THEN 0 WHEN MOD({i} * 3, 20) < 19 THEN 10 ELSE 20 END"
#: 97 % succeeded, 2 % dead, 1 % cancelled; three queues, three priorities, ten types and a rare one; 5 % have a key.
FINISHED = (
    "INSERT INTO tandemq_tasks (ended, status, queue, task_type, payload, priority, attempts, fence, lease_token,"
    " worker_id, idempotency_key, run_at, created_at, started_at, completed_at, updated_at, result, last_error,"
    " error_type, dead_reason) SELECT"
    " CASE WHEN MOD({i}, 100) < 97 THEN 1 WHEN MOD({i}, 100) < 99 THEN 2 ELSE 3 END,"
    " CASE WHEN MOD({i}, 100) < 97 THEN 'succeeded' WHEN MOD({i}, 100) < 99 THEN 'dead' ELSE 'cancelled' END,"
    " ELT(1 + MOD({i} * 13, 10), 'default', 'default', 'default', 'default', 'default', 'default', 'default', 'mail',"
    " 'mail', 'reports'),"
    " CASE WHEN MOD({i}, 10000) = 0 THEN 'rare' ELSE CONCAT('type', MOD({i} * 17, 10)) END, {payload},"
    " {priority},"
    " 1 + (MOD({i}, 50) = 0), 1 + (MOD({i}, 50) = 0), CRC32({i}) + 1, CONCAT('fill-', MOD({i}, 8)),"
    " CASE WHEN MOD({i}, 20) = 0 THEN CONCAT('fill-', MD5({i})) END,"
    " {made}, {made}, {made} + INTERVAL MOD({i} * 101, 300) * 1000 MICROSECOND,"
    " {made} + INTERVAL MOD({i} * 101, 300) * 1000 + MOD({i} * 37, 5000) * 1000 MICROSECOND,"
    " {made} + INTERVAL 6 SECOND,"
    " CASE WHEN MOD({i}, 3) = 0 THEN '{{\"ok\":true}}' END,"
    " CASE WHEN MOD({i}, 100) IN (97, 98) THEN 'ValueError: the order cannot be found' END,"
    " CASE WHEN MOD({i}, 100) IN (97, 98) THEN 'ValueError' ELSE '' END,"
    " CASE WHEN MOD({i}, 100) IN (97, 98) THEN 'retries_exhausted' ELSE '' END"
    f" FROM {NUMBERS} WHERE n < {{rows}}"
)
#: The oldest was made thirty days ago, and completed_at rises with the id, as it does in life.
MADE = "UTC_TIMESTAMP(6) - INTERVAL ROUND(2592000 * (1 - {i} / {total})) SECOND"
#: Nine of ten are due since within the last hour, one is for the next hour.
PENDING = (
    "INSERT INTO tandemq_tasks (queue, task_type, payload, priority, run_at, created_at, updated_at) SELECT"
    " 'default', 'noop', CONCAT('{{\"order_id\":', {i}, '}}'), {priority},"
    " UTC_TIMESTAMP(6) + INTERVAL IF(MOD({i}, 10) = 0, 1, -1) * (1 + MOD({i} * 97, 3599)) SECOND,"
    f" UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6) FROM {NUMBERS} WHERE n < {{rows}}"
)


class DiskTooFull(RuntimeError):
    """The rows would not fit."""


def check_disk(folder: Path, rows: int) -> None:
    """Refuse to begin what would fill the disk: the rows, the redo log, and 2 GB for others."""
    needed, free = rows * BYTES_PER_ROW + 4 * 1024**3, shutil.disk_usage(folder).free
    if free < needed:
        raise DiskTooFull(f"{rows:,} rows need about {needed / 1e9:.0f} GB in {folder}; {free / 1e9:.0f} GB are free")


class Filler:
    """Rows straight into the tables of one database."""

    def __init__(self, mysql: MySQLServer, database: str) -> None:
        self._mysql, self._database = mysql, database
        self._sql(f"CREATE TABLE IF NOT EXISTS {NUMBERS} (n INT NOT NULL PRIMARY KEY)")
        digits = "(SELECT 0 AS d" + "".join(f" UNION ALL SELECT {d}" for d in range(1, 10)) + ")"
        five = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d"
        joined = ", ".join(f"{digits} {name}" for name in "abcef")
        self._sql(f"INSERT IGNORE INTO {NUMBERS} SELECT n FROM (SELECT {five} AS n FROM {joined}) x WHERE n < {CHUNK}")

    def _sql(self, statement: str) -> list[tuple[int, ...]]:
        return self._mysql.sql(statement, database=self._database)

    def finished(self, first: int, last: int, *, total: int) -> None:
        """Rows number ``first`` up to ``last``, of ``total`` that there will be."""
        self._in_chunks(FINISHED, first, last, total)

    def pending(self, count: int) -> None:
        """Rows that wait."""
        self._in_chunks(PENDING, 0, count, count)

    def _in_chunks(self, statement: str, first: int, last: int, total: int) -> None:
        for start in range(first, last, CHUNK):
            i = f"({start} + n)"
            parts = {"payload": PAYLOAD.format(i=i), "priority": PRIORITY.format(i=i)}
            made = MADE.format(i=i, total=total)
            self._sql(statement.format(i=i, made=made, rows=min(CHUNK, last - start), **parts))

    def analyze(self) -> None:
        """As the server's own statistics would be after a while."""
        self._sql("ANALYZE TABLE tandemq_tasks")

    def last_id(self) -> int:
        """Of all tasks."""
        ((found,),) = self._sql("SELECT COALESCE(MAX(id), 0) FROM tandemq_tasks")
        return int(found)

    def push(self, app: TandemQ) -> None:
        """The ids of all pending rows into Redis, as enqueue would have put them there."""
        last = 0
        while rows := self._sql(
            "SELECT id, priority, CAST(UNIX_TIMESTAMP(run_at) * 1000 AS SIGNED), run_at <= UTC_TIMESTAMP(6)"
            f" FROM tandemq_tasks WHERE id > {last} AND status = 'pending' ORDER BY id LIMIT {20 * PUSH}"
        ):
            last = rows[-1][0]
            for priority in sorted({row[1] for row in rows}):
                level = Level("default", priority)
                due = [row[0] for row in rows if row[1] == priority and row[3]]
                later = {row[0]: row[2] for row in rows if row[1] == priority and not row[3]}
                if due:
                    app.broker.push(level, due)
                if later:
                    app.broker.delay(level, later)
