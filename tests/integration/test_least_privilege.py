"""deploy/mysql and deploy/redis: everything that tandemq does is done as their users, who can do nothing else."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from tandemq.core.settings import Settings
from tandemq.store import rights
from tandemq.store.migrate import files, migrate
from tests import recipes
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import ROOT, MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import Bench, bench

#: Of the doctor's findings: a test's leases are short, its servers small, and nobody works yet.
UNRELATED = {"workers.alive", "workers.serving", "settings.lease", "database.connections"}
CONF = ROOT / "deploy/redis/redis.conf"


def directives(path: Path) -> list[str]:
    """The lines of a configuration file that say something."""
    return [line for line in map(str.strip, path.read_text().splitlines()) if line and line[0] not in "#["]


class SecuredRedis(RedisServer):
    """redis-server as deploy/redis says; ``client`` is its administrator."""

    def command(self) -> list[str]:
        """Its own port and folder, and the rest of the file."""
        kept = [line for line in directives(CONF) if line.split()[0] not in {"port", "aclfile"}]
        (self.folder / "users.acl").write_text(recipes.filled(recipes.USERS_ACL.read_text()))
        own = [f"port {self.port}", f"aclfile {self.folder / 'users.acl'}", f"dir {self.folder}"]
        (self.folder / "redis.conf").write_text("\n".join([*kept, *own, *self.options]))
        return [str(self.program), str(self.folder / "redis.conf")]

    def url(self, db: int = 0) -> str:
        """Of the application's user."""
        return f"redis://tandemq:{recipes.password('app')}@127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """See ``RedisServer``."""
        return super().client(db, **{"username": "admin", "password": recipes.password("admin"), **options})

    def of(self, user: str, role: str) -> redis.Redis:
        """A client of one of the users."""
        return super().client(username=user, password=recipes.password(role), decode_responses=True)


@pytest.fixture
def secured() -> Iterator[SecuredRedis]:
    server = SecuredRedis()
    server.start()
    yield server
    server.discard()


@pytest.fixture
def limited(mysql_url: str, secured: SecuredRedis, tmp_path: Path) -> Settings:
    """Settings of the application's users, at the pace of a test; the tables were made by ``tandemq migrate``."""
    recipes.run_sql(mysql_url, recipes.USERS_SQL)
    settings = Settings.load(
        {}, database_url=recipes.database_url(mysql_url, "migrate"), redis_url=secured.url(),
        lease_s=3.0, heartbeat_s=0.5, reconcile_s=0.3, mover_s=0.1, data_dir=str(tmp_path / "data"),
    )  # fmt: skip
    assert "0001_tasks" in tandemq(settings, "migrate").out
    recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
    return replace(settings, database_url=recipes.database_url(mysql_url, "app"))


@pytest.fixture
def work(limited: Settings, tmp_path: Path, probe: Probe) -> Iterator[Bench]:
    with bench(limited, tmp_path, probe.environ) as made:
        yield made


