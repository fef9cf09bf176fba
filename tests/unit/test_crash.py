"""Crash points: what the specification may say, and what happens at a point that is armed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.core import crash
from tandemq.core.crash import crash_point
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """Nothing is armed before or after a test."""
    crash.arm(None)
    yield
    crash.arm(None)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("claim.never:1:kill9", "'claim.never' is no crash point; known: .*pop.after"),
        ("pop.after", "must be point:n:action"),
        ("pop.after:1", "must be point:n:action"),
        ("pop.after:kill9", "must be point:n:action"),
        ("pop.after:0:kill9", "n counted from 1"),
        ("pop.after:-1:kill9", "n counted from 1"),
        ("pop.after:1.5:kill9", "n counted from 1"),
        ("pop.after::kill9", "n counted from 1"),
        ("pop.after:1:", "'' is no action; use one of kill9, stop"),
        ("pop.after:1:explode", "'explode' is no action"),
        ("pop.after:1:barrier", "a barrier needs TANDEMQ_CRASH_DIR"),
        ("pop.after:1:sleep:soon", "'soon' is no number of seconds from 0 to 3600"),
        ("pop.after:1:sleep:-1", "no number of seconds"),
        ("pop.after:1:sleep:nan", "no number of seconds"),
        ("pop.after:1:sleep:3600", "no number of seconds"),
        ("pop.before:1:raise,pop.after:1:explode", "TANDEMQ_CRASH='pop.after:1:explode'"),
        ("pop.before:1:raise,", "must be point:n:action"),
    ],
)
def test_what_is_no_crash_point_is_refused_and_arms_nothing(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        crash.arm(spec)

    for point in ("pop.before", "pop.after"):
        crash_point(point)


def test_the_names_are_arrow_and_moment() -> None:
    assert len(crash.POINTS) >= 40
    assert {point.partition(".")[2].partition("_")[0] for point in crash.POINTS} == {"before", "after", "signal"}


@pytest.mark.parametrize("nothing", [None, ""])
def test_nothing_armed_is_nothing_done(nothing: str | None) -> None:
    crash.arm("pop.after:*:raise")
    crash.arm(nothing)

    crash_point("pop.after")


def test_only_the_pass_that_was_named_acts() -> None:
    crash.arm("pop.after:3:raise")

    for _ in range(2):
        crash_point("pop.after")
        crash_point("pop.before")
    with pytest.raises(RuntimeError, match=r"crash point pop\.after"):
        crash_point("pop.after")
    crash_point("pop.after")


def test_a_star_is_every_pass() -> None:
    crash.arm("pop.after:*:raise")

    for _ in range(3):
        with pytest.raises(RuntimeError):
            crash_point("pop.after")


def test_several_points_count_each_for_itself() -> None:
    crash.arm("pop.before:1:raise, pop.after:2:raise")

    with pytest.raises(RuntimeError, match="before"):
        crash_point("pop.before")
    crash_point("pop.after")
    with pytest.raises(RuntimeError, match="after"):
        crash_point("pop.after")


def test_one_point_may_be_armed_for_two_passes() -> None:
    crash.arm("pop.after:1:raise,pop.after:3:raise")

    outcomes = []
    for _ in range(4):
        try:
            crash_point("pop.after")
        except RuntimeError:
            outcomes.append("raised")
        else:
            outcomes.append("passed")
    assert outcomes == ["raised", "passed", "raised", "passed"]


def test_sleep_takes_as_long_as_it_says() -> None:
    crash.arm("pop.after:1:sleep:0.05")
    began = time.monotonic()

    crash_point("pop.after")

    assert 0.05 <= time.monotonic() - began < 0.9, "a second is what it sleeps when nothing is said"


def test_a_barrier_waits_for_its_file(tmp_path: Path) -> None:
    crash.arm("pop.after:1:barrier", tmp_path)
    passed = threading.Event()

    def run() -> None:
        crash_point("pop.after")
        passed.set()

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: list(tmp_path.iterdir()))
    assert not passed.wait(0.05)
    (tmp_path / "pop.after.go").touch()

    assert passed.wait(10)
    thread.join()


def test_every_action_leaves_its_mark_first(tmp_path: Path) -> None:
    crash.arm("pop.after:2:raise,pop.before:*:sleep:0", tmp_path)

    crash_point("pop.after")
    with pytest.raises(RuntimeError):
        crash_point("pop.after")
    for _ in range(2):
        crash_point("pop.before")

    pid = os.getpid()
    marks = sorted(mark.name for mark in tmp_path.iterdir())
    assert marks == [f"pop.after.{pid}.2", f"pop.before.{pid}.1", f"pop.before.{pid}.2"]


def test_without_a_folder_there_are_no_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    crash.arm("pop.after:1:sleep:0", "")

    crash_point("pop.after")

    assert list(tmp_path.iterdir()) == []


def test_a_call_may_be_armed_beside_a_specification() -> None:
    called: list[str] = []
    crash.arm("pop.after:2:raise")
    crash.arm_call("pop.after", lambda: called.append("each"))
    crash.arm_call("pop.after", lambda: called.append("second"), 2)

    crash_point("pop.after")
    with pytest.raises(RuntimeError):
        crash_point("pop.after")
    crash_point("pop.after")

    assert called == ["each", "each"], "what raises hides what was armed after it in that pass"
    with pytest.raises(ValueError, match="no crash point"):
        crash.arm_call("pop.never", lambda: None)


PROGRAM = """
import os, sys, threading
from tandemq.core import crash
crash.arm(sys.argv[1], sys.argv[2])
def run():
    crash.crash_point("pop.after")
    os.write(1, b"went on")
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(("action", "code"), [("kill9", -signal.SIGKILL), ("exit", 70)])
def test_a_process_dies_there_and_says_no_more(action: str, code: int, tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"pop.after:1:{action}", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )

    assert (died.returncode, died.stdout) == (code, b"")
    assert len(list(tmp_path.glob("pop.after.*.1"))) == 1


def test_a_thread_that_stops_its_process_does_nothing_more_before_it_is_continued(tmp_path: Path) -> None:
    """Red under: SIGSTOP to the process: its main thread takes the signal, and this one runs on for a while."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "pop.after:1:stop", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    ) as stopped:
        assert stopped.stdout is not None
        try:
            _, status = os.waitpid(stopped.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            os.set_blocking(stopped.stdout.fileno(), False)
            assert stopped.stdout.read() is None
            stopped.send_signal(signal.SIGCONT)
            os.set_blocking(stopped.stdout.fileno(), True)
            assert stopped.stdout.read() == b"went on"
            assert stopped.wait(30) == 0
        finally:
            if stopped.returncode is None:
                stopped.kill()
