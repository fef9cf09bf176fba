"""``tandemq bench`` on small numbers: figures, exit codes, and that nothing is left, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tandemq import TandemQ
from tandemq.bench import run
from tandemq.bench.report import Figures
from tandemq.bench.run import BenchFailed, Plan
from tandemq.core.clock import SystemClock
from tandemq.core.errors import StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.store.scratch import GRANTS, Scratch
from tests import recipes
from tests.servers import MySQLServer, RedisServer, free_port
from tests.waiting import eventually
from tests.workers import environment

SMALL = ("--tasks", "200", "-p", "1")


def start(environ: dict[str, str], folder: Path, *args: str, **options: Any) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, "-m", "tandemq", *args]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited; a shell's background job ignores Ctrl-C
    try:
        return subprocess.Popen(command, env=environ, cwd=folder, text=True, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


def bench(environ: dict[str, str], folder: Path, *args: str, code: int = 0) -> tuple[str, str]:
    """Both outputs of a run with this exit code."""
    process = start(environ, folder, "bench", *args)
    out, err = process.communicate(timeout=100)
    assert process.returncode == code, out + err
    assert "Traceback" not in err, err
    return out, err


class Ground:
    """The servers as they were before: what a run leaves behind shows."""

    def __init__(self, settings: Settings, mysql: MySQLServer, redis: RedisServer) -> None:
        self.settings, self._mysql, self._redis = settings, mysql, redis
        self._database = settings.database_url.rsplit("/", 1)[1]
        self.before = self.now()

    def tables(self) -> set[str]:
        return {name for (name,) in self._mysql.sql("SHOW TABLES", database=self._database)}

    def keys(self) -> set[str]:
        with self._redis.client(decode_responses=True) as client:
            return set(client.keys("*"))

    def now(self) -> tuple[set[str], set[str]]:
        return self.tables(), self.keys()

    def table_of_the_bench(self, ending: str) -> str | None:
        """The full name of one of its tables, once it is there."""
        made = self.tables() - self.before[0]
        return next((name for name in made if name.endswith(ending)), None)

    def rows(self, ending: str) -> int:
        name = self.table_of_the_bench(ending)
        return self._mysql.sql(f"SELECT COUNT(*) FROM {name}", database=self._database)[0][0] if name else 0


@pytest.fixture
def ground(env: Settings, mysql_server: MySQLServer, redis_server: RedisServer) -> Iterator[Ground]:
    """An install with a task of a user, and a check that both servers are as before.

    By an administrator whoever the others are: a bench makes tables, which the application's user may not.
    """
    urls = {name: recipes.administrator(getattr(env, name)) for name in ("database_url", "redis_url")}
    env = replace(env, **urls)
    with TandemQ(**{name: getattr(env, name) for name in ("database_url", "redis_url", "namespace")}) as app:
        handle = app.enqueue("users.task", {"n": 1})
        made = Ground(env, mysql_server, redis_server)
        yield made
        assert made.now() == made.before, "something was left, or taken"
        assert handle.state() == "ready"
    assert benches() == [], "its worker runs on"


def benches() -> list[psutil.Process]:
    """Workers of a bench of this test that still run: they inherit the variable in which pytest names it."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        about = process.info
        if "tandemq.bench:app" in (about["cmdline"] or []) and about["status"] != psutil.STATUS_ZOMBIE:
            found += [process] if _test(about["environ"] or {}) == _test(os.environ) else []
    return found


def _test(environ: Mapping[str, str]) -> str:
    return environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]  # without the phase


@pytest.fixture
def embedded(tmp_path: Path) -> dict[str, str]:
    return environment(Settings.load({}, data_dir=str(tmp_path / "data")))


# figures


@pytest.mark.servers
def test_it_measures_real_servers_and_leaves_them_as_they_were(ground: Ground, tmp_path: Path) -> None:
    out, err = bench(environment(ground.settings), tmp_path, *SMALL, "--yes", "--json")

    document = json.loads(out)
    assert set(document["figures"]) == set(Figures.__slots__)
    assert all(value > 0 for value in document["figures"].values())
    assert document["figures"]["latency_p50_ms"] <= document["figures"]["latency_p99_ms"]
    about = document["about"]
    assert (about["tasks"], about["processes"], about["slots"], about["embedded"]) == (200, 1, 8, False)
    assert about["database"].split()[0] in {"MariaDB", "MySQL"}
    assert document["says"]
    assert err == ""