def test_a_whole_life_is_lived_with_these_rights_only(work: Bench, secured: SecuredRedis, tmp_path: Path) -> None:
    app, settings = work.app, work.settings
    said = tandemq(settings, "doctor", "--json").json
    bad = {f["name"]: f["says"] for f in said["findings"] if f["level"] in {"fault", "warning", "unknown"}}
    assert set(bad) <= UNRELATED, bad

    # Work, retries, a delay, a death, a lost process.
    worker = work.worker("-c", "4").ready()
    ids = work.ids("noop", 40) + work.ids("noop", 10, delay=0.5)
    ids += [app.enqueue("flaky", {"fails": 1}, max_retries=2).id for _ in range(5)]
    doomed = [app.enqueue("fail", {"text": "no"}, max_retries=1).id for _ in range(5)]
    killed = app.enqueue("poison", {}, max_retries=0).id
    assert work.ended(ids) == {"succeeded": 55}
    assert work.ended([*doomed, killed]) == {"dead": 6}

    # A worker that dies with its whole group, and Redis emptied: another one and the reconciler heal.
    gate = tmp_path / "gate"
    held = app.enqueue("hold", {"until": str(gate)}).id
    eventually(lambda: work.statuses([held]) == {"running": 1}, 30, worker.text)
    worker.kill_group()
    waiting = work.ids("noop", 30) + work.ids("noop", 5, delay=1)
    secured.flush()
    gate.touch()
    work.worker("-c", "4").ready()
    assert work.ended([held, *waiting]) == {"succeeded": 36}

    # What operators do.
    tandemq(settings, "pause", "--type", "noop", "--for", "1h", "--reason", "a test")
    resting = work.ids("noop", 3)
    tandemq(settings, "resume", "--type", "noop")
    tandemq(settings, "pause", "default")
    tandemq(settings, "resume", "default")
    assert work.ended(resting) == {"succeeded": 3}
    tandemq(settings, "queue", "set", "default", "--max-retries", 2)
    tandemq(settings, "dead", "replay", "--type", "fail")
    eventually(lambda: work.statuses(doomed) == {"dead": 5}, 60)
    tandemq(settings, "dead", "purge", killed, "--yes")
    stubborn = app.enqueue("sleep", {"seconds": 60}, timeout=90, max_retries=0).id
    eventually(lambda: work.statuses([stubborn]) == {"running": 1}, 30)
    tandemq(settings, "cancel", stubborn, "--kill")
    assert work.ended([stubborn]) == {"cancelled": 1}
    for verb in (["list"], ["show", ids[0]], ["why", doomed[0]], ["workers"], ["stats"], ["audit"], ["dead", "list"]):
        tandemq(settings, *verb, "--json")
    tandemq(settings, "reconcile", "--once", "--json")
    removed = tandemq(settings, "prune", "--older-than", "0s", "--status", "succeeded", "--yes", "--json").json
    assert removed["removed"] >= 90

    denied = secured.client().execute_command("ACL", "LOG")
    assert denied == []


def test_the_application_cannot_change_the_schema_read_files_or_see_others(
    limited: Settings, mysql_server: MySQLServer, mysql_url: str
) -> None:
    other = mysql_server.create_database()
    mysql_server.sql("CREATE TABLE secrets (n INT)", database=other)
    database = mysql_url.rpartition("/")[2]
    refused = [
        "DROP TABLE tandemq_tasks", "TRUNCATE TABLE tandemq_tasks", "ALTER TABLE tandemq_tasks ADD COLUMN x INT",
        "CREATE TABLE mine (n INT)", "CREATE INDEX i ON tandemq_tasks (status)", "DROP VIEW tandemq_tasks_view",
        "DELETE FROM tandemq_audit_log", "UPDATE tandemq_audit_log SET who = 'somebody'",
        "INSERT INTO tandemq_migrations (name) VALUES ('x')", f"SELECT * FROM {other}.secrets",
        "SELECT user FROM mysql.user", "SELECT * FROM tandemq_tasks INTO OUTFILE '/tmp/tandemq-out'",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE tandemq_queues", "SET GLOBAL read_only = 1", "CREATE USER intruder",
        f"GRANT SELECT ON {database}.tandemq_tasks TO tandemq_read", "FLUSH TABLES", "SHUTDOWN",
    ]  # fmt: skip
    try:
        others = {"read": [*refused, *_writes(), "SELECT hash FROM tandemq_api_tokens"], "backup": _writes()}
        for role, statements in {"app": [*refused, *_beyond_the_needs()], **others}.items():
            with contextlib.closing(_connect(mysql_server, database, role)) as connection:
                for statement in statements:
                    assert _refused(connection, statement), f"{role} may: {statement}"
        with contextlib.closing(_connect(mysql_server, database, "migrate")) as connection:
            for statement in ("DELETE FROM tandemq_tasks", f"SELECT * FROM {other}.secrets", "CREATE USER intruder"):
                assert _refused(connection, statement), f"migrate may: {statement}"
    finally:
        mysql_server.drop_database(other)


