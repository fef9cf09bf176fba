"""The server that all processes of one data directory share: started on demand, never twice, and back after a crash."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis

from tandemq.broker import connect, embedded, embedded_server
from tandemq.broker.embedded import LOCK_FILE, LOG_FILE, PORT_FILE, ensure_server
from tandemq.broker.protocol import Broker
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable, ConfigurationError
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.contract.broker_bed import HandClock
from tests.waiting import eventually

LEVEL = Level("default", 10)
CLOCK = SystemClock()
ENSURE = """
import sys
from pathlib import Path
from tandemq.broker.embedded import ensure_server
from tandemq.core.clock import SystemClock
sys.stdin.readline()
print(ensure_server(Path(sys.argv[1]), SystemClock()))
"""


def server_pid(data: Path) -> int:
    return int((data / LOCK_FILE).read_text())


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory that does not exist yet; whatever serves it at the end is killed."""
    yield tmp_path / "data"
    with contextlib.suppress(OSError, ValueError):
        os.kill(server_pid(tmp_path / "data"), signal.SIGKILL)


def make_broker(data: Path) -> Broker:
    return connect(Settings.load({}, data_dir=str(data)), CLOCK)


def test_the_first_command_starts_a_server_that_other_brokers_share(data: Path) -> None:
    one, other = make_broker(data), make_broker(data)
    assert not data.exists()

    one.push(LEVEL, [1, 2])

    assert other.pop([LEVEL], limit=5, wait_s=1).ids == (1, 2)
    assert server_pid(data) not in children(), "the server is nobody's child"


def test_many_processes_that_start_at_once_get_one_server(data: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(embedded.__file__).parents[2])}
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", ENSURE, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            text=True,
        )
        for _ in range(6)
    ]

    urls = {starter.communicate("go\n", timeout=100)[0].strip() for starter in starters}

    assert [starter.returncode for starter in starters] == [0] * 6
    assert urls == {f"redis://127.0.0.1:{(data / PORT_FILE).read_text()}/0"}
    assert (data / LOG_FILE).read_text() == ""