def test_it_measures_the_embedded_default_without_a_question_and_says_so(
    embedded: dict[str, str], tmp_path: Path
) -> None:
    out, _ = bench(embedded, tmp_path, *SMALL)

    lines = out.splitlines()
    assert lines[0].split() == ["WHAT", "FIGURE"]
    assert [line.split("  ")[0] for line in lines[1:10]] == [
        "database round trip (SELECT 1)",
        "Redis round trip (PING)",
        "commit of one row, bare",
        "enqueue, 1 thread",
        "enqueue, 32 threads",
        "enqueue_many, 1,000 a call",
        "drain, 1 x 8 slots, no-op tasks",
        "enqueue to start, idle worker, p50",
        "enqueue to start, idle worker, p99",
    ]
    assert "This is the embedded default (SQLite" in out
    with TandemQ(data_dir=embedded["TANDEMQ_DATA_DIR"]) as app:
        assert app.stats()["redis"] == {}
    assert Scratch(Settings.load(embedded, table_prefix="tandemq_bench_")).drop() == []


def test_an_application_brings_its_own_servers(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        f"from tandemq import TandemQ\napp = TandemQ(data_dir={str(tmp_path / 'own')!r})\n"
    )
    process = start(environment(Settings()), tmp_path, "-A", "jobs:app", "bench", *SMALL)
    out, err = process.communicate(timeout=100)

    assert process.returncode == 0, out + err
    assert (tmp_path / "own" / "tandemq.db").exists()
    assert not (tmp_path / ".tandemq").exists()


# nothing is left


@pytest.mark.servers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_while_enqueueing_it_leaves_nothing(ground: Ground, tmp_path: Path, number: signal.Signals) -> None:
    process = start(environment(ground.settings), tmp_path, "bench", "--yes")
    try:
        eventually(lambda: ground.rows("_tasks"), 60, process.poll)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 130, err
    assert (out, "Traceback" in err) == ("", False), err