def _beyond_the_needs() -> list[str]:
    """What the application does nowhere: taking rows out of tables that are kept, making them in those of migrate."""
    made = []
    for table, column, granted in rights.NEEDS:
        tried = {
            "INSERT": f"INSERT INTO tandemq_{table} ({column}) VALUES (NULL)",
            "UPDATE": f"UPDATE tandemq_{table} SET {column} = NULL WHERE FALSE",
            "DELETE": f"DELETE FROM tandemq_{table} WHERE FALSE",
        }
        made += [statement for right, statement in tried.items() if right not in granted]
    return made


def _writes() -> list[str]:
    return [
        "INSERT INTO tandemq_tasks (task_type, payload) VALUES ('x', '{}')", "UPDATE tandemq_tasks SET queue = 'x'",
        "DELETE FROM tandemq_tasks", "DROP TABLE tandemq_tasks", "ALTER TABLE tandemq_tasks ADD COLUMN x INT",
        "TRUNCATE TABLE tandemq_tasks", "CREATE TABLE mine (n INT)", "DROP VIEW tandemq_tasks_view",
    ]  # fmt: skip


def _connect(server: MySQLServer, database: str, role: str) -> pymysql.Connection[Any]:
    return server.connect(database, user=f"tandemq_{role}", password=recipes.password(role))


