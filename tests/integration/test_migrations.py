"""The SQL files: applied once, by whoever comes first, beside whatever else is in the database."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import tandemq
from tandemq.core.errors import ConfigurationError, NotMigrated, StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import NewRow
from tandemq.store import SqlStore, connect, engines
from tandemq.store.migrate import files, migrate, pending, render, sql_dir, statements
from tests.servers import MySQLServer

ALL = ["0001_tasks", "0002_dead_letters", "0003_api_tokens", "0004_pauses", "0005_workers"]
ROW = NewRow("t", "{}", "default", 0, 3)


@pytest.fixture(params=["sqlite", "mysql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of an empty database."""
    sqlite = f"sqlite:///{tmp_path / 'new folder' / 'store.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("mysql_url")
    return Settings(database_url=url, redis_url="redis://nowhere")


@contextmanager
def opened(settings: Settings) -> Iterator[SqlStore]:
    store = connect(settings)
    try:
        yield store
    finally:
        store.close()


def run(settings: Settings, *texts: str) -> list[tuple[Any, ...]]:
    """Statements of a DBA; the rows of the last one."""
    url = engines.url_of(settings)
    Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    rows: list[tuple[Any, ...]] = []
    with engine.connect() as connection:
        for text in texts:
            result = connection.exec_driver_sql(text.replace("%", "%%") if url.get_backend_name() == "mysql" else text)
            rows = [tuple(r) for r in result] if result.returns_rows else []
    engine.dispose()
    return rows


def test_what_is_missing_is_applied_once(settings: Settings) -> None:
    assert pending(settings) == ALL
    assert migrate(settings) == ALL
    assert migrate(settings) == []
    assert pending(settings) == []
    with opened(settings) as store:
        store.check_schema()
        first = store.install_id()
        store.insert([ROW])
        migrate(settings)
        assert store.install_id() == first
        assert len(store.visible([1])) == 1


def test_checking_changes_nothing(settings: Settings) -> None:
    assert pending(settings) == ALL
    assert pending(settings) == ALL
    if settings.database_url.startswith("sqlite"):
        assert not Path(engines.url_of(settings).database or "").parent.exists()
    else:
        assert run(settings, "SHOW TABLES") == []


def test_many_may_migrate_at_once(settings: Settings) -> None:
    start, applied = threading.Barrier(4), []

    def one() -> None:
        start.wait()
        applied.append(migrate(settings))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(applied) == [[], [], [], ALL]


def test_a_run_that_was_cut_is_taken_up_again(settings: Settings) -> None:
    dialect = "sqlite" if settings.database_url.startswith("sqlite") else "mysql"
    first = statements(files(dialect)[0].text("tandemq_"))
    run(settings, *first[:4])

    assert pending(settings) == ALL
    assert migrate(settings) == ALL
    if dialect == "mysql":  # where every statement commits by itself; all of the later files is run twice
        run(settings, "DELETE FROM tandemq_migrations WHERE name > '0002'")
        assert migrate(settings) == ALL[1:]
    with opened(settings) as store:
        assert store.insert([ROW])[0].id == 1


@pytest.mark.parametrize("table", ["tasks", "migrations"])
def test_a_table_of_somebody_else_is_refused_and_left_alone(settings: Settings, table: str) -> None:
    run(settings, f"CREATE TABLE tandemq_{table} (id INT, name VARCHAR(10))")
    for attempt in (migrate, pending):
        with pytest.raises(ConfigurationError, match=f"tandemq_{table} exists and is not tandemq's"):
            attempt(settings)

    assert run(settings, f"SELECT * FROM tandemq_{table}") == []
    assert migrate(replace(settings, table_prefix="tq2_")) == ALL
    with opened(replace(settings, table_prefix="tq2_")) as store:
        assert store.insert([ROW])[0].created
        store.check_schema()


