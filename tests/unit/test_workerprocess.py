"""A worker in a process of its own: which settings it gets, and that it is gone afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from tandemq.core.settings import Settings
from tandemq.workerprocess import WorkerProcess, _environ


def test_the_worker_gets_these_settings_and_nothing_of_its_callers() -> None:
    settings = Settings.load({}, database_url="mysql://h/shop", redis_url="redis://h/1", lease_s=20.0, embedded=False)
    caller = {
        "HOME": "/home/me", "PYTHONPATH": "/mine", "TANDEMQ_LEASE_S": "9", "TANDEMQ_WORKER_QUEUES": "high",
        "TANDEMQ_CRASH": "pop.after:1:exit",
    }  # fmt: skip

    environ = _environ(settings, caller)

    assert Settings.load(environ) == settings
    assert "TANDEMQ_WORKER_QUEUES" not in environ
    assert environ["HOME"] == "/home/me"
    assert environ["PYTHONPATH"].endswith(f"{os.pathsep}/mine")


def test_it_finds_the_package_that_started_it() -> None:
    import tandemq

    first = _environ(Settings(), {})["PYTHONPATH"].split(os.pathsep)[0]

    assert Path(first, "tandemq") == Path(tandemq.__file__).parent


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerProcess:
    """A stand-in for the worker that says a line and runs for ever."""
    worker = WorkerProcess("x:app", Settings(), os.environ, tmp_path / "log")
    program = "import time\nprint('a line', flush=True)\nwhile True: time.sleep(60)"
    monkeypatch.setattr(worker, "_command", [sys.executable, "-c", program])
    return worker


def test_it_is_gone_when_the_block_is_left_by_an_error(sleeper: WorkerProcess) -> None:
    with pytest.raises(ZeroDivisionError), sleeper:
        pid = sleeper._running.pid
        assert os.getsid(pid) == pid, "a Ctrl-C in the terminal is not for it"
        raise ZeroDivisionError

    assert not psutil.pid_exists(pid)


def test_one_that_does_not_stop_is_killed(
    sleeper: WorkerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tandemq.workerprocess.STOP_S", 0.1)
    program = (
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: time.sleep(9)"
    )
    monkeypatch.setattr(sleeper, "_command", [sys.executable, "-c", program])

    with sleeper:
        while "deaf" not in (tmp_path / "log").read_text():
            assert sleeper.wait(0.02) is None
        pid = sleeper._running.pid

    assert not psutil.pid_exists(pid)


def test_its_exit_code_and_its_last_words_are_known(sleeper: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys\nfor n in range(5): print('line', n)\nsys.exit(3)"
    monkeypatch.setattr(sleeper, "_command", [sys.executable, "-c", program])

    with sleeper:
        assert sleeper.wait(60) == 3
        assert sleeper.tail() == "line 2 / line 3 / line 4"


def test_a_worker_that_was_not_started_has_no_exit_code(sleeper: WorkerProcess) -> None:
    with pytest.raises(RuntimeError, match="not been started"):
        sleeper.wait(0)
