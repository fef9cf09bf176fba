"""Tables as they are after months: very many rows that have ended, put there by SQL alone."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import pymysql

from tandemq.core.settings import Settings
from tandemq.store import engines

#: Rows of one INSERT; the digits below count as far.
CHUNK = 100_000
DIGITS = "(SELECT 0 d" + "".join(f" UNION ALL SELECT {d}" for d in range(1, 10)) + ")"
NUMBERS = f"""(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS k
  FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} d, {DIGITS} e) numbers"""
COLUMNS = (
    "id, ended, queue, task_type, payload, priority, status, attempts, fence, lease_token, worker_id, run_at,"
    " error_type, last_error, dead_reason, created_at, started_at, completed_at"
)
#: What a row of number n is, in SQL that MySQL and SQLite share; ``{at}`` is when it ended.
ROW = """n, {ended},
  CASE WHEN n <= 100 THEN 'rare' WHEN n % 10 < 6 THEN 'default' WHEN n % 10 < 9 THEN 'mail' ELSE 'high' END,
  CASE WHEN n BETWEEN 101 AND 150 THEN 'rare.type' WHEN n % 3 = 0 THEN 'type.a' ELSE 'type.b' END,
  '{{"order_id": 4711, "address": "221b Baker Street, London, NW1", "items": [1, 2, 3], "note": "as before"}}',
  n % 4 * 10, '{status}', 1, 1, n, CASE WHEN n % 2 = 0 THEN 'worker-0' ELSE 'worker-1' END, {at},
  {error}, {at}, {at}, {at}"""
DEAD = "'ValueError', CASE WHEN n % 7 = 0 THEN 'no such order' ELSE 'no stock' END, 'retries_exhausted'"


@dataclass(frozen=True)
class Volume:
    """How many rows have ended how; one of ``done // dead`` is dead, spread over the whole of the table."""

    done: int
    dead: int
    ready: int
    #: Over how long they ended, and how long ago the newest did.
    days: int = 30
    newest_days: int = 0

    @property
    def ended(self) -> int:
        return self.done + self.dead


def fill(settings: Settings, volume: Volume) -> None:
    """Insert them, oldest first, with the ids from 1 on; ready ones come last."""
    if settings.database_url.startswith("sqlite"):
        _fill_sqlite(settings, volume)
    else:
        _fill_mysql(settings, volume)


def _rows(volume: Volume, at: str) -> list[tuple[str, str]]:
    """(what, condition on n) of done and of dead rows."""
    every = max(2, volume.ended // volume.dead) if volume.dead else 0
    is_dead = f"n % {every} = 0" if every else "n < 0"
    done = ROW.format(ended=1, status="succeeded", error="'', NULL, ''", at=at)
    return [(done, f"NOT ({is_dead})"), (ROW.format(ended=2, status="dead", error=DEAD, at=at), is_dead)]


def _fill_mysql(settings: Settings, volume: Volume) -> None:
    url, table = engines.url_of(settings), f"{settings.table_prefix}tasks"
    login = {"host": url.host, "port": url.port, "user": url.username, "password": url.password or ""}
    ago = f"({volume.ended} - n) * {volume.days * 86400} / {volume.ended} + {volume.newest_days * 86400}"
    at = f"UTC_TIMESTAMP(6) - INTERVAL {ago} SECOND"
    with pymysql.connect(**login, database=url.database, autocommit=True) as connection:
        cursor = connection.cursor()
        for start in range(0, volume.ended, CHUNK):
            numbers = f"(SELECT k + {start + 1} AS n FROM {NUMBERS} WHERE k < {min(CHUNK, volume.ended - start)}) r"
            for row, condition in _rows(volume, at):
                cursor.execute(f"INSERT INTO {table} ({COLUMNS}) SELECT {row} FROM {numbers} WHERE {condition}")
        ready = f"SELECT 'type.a', '{{}}' FROM {NUMBERS} WHERE k < {volume.ready}"
        cursor.execute(f"INSERT INTO {table} (task_type, payload) {ready}")
        cursor.execute(f"ANALYZE TABLE {table}")


def _fill_sqlite(settings: Settings, volume: Volume) -> None:
    table = f"{settings.table_prefix}tasks"
    ago = f"({volume.ended} - n) * {volume.days * 86400} / {volume.ended} + {volume.newest_days * 86400}"
    at = f"(strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || ({ago}) || ' seconds') || '000')"
    numbers = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {})"
    connection = sqlite3.connect(engines.url_of(settings).database or "")
    for row, condition in _rows(volume, at):
        connection.execute(
            f"INSERT INTO {table} ({COLUMNS}) {numbers.format(volume.ended)} SELECT {row} FROM r WHERE {condition}"
        )
    connection.execute(
        f"INSERT INTO {table} (task_type, payload) {numbers.format(volume.ready)} SELECT 'type.a', '{{}}' FROM r"
    )
    connection.commit()
    connection.close()