def test_two_prefixes_live_in_one_database(settings: Settings) -> None:
    with opened(replace(settings, table_prefix="a_")) as a, opened(replace(settings, table_prefix="b_")) as b:
        for store in (a, b):
            assert migrate(store.settings) == ALL
        a.insert([ROW, ROW])
        b.insert([ROW])

        assert (a.counts()["queues"]["default"]["ready"], b.counts()["queues"]["default"]["ready"]) == (2, 1)
        assert a.install_id() != b.install_id()


def test_the_printed_sql_can_be_applied_by_hand(settings: Settings) -> None:
    dialect = "sqlite" if settings.database_url.startswith("sqlite") else "mysql"
    mine = replace(settings, table_prefix="dba_")
    script = render(mine, dialect)
    run(settings, *statements(script))

    assert "tandemq_" not in "".join(statements(script))
    assert pending(mine) == []
    with opened(mine) as store:
        store.check_schema()
        assert len(store.install_id()) == 16
        assert store.epoch() == 0
        assert store.insert([ROW])[0].created


def test_a_missing_migration_is_noticed(settings: Settings) -> None:
    run(settings, "SELECT 1")
    with opened(settings) as store:
        with pytest.raises(NotMigrated, match="run: tandemq migrate"):
            store.check_schema()
        migrate(settings)
        run(settings, "DELETE FROM tandemq_migrations")
        with pytest.raises(NotMigrated, match="; run: tandemq migrate"):
            store.check_schema()


def test_other_programs_may_insert_with_two_columns(settings: Settings) -> None:
    migrate(settings)
    insert = "INSERT INTO tandemq_tasks (task_type, payload) VALUES ('mail.send', '{\"to\": 1}')"
    before = "SELECT queue, priority, status, attempts, max_retries, options, ended FROM tandemq_tasks"

    assert run(settings, insert, before) == [("default", 0, "pending", 0, 3, "", 0)]
    with opened(settings) as store:
        assert len(store.oldest_due(store.open_levels()[0], limit=5, older_than_s=0)) == 1


def test_the_embedded_default_migrates_itself(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"))
    for _ in range(2):
        with opened(settings) as store:
            store.check_schema()
            store.insert([ROW])
    assert (tmp_path / "data" / "tandemq.db").exists()
    assert pending(settings) == []


def test_a_url_without_a_file_is_refused() -> None:
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ConfigurationError, match="must name a file"):
            connect(Settings(database_url=url, redis_url="redis://x"))


def test_a_server_that_is_away_is_said_without_the_password(tmp_path: Path) -> None:
    settings = Settings(database_url="mysql://app:hidden@127.0.0.1:9/db", redis_url="redis://x")
    for attempt in (migrate, pending):
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9") as away:
            attempt(settings)
        assert "hidden" not in str(away.value)