def _refused(connection: pymysql.Connection[Any], statement: str) -> bool:
    """Whether it is the rights that refuse it."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    except pymysql.MySQLError as error:
        return error.args[0] in {1044, 1045, 1142, 1143, 1227, 1370, 1410}
    return False


def test_people_may_look_with_sql(limited: Settings, mysql_server: MySQLServer, mysql_url: str) -> None:
    reader = _connect(mysql_server, mysql_url.rpartition("/")[2], "read")
    with contextlib.closing(reader), reader.cursor() as cursor:
        cursor.execute("SELECT state, COUNT(*) FROM tandemq_tasks_view GROUP BY state")
        assert cursor.fetchall() == ()
        cursor.execute("SELECT name, roles, revoked_at FROM tandemq_api_tokens")
        assert cursor.fetchall() == ()


def test_a_grant_is_there_for_every_table(mysql_url: str) -> None:
    made = {
        name
        for migration in files("mysql")
        for name in re.findall(r"(?:TABLE IF NOT EXISTS|INVOKER VIEW) (tandemq_\w+)", migration.text("tandemq_"))
    }
    text = recipes.GRANTS_SQL.read_text()
    for user in ("tandemq_app", "tandemq_read"):
        granted = re.findall(rf"^GRANT .* ON `tandemq`\.`(\w+)` TO '{user}'", text, flags=re.MULTILINE)
        assert sorted(granted) == sorted(made), f"{user}: a table more or less than the migrations make"


def test_the_recipes_may_be_run_again_and_with_another_prefix(mysql_url: str) -> None:
    settings = Settings(
        database_url=recipes.database_url(mysql_url, "migrate"), redis_url="redis://nowhere", table_prefix="q_"
    )
    for _ in range(2):
        recipes.run_sql(mysql_url, recipes.USERS_SQL)
        migrate(settings)
        recipes.run_sql(mysql_url, recipes.GRANTS_SQL, prefix="q_")


def test_a_worker_without_the_grant_for_a_new_table_does_not_start_and_says_so(
    limited: Settings, mysql_server: MySQLServer, mysql_url: str, tmp_path: Path, probe: Probe
) -> None:
    """A migration was run and grants.sql was not: nothing is lost, and the grant is enough to go on."""
    database = mysql_url.rpartition("/")[2]
    with bench(limited, tmp_path, probe.environ) as work:
        (task_id,) = work.ids("noop", 1)
        mysql_server.sql(f"REVOKE ALL ON {database}.tandemq_claims FROM 'tandemq_app'@'%'")
        worker = work.worker()
        assert worker.wait() == 3, "it tries for some seconds; who started it (systemd, Kubernetes) goes on trying"
        assert "lacks SELECT, INSERT, UPDATE, DELETE on tandemq_claims; run deploy/mysql/grants.sql" in worker.text()
        recipes.run_sql(mysql_url, recipes.GRANTS_SQL)
        work.worker()
        assert work.ended([task_id]) == {"succeeded": 1}


READS_ANOTHER = "return(redis.call('GET','other:key'))"
DENIED_IN_REDIS = (
    "FLUSHALL", "FLUSHDB", "KEYS tandemq:*", "SCAN 0", "CONFIG SET maxmemory 1", "CONFIG GET *", "SHUTDOWN",
    "SCRIPT FLUSH", "ACL LIST", "ACL SETUSER tandemq +@all", "SAVE", "REPLICAOF NO ONE", "MONITOR", "CLIENT KILL ID 1",
    "MODULE LIST", "GET other:key", "SET other:key 1", "LPUSH tandemqx 1", f"EVAL {READS_ANOTHER} 1 tandemq:a",
    "RENAME tandemq:a tandemq:b", "EXPIRE tandemq:a 1", "DEL tandemq:a", "SUBSCRIBE x", "PUBLISH x y",
)  # fmt: skip


def test_redis_lets_the_application_touch_its_own_keys_by_its_own_commands_only(secured: SecuredRedis) -> None:
    for user, role in (("tandemq", "app"), ("tandemq_read", "read")):
        with secured.of(user, role) as client:
            client.ping()
            for command in DENIED_IN_REDIS:
                with pytest.raises(redis.exceptions.ResponseError, match=r"permission|can't access"):
                    client.execute_command(*command.split(" "))
    with secured.of("tandemq_read", "read") as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.lpush("tandemq:{default}:ready:0", 1)
    with RedisServer.client(secured) as nobody, pytest.raises(redis.exceptions.AuthenticationError):
        nobody.ping()


def test_redis_refuses_rather_than_forgets(secured: SecuredRedis) -> None:
    found = secured.client(decode_responses=True).config_get("maxmemory*", "save", "appendonly")
    assert found["maxmemory-policy"] == "noeviction"
    assert int(found["maxmemory"]) > 0
    assert (found["save"], found["appendonly"]) == ("", "no")


def test_every_right_in_redis_is_used_by_something() -> None:
    """A command that nothing sends any more must not stay allowed."""
    files_of_it = [path for path in (ROOT / "src/tandemq/broker").rglob("*") if path.suffix in {".py", ".lua"}]
    told = re.findall(r"[\"']([A-Z]+(?: [A-Z]+)?)[\"']", "".join(path.read_text() for path in files_of_it))
    sent = {word.lower().replace(" ", "|") for word in told} | {"ping", "select", "client|setname"}
    allowed = {rule[1:] for rule in recipes.acl_rules("tandemq") if rule.startswith("+")}

    assert allowed - sent == set()


def test_a_mysql_with_these_settings_is_one_that_the_doctor_likes(
    own_mysql: Callable[..., MySQLServer], redis_url: str, settings_for: Callable[..., Settings]
) -> None:
    options = ["--" + line.replace(" ", "") for line in directives(ROOT / "deploy/mysql/tandemq.cnf")]
    small = [o for o in options if not o.startswith("--innodb_buffer_pool_size")]
    server = own_mysql(*small, "--log-bin=bin", "--server-id=1")
    name = server.create_database()

    said = tandemq(settings_for(server.url(name), redis_url), "doctor", "--json").json

    levels = {f["name"]: f["level"] for f in said["findings"] if f["name"].startswith("database.")}
    assert {n: level for n, level in levels.items() if level not in {"ok", "info"}} == {}
    for asked in ("flush_log", "sync_binlog", "binlog_format", "packet"):
        assert levels[f"database.{asked}"] == "ok"
