"""``tandemq health`` is green only after real round trips and a recent tick, and quick to say so when it is not."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli import session
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

QUICK = {"lease_s": 4.0, "heartbeat_s": 0.5, "mover_s": 0.05, "reconcile_s": 0.5}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **QUICK), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def run(work: Bench, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, object]]]:
    """Exit code and JSON of the verb."""
    monkeypatch.setattr(session, "TandemQ", lambda: work.app)

    def call(*flags: str) -> tuple[int, dict[str, object]]:
        done = CliRunner().invoke(tandemq_command, ["health", "--json", *flags], standalone_mode=False)
        assert done.exception is None, done.output
        return done.return_value, json.loads(done.output)

    return call


Run = Callable[..., tuple[int, dict[str, object]]]


def test_it_is_green_with_a_worker_here_and_red_without(work: Bench, run: Run) -> None:
    assert run()[0] == 1
    worker = work.worker("-c", "1", "--name", "mill").ready()
    eventually(lambda: run()[0] == 0, 60, run)
    assert run("--worker", "mill")[0] == run("--all")[0] == 0
    code, shape = run("--worker", "another")
    assert code == 1
    assert "no worker of the name another" in str(shape["worker"])
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    code, shape = run()
    assert code == 1
    assert shape["database"] == shape["redis"] == "ok"


def test_a_worker_that_is_up_but_does_not_tick_is_red(work: Bench, run: Run) -> None:
    worker = work.worker("-c", "1").ready()
    eventually(lambda: run("--max-age", "2")[0] == 0, 60, run)
    worker.signal(signal.SIGSTOP)
    try:
        assert worker.process.poll() is None
        eventually(lambda: run("--max-age", "2")[0] == 1, 30, run)
    finally:
        worker.signal(signal.SIGCONT)
    eventually(lambda: run("--max-age", "2")[0] == 0, 30, run)


def test_a_worker_that_says_that_it_is_stuck_is_red(work: Bench, run: Run) -> None:
    work.worker("-c", "1").ready()
    eventually(lambda: run()[0] == 0, 60, run)
    (record,) = work.app.workers()

    def looks() -> bool:
        work.app.store.worker_beat(record.id, "stuck")  # the true one says otherwise half a second later
        code, shape = run()
        return code == 1 and "is stuck" in str(shape["worker"])

    assert eventually(looks, 30)


def test_one_that_was_killed_does_not_make_the_one_in_its_place_red(work: Bench, run: Run) -> None:
    work.worker("-c", "1").ready()
    eventually(lambda: run()[0] == 0, 60, run)
    (killed,) = work.app.workers()
    work.workers[0].kill_group()

    def is_missed() -> bool:
        code, shape = run("--all", "--max-age", "2")
        return code == 1 and f"worker {killed.id} has been silent" in str(shape["worker"])

    eventually(is_missed, 30, run)
    assert run("--max-age", "2")[0] == 1
    work.worker("-c", "1").ready()
    eventually(lambda: run("--max-age", "2")[0] == 0, 60, run)
    assert is_missed()


@pytest.mark.parametrize("key", ["queues", "{default}:ready:0"])
def test_a_key_that_somebody_made_something_else_of_is_named(
    work: Bench, run: Run, redis_server: RedisServer, key: str
) -> None:
    work.ids("noop", 1)
    name = f"{work.settings.namespace}:{key}"
    with redis_server.client() as client:
        client.delete(name)
        client.set(name, "somebody's")
    code, shape = run()
    assert code == 3
    assert shape["redis"] == f"the key {name} is a string that tandemq did not make: see tandemq doctor"


def test_a_worker_whose_reconciler_fails_every_turn_is_late_and_red(
    work: Bench, run: Run, mysql_server: MySQLServer, mysql_url: str
) -> None:
    work.worker("-c", "1", "--no-mover").ready()
    eventually(lambda: run()[0] == 0, 60, run)
    database = mysql_url.rsplit("/", 1)[1]
    mysql_server.sql("RENAME TABLE tandemq_leaders TO hidden_leaders", database=database)

    def is_late() -> bool:
        code, shape = run()
        return code == 1 and "is late: a loop of it has had no good turn lately" in str(shape["worker"])

    eventually(is_late, 90, run)
    assert run()[1]["database"] == "ok"
    mysql_server.sql("RENAME TABLE hidden_leaders TO tandemq_leaders", database=database)
    eventually(lambda: run()[0] == 0, 60, run)


def test_the_unsafe_policy_of_redis_is_named(work: Bench, run: Run, redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            _, shape = run()
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert "allkeys-lru" in str(shape["warnings"])
    assert run()[1]["warnings"] == []


def test_it_says_within_three_seconds_which_server_hangs_or_is_gone(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], own_redis: Callable[..., RedisServer],
    tmp_path: Path, weather: Weather,
) -> None:  # fmt: skip
    mysql, redis = own_mysql(), own_redis()
    settings = settings_for(mysql.url(mysql.create_database()), redis.url(), **QUICK)
    with bench(settings, tmp_path, {}) as work:

        def timed() -> tuple[str, str]:
            began = time.monotonic()
            found = work.app.health()
            assert time.monotonic() - began < 3.0 + weather.slack_s
            assert not found.is_healthy
            return found.database, found.redis

        assert timed() == ("", "")  # only the worker is missing
        redis.sigstop()
        database, broker = timed()
        assert (database, bool(broker)) == ("", True)
        redis.sigcont()
        mysql.sigstop()
        database, broker = timed()
        assert (bool(database), broker) == (True, "")
        redis.kill9()
        assert all(timed())
        mysql.kill9()
        assert all(timed())