@pytest.mark.servers
def test_interrupted_twice_while_its_worker_works_it_leaves_nothing(ground: Ground, tmp_path: Path) -> None:
    process = start(environment(ground.settings), tmp_path, "bench", "--yes")
    try:
        eventually(lambda: ground.rows("_workers"), 60, process.poll)
        assert benches()
        process.send_signal(signal.SIGINT)
        eventually(lambda: not benches(), 60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == 130, err


@pytest.mark.servers
def test_a_worker_that_cannot_run_is_a_failure_that_says_why_and_leaves_nothing(ground: Ground) -> None:
    broken = {**os.environ, "PYTHONHOME": "/nonexistent"}

    with pytest.raises(BenchFailed, match=r"the worker ended with exit code 1: .*(?i:python)"):
        run.run(ground.settings, Plan(200, 1, 8), broken, SystemClock(), print, print)


@pytest.mark.servers
def test_what_cannot_be_removed_is_named_and_is_a_failure(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    drop, told = Scratch.drop, list[str]()

    def away(self: Scratch) -> list[str]:
        drop(self)
        raise StoreUnavailable("gone")

    monkeypatch.setattr(Scratch, "drop", away)
    with pytest.raises(BenchFailed, match="left something behind"):
        run.run(ground.settings, Plan(100, 1, 8), os.environ, SystemClock(), print, told.append)

    (line,) = told
    assert line.startswith("the tables tandemq_bench_")
    assert line.endswith("remove them by hand: gone")


# bad input, and servers that do not answer


@pytest.mark.parametrize(
    "args", [["--tasks", "99"], ["--tasks", "many"], ["-p", "0"], ["-c", "0"], ["--slots", "x"], ["surplus"]]
)
def test_bad_input_is_refused_with_exit_code_2(embedded: dict[str, str], tmp_path: Path, args: list[str]) -> None:
    bench(embedded, tmp_path, *args, code=2)

    assert not (tmp_path / "data").exists()


@pytest.mark.servers
def test_without_a_terminal_real_servers_are_not_loaded_unless_told_to(ground: Ground, tmp_path: Path) -> None:
    _, err = bench(environment(ground.settings), tmp_path, *SMALL, code=2)

    scheme = ground.settings.database_url.partition("://")[0]
    assert f"puts load on {scheme}://***@" in err
    assert "say --yes" in err


@pytest.mark.servers
def test_on_a_terminal_it_asks_and_takes_no_for_an_answer(ground: Ground, tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    try:
        process = start(environment(ground.settings), tmp_path, "bench", *SMALL, stdin=terminal)
        os.write(ours, b"n\n")
        out, err = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(terminal)

    assert process.returncode == 1, err
    assert out == ""
    assert "Put load on mysql" in err
    assert "nothing was measured" in err


@pytest.mark.servers
def test_a_redis_that_does_not_answer_is_exit_code_3_and_no_table_is_made(ground: Ground, tmp_path: Path) -> None:
    away = {**environment(ground.settings), "TANDEMQ_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}

    _, err = bench(away, tmp_path, *SMALL, "--yes", code=3)

    assert "Redis" in err
    assert "may still be there" not in err


@pytest.mark.servers
def test_a_redis_user_who_may_not_use_these_keys_is_told_which(
    ground: Ground, redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~tandemq:*", "+@all")
    try:
        url = redis_server.url().replace("redis://", "redis://narrow:pw@")
        narrow = {**environment(ground.settings), "TANDEMQ_REDIS_URL": url}
        _, err = bench(narrow, tmp_path, *SMALL, "--yes", code=3)
    finally:
        with redis_server.client() as client:
            client.execute_command("ACL", "DELUSER", "narrow")

    assert "lacks a permission" in err
    assert "the bench works on the keys tandemq-bench-" in err


@pytest.mark.servers
def test_a_database_that_does_not_answer_is_exit_code_3(ground: Ground, tmp_path: Path) -> None:
    away = {**environment(ground.settings), "TANDEMQ_DATABASE_URL": f"mysql://u:geheim@127.0.0.1:{free_port()}/x"}

    _, err = bench(away, tmp_path, *SMALL, "--yes", code=3)

    assert "the database is unavailable" in err
    assert "may still be there" not in err
    assert "geheim" not in err


# grants


@pytest.fixture
def as_user(ground: Ground, mysql_server: MySQLServer) -> Iterator[Callable[[str], dict[str, str]]]:
    """``as_user(grants)``: the environment of a database user who has these on the database."""
    name = f"bench{os.getpid()}"

    def make(grants: str) -> dict[str, str]:
        database = ground.settings.database_url.rsplit("/", 1)[1]
        mysql_server.sql(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'pw'")
        mysql_server.sql(f"GRANT {grants} ON `{database}`.* TO '{name}'@'%'")
        host, port = mysql_server.address
        return {**environment(ground.settings), "TANDEMQ_DATABASE_URL": f"mysql://{name}:pw@{host}:{port}/{database}"}

    yield make
    mysql_server.sql(f"DROP USER '{name}'@'%'")


@pytest.mark.servers
def test_a_user_who_may_not_make_tables_is_told_the_grant(
    as_user: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    _, err = bench(as_user("SELECT, INSERT, UPDATE, DELETE"), tmp_path, *SMALL, "--yes", code=1)

    assert "CREATE command denied" in err
    assert f"GRANT {GRANTS} ON `" in err
    assert "may still be there" not in err


@pytest.mark.servers
def test_the_grants_that_are_named_are_enough(as_user: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    bench(as_user(GRANTS), tmp_path, *SMALL, "--yes")


@pytest.mark.servers
def test_a_user_who_may_not_drop_is_found_out_before_there_is_much_to_drop(
    as_user: Callable[[str], dict[str, str]], ground: Ground, mysql_server: MySQLServer, tmp_path: Path
) -> None:
    _, err = bench(as_user(GRANTS.replace("DROP, ", "")), tmp_path, *SMALL, "--yes", code=1)

    (left,) = ground.tables() - ground.before[0]
    mysql_server.sql(f"DROP TABLE {left}", database=ground.settings.database_url.rsplit("/", 1)[1])
    assert "DROP command denied" in err
    assert f"the tables {left.removesuffix('bare')}* may still be there" in err