def test_the_files_are_found_in_an_installed_package(tmp_path: Path) -> None:
    package = Path(tandemq.__file__).parent
    shutil.copytree(package, tmp_path / "tandemq", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(sql_dir(), tmp_path / "tandemq" / "sql")
    code = "from tandemq.store.migrate import files, sql_dir; print(sql_dir(), [m.name for m in files('mysql')])"
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout

    assert out.strip() == f"{tmp_path / 'tandemq' / 'sql'} {ALL}"


def test_both_dialects_have_the_same_files_tables_and_columns() -> None:
    def columns(dialect: str) -> dict[str, list[str]]:
        tables = {}
        for text in statements("".join(m.text("tandemq_") for m in files(dialect))):
            if text.startswith("CREATE TABLE"):
                lines = [line.split() for line in text.splitlines()[1:]]
                words = ("PRIMARY", "UNIQUE", "KEY", "CHECK", ")", "'interrupted',", "'unknown_task',")
                tables[text.split()[5]] = sorted(w[0] for w in lines if w and not w[0].startswith(words))
        return tables

    assert [m.name for m in files("mysql")] == [m.name for m in files("sqlite")]
    assert columns("mysql") == columns("sqlite")
    with pytest.raises(ConfigurationError, match="oracle"):
        files("oracle")


class TestOnMySql:
    """What only a server shows."""

    def of_schema(self, server: MySQLServer, url: str, text: str) -> list[tuple[Any, ...]]:
        return server.sql(text, (url.rpartition("/")[2],))

    def test_every_charset_collation_engine_and_precision_is_named(
        self, mysql_server: MySQLServer, mysql_url: str
    ) -> None:
        mysql_server.sql(f"ALTER DATABASE {mysql_url.rpartition('/')[2]} CHARACTER SET latin1")
        migrate(Settings(database_url=mysql_url, redis_url="redis://x"))
        of_columns = "FROM information_schema.columns WHERE table_schema = %s"

        charsets = self.of_schema(
            mysql_server,
            mysql_url,
            f"SELECT DISTINCT character_set_name, collation_name {of_columns}"
            " AND character_set_name IS NOT NULL AND table_name NOT LIKE '%%view'",
        )
        assert set(charsets) == {("ascii", "ascii_bin"), ("utf8mb4", "utf8mb4_bin")}
        shown = self.of_schema(
            mysql_server,
            mysql_url,
            f"SELECT DISTINCT character_set_name {of_columns} AND character_set_name IS NOT NULL",
        )
        assert set(shown) == {("ascii",), ("utf8mb4",)}
        times = self.of_schema(
            mysql_server,
            mysql_url,
            f"SELECT DISTINCT data_type, datetime_precision {of_columns} AND datetime_precision IS NOT NULL",
        )
        assert times == [("datetime", 6)]
        tables = self.of_schema(
            mysql_server,
            mysql_url,
            "SELECT DISTINCT engine, row_format, table_collation FROM"
            " information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'",
        )
        assert tables == [("InnoDB", "Dynamic", "utf8mb4_bin")]

    def test_no_index_holds_a_column_that_the_claim_changes(self, mysql_server: MySQLServer, mysql_url: str) -> None:
        migrate(Settings(database_url=mysql_url, redis_url="redis://x"))
        rows = self.of_schema(
            mysql_server,
            mysql_url,
            "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = %s"
            " AND table_name = 'tandemq_tasks' ORDER BY index_name, seq_in_index",
        )
        keys = self.of_schema(
            mysql_server,
            mysql_url,
            "SELECT 1 FROM information_schema.referential_constraints WHERE constraint_schema = %s",
        )

        assert sorted(rows) == sorted(
            [("PRIMARY", "id"), ("idempotency_key", "idempotency_key")]
            + [("open_rows", c) for c in ("ended", "queue", "priority", "run_at")]
        )
        assert keys == []

    def test_migrations_wait_for_each_other_over_connections(
        self, mysql_server: MySQLServer, mysql_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = Settings(database_url=mysql_url, redis_url="redis://x")
        monkeypatch.setattr("tandemq.store.migrate.LOCK_WAIT_S", 0)
        blocker = mysql_server.connect(mysql_url.rpartition("/")[2])
        with blocker.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 1)", (_lock_name(mysql_url),))
            with pytest.raises(StoreUnavailable, match="another process has been migrating"):
                migrate(settings)
        blocker.close()
        monkeypatch.undo()

        assert migrate(settings) == ALL


def _lock_name(url: str) -> str:
    return "tandemq:" + hashlib.sha256(f"{url.rpartition('/')[2]}.tandemq_".encode()).hexdigest()[:40]


def test_what_is_printed_for_an_older_database_is_what_it_lacks(settings: Settings) -> None:
    dialect = "sqlite" if settings.database_url.startswith("sqlite") else "mysql"
    run(settings, *statements(render(settings, dialect, ["0001_tasks"])))
    assert pending(settings) == ALL[1:]
    environ = {**os.environ, "TANDEMQ_DATABASE_URL": settings.database_url, "TANDEMQ_REDIS_URL": "redis://nowhere"}
    out = subprocess.run(
        [sys.executable, "-m", "tandemq", "migrate", "--sql"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert "CREATE TABLE IF NOT EXISTS tandemq_tasks" not in out
    run(settings, *statements(out))
    assert pending(settings) == []
