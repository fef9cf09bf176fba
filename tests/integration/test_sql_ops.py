"""The files for DBAs in ``sql/ops`` say what is so, on a real server, and lock nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor

from tandemq.core.lifecycle import Bury, DeadReason, Failure
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.migrate import sql_dir, statements
from tests.contract.store_contract import claim, fail, insert, settle, succeed
from tests.servers import ROOT, MySQLServer

FILES = sorted((sql_dir() / "ops").glob("*.sql"))
Rows = list[dict[str, Any]]


@pytest.fixture
def store(env: Settings) -> Iterator[SqlStore]:
    """A database with a task in every state."""
    made = connect(env)
    done, again, *dead, running = claim(made, insert(made, 7), worker_id="w-9").leases
    failures = [Failure("KeyError", f"order {n} is gone\nsecond line {n}") for n in range(3)]
    settle(made, (done, succeed('"' + "x" * 5000 + '"')), (again, fail(60)), closing=False)
    buried = [Bury(DeadReason.TIMEOUT, f) for f in [*failures, Failure("ValueError", "no stock")]]
    settle(made, *zip(dead, buried, strict=True), closing=False)
    assert running.id == 7
    insert(made, 2, queue="mail", priority=20)
    insert(made, payload=json.dumps({"text": "y" * 9000}), task_type="big", delay_s=600)
    yield made
    made.close()


def run(server: MySQLServer, settings: Settings, name: str) -> list[Rows]:
    """The rows of each statement of a file."""
    database = settings.database_url.rpartition("/")[2].partition("?")[0]
    found: list[Rows] = []
    with (
        pymysql.connect(**server.login, database=database, cursorclass=DictCursor) as connection,
        connection.cursor() as cursor,
    ):
        for statement in statements((sql_dir() / "ops" / f"{name}.sql").read_text()):
            cursor.execute(statement)
            found.append(list(cursor.fetchall()))
    return found


def test_the_oldest_due_tasks_come_first(mysql_server: MySQLServer, env: Settings, store: SqlStore) -> None:
    oldest, levels = run(mysql_server, env, "oldest_pending")

    assert [(row["id"], row["queue"]) for row in oldest] == [(8, "mail"), (9, "mail")]
    assert oldest[0]["waits_s"] >= 0
    assert [(r["queue"], r["priority"], r["status"], r["tasks"]) for r in levels] == [
        ("default", 0, "pending", 2), ("default", 0, "running", 1), ("mail", 20, "pending", 2),
    ]  # fmt: skip


def test_running_tasks_show_their_lease(mysql_server: MySQLServer, env: Settings, store: SqlStore) -> None:
    ((row,),) = run(mysql_server, env, "stuck_running")
    assert (row["id"], row["worker_id"], 0 < row["lease_s"] <= 30) == (7, "w-9", True)

    store.db.write(lambda tx: tx.write("UPDATE tandemq_claims SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 9 SECOND"))
    assert run(mysql_server, env, "stuck_running")[0][0]["lease_s"] < -8
    store.db.write(lambda tx: tx.write("DELETE FROM tandemq_claims"))
    assert run(mysql_server, env, "stuck_running")[0][0]["lease_s"] is None


def test_deaths_are_counted_by_kind(mysql_server: MySQLServer, env: Settings, store: SqlStore) -> None:
    (kinds,) = run(mysql_server, env, "dead_by_error")

    assert [(k["error_type"], k["kind"], k["tasks"], k["example_id"], k["dead_reason"]) for k in kinds] == [
        ("KeyError", "order N is gone", 3, 5, "timeout"),
        ("ValueError", "no stock", 1, 6, "timeout"),
    ]


def test_throughput_comes_from_the_counters(mysql_server: MySQLServer, env: Settings, store: SqlStore) -> None:
    hours, kinds = run(mysql_server, env, "throughput_by_hour")

    totals = {name: sum(int(hour[name]) for hour in hours) for name in ("succeeded", "retried", "dead", "purged")}
    assert totals == {"succeeded": 1, "retried": 1, "dead": 4, "purged": 0}
    assert (kinds[0]["task_type"], kinds[0]["outcome"], kinds[0]["tasks"]) == ("shop.pay", "dead", 4)


def test_the_biggest_come_first(mysql_server: MySQLServer, env: Settings, store: SqlStore) -> None:
    tasks, kinds = run(mysql_server, env, "biggest_payloads")

    assert [(t["id"], t["payload_bytes"] > 9000, t["result_bytes"]) for t in tasks[:2]] == [
        (10, True, 0), (1, False, 5002),
    ]  # fmt: skip
    assert [k["task_type"] for k in kinds] == ["big", "shop.pay"]


def test_an_open_transaction_and_who_waits_for_it_are_seen(
    mysql_server: MySQLServer, env: Settings, store: SqlStore
) -> None:
    database = env.database_url.rpartition("/")[2].partition("?")[0]
    with pymysql.connect(**mysql_server.login, database=database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        ((mine,),) = cursor.fetchall()
        cursor.execute("UPDATE tandemq_tasks SET priority = 5 WHERE id = 8")
        (rows,) = run(mysql_server, env, "locks")
        connection.rollback()

    (row,) = (row for row in rows if row["thread_id"] == mine)
    assert (row["trx_rows_modified"], row["trx_state"]) == (1, "RUNNING")


def test_the_replay_of_the_page_does_what_the_command_does(
    mysql_server: MySQLServer, env: Settings, store: SqlStore
) -> None:
    """The statements of docs/sql.md, on one connection; the tasks 3, 4 and 5 that it names are dead here, too."""
    (block,) = re.findall(r"```sql\n(SELECT id FROM .*?)```", (ROOT / "docs" / "sql.md").read_text(), re.DOTALL)
    database = env.database_url.rpartition("/")[2].partition("?")[0]
    columns = (
        "status, ended, attempts, max_retries, replays, fence, lease_token, options, expires_at, cancel_requested_at,"
        " completed_at, result, dead_reason, queue, priority, created_at = updated_at, run_at = updated_at"
    )
    (before,) = store.db.read(lambda tx: tx.rows("SELECT fence, lease_token FROM tandemq_tasks WHERE id = 3"))
    with pymysql.connect(**mysql_server.login, database=database) as connection, connection.cursor() as cursor:
        for _ in range(2):
            for statement in statements(block):
                cursor.execute(statement)
    assert len(store.replay([6])) == 1

    by_hand, by_command = store.db.read(
        lambda tx: tx.rows(f"SELECT {columns} FROM tandemq_tasks WHERE id IN (5, 6) ORDER BY id")
    )
    same = [a == b for a, b in zip(by_hand, by_command, strict=True)]
    names = [name.strip() for name in columns.split(",")]
    assert [name for name, is_same in zip(names, same, strict=True) if not is_same] == []
    (after,) = store.db.read(lambda tx: tx.rows("SELECT fence, lease_token FROM tandemq_tasks WHERE id = 3"))
    assert after == before
    assert [r.n for r in store.audit(task_id=4).items] == [0, 3]
    assert len(claim(store, [3, 4, 5]).leases) == 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_says_what_it_shows_and_costs_and_only_reads(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("-- ")
    assert text.splitlines()[0].endswith("?"), "the first line is the question that it answers"
    assert "\n-- Costs: " in text or ". Costs: " in text
    assert "Takes no locks." in text
    for statement in statements(text):
        assert statement.startswith("SELECT ")
        assert "FOR UPDATE" not in statement
        assert "LIMIT " in statement or "GROUP BY" in statement
    assert (Path(__file__)).read_text().count(f'"{path.stem}")'), "and has a test here"
