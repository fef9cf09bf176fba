"""``tandemq top`` in a real terminal, on real servers: shows, pauses, resumes, replays, outlives servers, quits."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer, RedisServer
from tests.terminal import Terminal
from tests.waiting import eventually
from tests.workers import Bench, bench, environment

QUICK = {"reconcile_s": 0.3, "mover_s": 0.05, "heartbeat_s": 0.5, "grace_s": 1.0}
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][;m]")
Open = Callable[..., Terminal]
#: Starts the program that follows where no SIGWINCH arrives.
UNTOLD = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH]);"
    " os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **QUICK), tmp_path, probe.environ) as made:
        yield made


@pytest.fixture
def opened() -> Iterator[Open]:
    """``opened(settings)``: ``tandemq top`` in a terminal."""
    made: list[Terminal] = []

    def start(
        settings: Settings, *, columns: int = 110, lines: int = 24, is_told: bool = True, **variables: str
    ) -> Terminal:
        command = [sys.executable, "-m", "tandemq", "top", "--interval", "0.3"]
        if not is_told:
            command = [sys.executable, "-c", UNTOLD, *command]
        made.append(Terminal(command, environment(settings, **variables), columns=columns, lines=lines))
        return made[-1]

    yield start
    for terminal in made:
        terminal.discard()


def row(screen: str, name: str) -> list[str]:
    """The cells of the row that begins with this."""
    return next((line.split() for line in screen.splitlines() if line.startswith(name)), [])


def test_it_shows_pauses_resumes_replays_and_quits(work: Bench, opened: Open) -> None:
    worker = work.worker("-q", "default", "-c", "2", "--fair", "--name", "alpha").ready()
    dead = [work.app.enqueue("fail", {}, max_retries=0).id for _ in range(5)]
    assert work.ended(dead) == {"dead": 5}
    # Only now: the newest kind is shown first, and two slots run side by side.
    dead += [work.app.enqueue("fail", {"text": "\x1b[31mEVIL\n"}, max_retries=0).id for _ in range(2)]
    assert work.ended(dead) == {"dead": 7}
    work.ids("noop", 30, queue="mail")
    top = opened(work.settings)
    screen = top.shows("QUEUE", "mail", "workers 1, busy 0/2", "dead 7", "ids in Redis 30")
    assert row(screen, "mail")[:3] == ["mail", "30", "0"]

    # Nothing else is open: mail is the row that is selected.
    top.keys("p")
    top.shows("queue mail is paused", "mail (paused)")
    (pause,) = work.app.pauses.list()
    assert (pause.name, pause.reason) == ("mail", "tandemq top")
    top.keys("p")
    top.shows("queue mail is paused")
    top.keys("r")
    top.shows("queue mail goes on")
    assert list(work.app.pauses.list()) == []
    eventually(lambda: "(paused" not in top.text())

    top.keys("w")
    screen = top.shows("HEARTBEAT", "alpha", "running", "fair")
    assert row(screen, "alpha")[:3] == ["alpha", "running", "0/2"]

    top.keys("d")
    screen = top.shows("LAST DIED", "ValueError", "EVIL")
    assert "\\x1b[NmEVIL" in screen
    assert not COLOUR.search(next(line for line in top.text(colours=True).splitlines() if "EVIL" in line))
    top.keys("R")
    top.shows("dead letters of fail ValueError? y/n")
    top.keys("n")
    top.shows("nothing was replayed")
    assert all(work.app.get(task_id).replays == 0 for task_id in dead)  # type: ignore[union-attr]
    # The newest kind is the first: the two with the ugly text. The other is below.
    top.keys("Down", "R")
    top.shows("replay 5 dead letters of fail ValueError? y/n")
    top.keys("y")
    top.shows("5 of fail ValueError are pending again")
    assert work.ended(dead) == {"dead": 7}
    assert [work.app.get(task_id).replays for task_id in dead] == [1] * 5 + [0] * 2  # type: ignore[union-attr]
    assert {r.action: r.n for r in work.app.audit().items} == {"pause": 1, "resume": 1, "replay": 5}

    top.keys("q")
    screen = top.shows("ended with 0")
    assert "QUEUE" not in screen
    assert worker.process.poll() is None


def test_rates_waits_and_busy_slots_of_running_work(work: Bench, opened: Open) -> None:
    work.worker("-c", "2", "--name", "alpha").ready()
    top = opened(work.settings)
    top.shows("no open tasks")
    for _ in range(400):
        work.app.enqueue("sleep", {"seconds": 0.1})
    top.shows("busy 2/2")
    eventually(lambda: 10 <= float(row(top.text(), "default")[5]) <= 25, 30, top.text)
    name, ready, running, oldest, came, _, failed, wait, *_ = row(top.text(), "default")
    assert (name, failed) == ("default", "0")
    assert 0 < int(ready) < 400
    assert int(running) >= 1
    assert oldest.endswith("s")
    assert wait.endswith("s")
    assert float(came) > 0
    shown = tandemq(work.settings, "top", "--once", "--interval", "1").out
    assert float(row(shown, "default")[5]) > 5
    assert row(shown, "alpha")[2] in {"1/2", "2/2"}


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_small_and_changing_terminals(work: Bench, opened: Open, is_told: bool) -> None:
    """Also where the signal that tells of a new size does not come through."""
    for i in range(30):
        work.ids("noop", 1, queue=f"queue{i:02}")
    top = opened(work.settings, columns=70, lines=12, is_told=is_told)
    screen = top.shows("queue00")
    assert "queue29" not in screen
    top.keys("G")
    top.shows("queue29")
    top.resize(30, 6)
    screen = top.shows("queue29", "tandemq")
    assert max(map(len, screen.splitlines())) <= 30
    top.resize(12, 2)
    time.sleep(0.5)
    top.keys("?")
    top.resize(120, 30)
    top.shows("KEYS AND COLUMNS", "replay all that were counted")
    top.keys("?")
    top.shows("queue05", "queue29", "SCHEDULED")
    top.keys("C-c")
    top.shows("ended with 0")


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_unless_they_are_not_wanted(
    work: Bench, opened: Open, variables: dict[str, str], is_coloured: bool
) -> None:
    work.app.pauses.pause("mail")
    top = opened(work.settings, **variables)
    top.shows("mail (paused)")
    assert bool(COLOUR.search(top.text(colours=True))) == is_coloured


def test_servers_that_are_away(
    settings_for: Callable[..., Settings],
    own_mysql: Callable[..., MySQLServer],
    own_redis: Callable[..., RedisServer],
    opened: Open,
    tmp_path: Path,
) -> None:
    mysql, redis = own_mysql(), own_redis()
    settings = settings_for(mysql.url(mysql.create_database()), redis.url())
    with bench(settings, tmp_path, {}) as made:
        made.ids("noop", 3)
    top = opened(settings)
    top.shows("ids in Redis 3")
    redis.kill9()
    screen = top.shows("REDIS IS AWAY")
    assert row(screen, "default")[1] == "3"
    redis.start()
    top.shows("ids in Redis 0")  # it came back empty, and no reconciler runs here
    mysql.kill9()
    screen = top.shows("NO ANSWER for")
    assert row(screen, "default")[1] == "3"  # what was seen last stays
    top.keys("?")  # and keys are answered
    top.shows("KEYS AND COLUMNS")
    top.keys("u", "p")
    top.shows("failed: ", "NO ANSWER")
    mysql.start()
    eventually(lambda: "NO ANSWER" not in top.text(), 60, top.text)
    mysql.sigstop()
    try:
        top.keys("d")
        top.shows("LAST DIED", timeout_s=10)
        top.keys("q")
        top.shows("ended with 0", timeout_s=30)
    finally:
        mysql.sigcont()

    mysql.kill9()
    late = opened(settings)
    late.shows("NO ANSWER", "waiting for the database")
    mysql.start()
    late.shows("default")


def test_without_a_terminal_it_says_what_to_use(work: Bench) -> None:
    assert "tandemq stats --watch" in tandemq(work.settings, "top", code=2).err


def test_a_terminal_that_is_too_simple(work: Bench, opened: Open) -> None:
    top = opened(work.settings, TERM="no-such-terminal")
    top.shows("tandemq stats --watch", "ended with 2")
