"""The test tools themselves: servers that start, die and come back, a proxy that loses answers, a probe that counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest
import redis

from tests.probe import Probe, note
from tests.proxy import Proxy
from tests.servers import ROOT, MySQLServer, RedisServer
from tests.waiting import eventually


def test_a_fresh_database_is_empty_and_of_its_own(mysql_server: MySQLServer, mysql_url: str) -> None:
    name = mysql_url.rsplit("/", 1)[1]

    assert mysql_server.sql("SHOW TABLES", database=name) == []


def test_mysql_keeps_what_was_committed_over_a_kill(own_mysql: Callable[..., MySQLServer]) -> None:
    server = own_mysql()
    name = server.create_database()
    server.sql("CREATE TABLE t (a INT) ENGINE=InnoDB", database=name)
    server.sql("INSERT INTO t VALUES (7)", database=name)

    server.kill9()
    with pytest.raises(pymysql.OperationalError):
        server.sql("SELECT 1")
    server.start()

    assert server.sql("SELECT a FROM t", database=name) == [(7,)]


def test_the_general_log_holds_what_ran_while_it_was_on(own_mysql: Callable[..., MySQLServer]) -> None:
    server = own_mysql()
    server.sql("SELECT 41")

    server.general_log(True)
    server.sql("SELECT 42")
    server.general_log(False)
    server.sql("SELECT 43")

    log = server.read_general_log()
    assert "SELECT 42" in log
    assert "SELECT 41" not in log
    assert "SELECT 43" not in log


def test_redis_forgets_everything_over_a_kill(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with server.client() as client:
        client.set("a", 1)

    server.kill9()
    server.start()

    with server.client() as client:
        assert client.get("a") is None


def test_a_frozen_redis_does_not_answer_until_it_thaws(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()

    server.sigstop()
    with server.client(socket_timeout=0.2) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    server.sigcont()

    assert eventually(server.ping)


@pytest.mark.servers
def test_servers_die_with_a_test_run_that_is_killed() -> None:
    code = (
        "import os; from tests.servers import RedisServer; s = RedisServer(); s.start();"
        " print(s.pid, s.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    pid, folder = done.stdout.split()

    def gone() -> bool:
        return not _alive(int(pid)) and not Path(folder).exists()

    eventually(gone, 30, "the server or its folder outlived the test run")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_swallowed_answer_leaves_the_command_done(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with server.client() as direct, Proxy("127.0.0.1", server.port) as proxy:
        direct.rpush("list", "a", "b")
        client = _through(proxy)
        proxy.swallow(b"LPOP")

        with pytest.raises(redis.ConnectionError):
            client.lpop("list")

        assert direct.lrange("list", 0, -1) == [b"b"]
        assert client.lpop("list") == b"b"
        assert proxy.hits == 1
        client.close()


def test_a_stopped_request_never_arrives(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with server.client() as direct, Proxy("127.0.0.1", server.port) as proxy:
        direct.rpush("list", "a")
        client = _through(proxy)
        proxy.stop_before(b"LPOP")

        with pytest.raises(redis.ConnectionError):
            client.lpop("list")

        assert direct.llen("list") == 1
        client.close()


def test_a_commit_whose_answer_is_lost_is_committed(mysql_server: MySQLServer, mysql_url: str) -> None:
    name = mysql_url.rsplit("/", 1)[1]
    mysql_server.sql("CREATE TABLE t (a INT) ENGINE=InnoDB", database=name)
    with Proxy(*mysql_server.address) as proxy:
        behind = mysql_server.connect(name, host="127.0.0.1", port=proxy.port, autocommit=False)
        with behind.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
        proxy.swallow(b"COMMIT")

        with pytest.raises(pymysql.OperationalError):
            behind.commit()

    eventually(lambda: mysql_server.sql("SELECT a FROM t", database=name) == [(1,)], message="the row")


def test_silence_holds_back_and_lets_go(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with Proxy("127.0.0.1", server.port) as proxy:
        hasty, patient = _through(proxy, socket_timeout=1.0), _through(proxy)

        proxy.silent = True
        with pytest.raises(redis.TimeoutError):
            hasty.ping()
        proxy.silent = False

        assert patient.ping()
        hasty.close()
        patient.close()


def test_a_cut_resets_what_stands_and_a_refusal_what_comes(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with Proxy("127.0.0.1", server.port) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=30) as plain:
            plain.sendall(b"PING\r\n")
            assert plain.recv(100) == b"+PONG\r\n"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                plain.recv(100)

        client = _through(proxy)
        proxy.refuse = True
        proxy.cut()
        client.connection_pool.disconnect()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        client.close()


def test_a_held_request_arrives_later(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    with Proxy("127.0.0.1", server.port) as proxy:
        client = _through(proxy)
        proxy.hold(b"ECHO", 0.15)

        begun = time.monotonic()
        assert client.echo("x") == b"x"

        assert time.monotonic() - begun >= 0.15
        client.close()


def _through(proxy: Proxy, **options: object) -> redis.Redis:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    client = redis.Redis(host="127.0.0.1", port=proxy.port, retry=Retry(NoBackoff(), 0), **options)
    client.ping()
    return client


def test_the_probe_finds_doubles_and_gaps(probe: Probe) -> None:
    for what in ("start", "end"):
        note(what, 1, 1, probe.path)
    probe.assert_once([1])

    note("start", 2, 1, probe.path)
    note("start", 1, 2, probe.path)
    with pytest.raises(AssertionError, match=r"1 never ran: \[3\]; 1 ran twice: \[1\]; 1 did not end: \[2\]"):
        probe.assert_once([1, 2, 3])


def test_the_probe_finds_runs_that_overlap(probe: Probe) -> None:
    note("start", 5, 1, probe.path)
    note("start", 5, 2, probe.path)
    probe.assert_never_twice_at_once()  # the first may have died: it never ended

    note("end", 5, 1, probe.path)
    with pytest.raises(AssertionError, match="task 5 ran twice at once"):
        probe.assert_never_twice_at_once()


def test_waiting_ends_at_its_deadline_and_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the moon; last answer: 0"):
        eventually(lambda: 0, 0.05, "the moon")

    assert eventually(lambda: [1], 0.05) == [1]