def test_threads_that_start_at_once_start_one_process(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    started: list[object] = []
    spawn = embedded._spawn
    monkeypatch.setattr(embedded, "_spawn", lambda path: started.append(path) or spawn(path))

    with ThreadPoolExecutor(6) as pool:
        urls = set(pool.map(lambda _: ensure_server(data, CLOCK), range(6)))

    assert (len(urls), len(started)) == (1, 1)


def test_a_second_server_of_a_directory_ends_at_once_and_harms_nothing(data: Path) -> None:
    url = ensure_server(data, CLOCK)

    assert embedded_server.serve(data, CLOCK, threading.Event()) is False
    assert ensure_server(data, CLOCK) == url


def test_a_killed_server_comes_back_under_the_same_broker(data: Path) -> None:
    broker = make_broker(data)
    broker.push(LEVEL, [1])
    broker.pop([LEVEL], limit=1, wait_s=0)
    os.kill(server_pid(data), signal.SIGKILL)

    with pytest.raises(BrokerUnavailable):
        broker.pop([LEVEL], limit=1, wait_s=1)
    assert broker.pop([LEVEL], limit=1, wait_s=0.01).ids == ()
    broker.push(LEVEL, [2])
    assert broker.pop([LEVEL], limit=1, wait_s=1).ids == (2,)


def test_a_port_file_that_leads_to_nobody_or_to_a_stranger_is_not_believed(data: Path) -> None:
    stranger = embedded_server.make_server()
    threading.Thread(target=stranger.serve_forever, args=(0.02,), daemon=True).start()
    data.mkdir()
    foreign_port = stranger.server_address[1]
    for text in ("1", "x", "", "99999999", str(foreign_port)):
        (data / PORT_FILE).write_text(text)

        url = ensure_server(data, CLOCK)

        assert url.endswith(f":{(data / PORT_FILE).read_text()}/0")
        assert not url.endswith(f":{foreign_port}/0")
        make_broker(data).ping()
        os.kill(pid := server_pid(data), signal.SIGKILL)
        eventually(lambda pid=pid: not is_alive(pid))
    stranger.shutdown()
    stranger.server_close()


def test_the_server_is_still_known_after_everything_in_it_was_flushed(data: Path) -> None:
    url = ensure_server(data, CLOCK)
    with redis.Redis.from_url(url, protocol=2) as raw:
        raw.flushall()
        assert ensure_server(data, CLOCK) == url

        raw.script_flush()
    assert ensure_server(data, CLOCK) == url


def test_a_server_that_cannot_start_is_reported_with_its_log(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    clock = HandClock()
    monkeypatch.setattr(clock, "sleep", lambda _: time.sleep(0.02))

    with pytest.raises(BrokerUnavailable, match=LOG_FILE):
        ensure_server(data, clock)


def test_a_server_that_never_answers_is_waited_for_20_s_by_the_clock(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.mkdir()
    sleeper = data / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    clock, before = HandClock(), children()

    with pytest.raises(BrokerUnavailable, match="did not start"):
        ensure_server(data, clock)

    assert 20 <= sum(clock.slept) < 21
    assert children() == before


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(BrokerUnavailable, match=r"TANDEMQ_DATA_DIR .*file/data"):
        make_broker(tmp_path / "file" / "data").ping()


def test_without_fakeredis_the_error_names_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'tandemq\[embedded\]'"):
        make_broker(data)


# The server's end


@pytest.fixture
def served(data: Path) -> Iterator[tuple[HandClock, threading.Thread, threading.Event]]:
    """A server inside this process, on a clock moved by hand."""
    data.mkdir()
    clock, stop = HandClock(), threading.Event()
    thread = threading.Thread(target=embedded_server.serve, args=(data, clock, stop))
    thread.start()
    eventually((data / PORT_FILE).exists)
    (data / LOCK_FILE).write_text("")  # this process is not to be killed
    yield clock, thread, stop
    stop.set()
    thread.join()


def test_a_server_ends_half_a_minute_after_its_last_client(
    data: Path, served: tuple[HandClock, threading.Thread, threading.Event]
) -> None:
    clock, thread, _ = served
    broker = make_broker(data)
    broker.ping()

    clock.time += 100
    thread.join(1.2)
    assert thread.is_alive()
    broker.ping()

    broker.close()
    clock.time += 29
    thread.join(1.2)
    assert thread.is_alive()
    clock.time += 2
    thread.join(30)
    assert not thread.is_alive()
    assert not (data / PORT_FILE).exists()


def test_a_server_ends_when_its_directory_has_gone(
    data: Path, served: tuple[HandClock, threading.Thread, threading.Event]
) -> None:
    (data / PORT_FILE).unlink()

    served[1].join(30)

    assert not served[1].is_alive()


def test_a_server_told_to_end_removes_its_port_file(data: Path) -> None:
    ensure_server(data, CLOCK)
    os.kill(pid := server_pid(data), signal.SIGTERM)

    eventually(lambda: not is_alive(pid))

    assert not (data / PORT_FILE).exists()


def test_a_large_answer_arrives_whole_and_many_clients_at_once_are_served(data: Path) -> None:
    broker = make_broker(data)
    ids = [10**18 + n for n in range(100_000)]
    for start in range(0, len(ids), 2_000):  # each within the time-out, however slow the machine
        broker.push(LEVEL, ids[start : start + 2_000])

    assert broker.window(LEVEL, 100_000).ids == set(ids)

    idle = Level("idle", 0)
    with ThreadPoolExecutor(40) as pool:
        popped = list(pool.map(lambda _: broker.pop([idle], limit=1, wait_s=1).ids, range(40)))
    assert popped == [()] * 40
