"""``tandemq stats --watch``: again and again, through an outage, until Ctrl-C or a closed pipe."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandemq.core.settings import Settings
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.workers import ROOT, environment


@contextmanager
def watching(settings: Settings, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandemq", "stats", "--watch", "0.1", *arguments],
            cwd=ROOT, env=environment(settings), stdout=out, stderr=err,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_goes_on_through_an_outage_and_ends_cleanly_on_ctrl_c(
    settings_for: Callable[..., Settings], own_mysql: Callable[..., MySQLServer], redis_url: str, tmp_path: Path
) -> None:
    server = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url)
    out, err = tmp_path / "out", tmp_path / "err"
    with watching(settings, tmp_path) as process:
        eventually(lambda: out.read_text().count("no open tasks") >= 3, 60, err.read_text)
        server.kill9()
        eventually(lambda: "no answer: " in err.read_text(), 60)
        before = out.read_text().count("no open tasks")
        server.start()
        eventually(lambda: out.read_text().count("no open tasks") > before, 60, err.read_text)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert out.read_text().count("-- 20") == out.read_text().count("no open tasks")
    assert "Traceback" not in err.read_text()


def test_one_line_of_json_each_time(env: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with watching(env, tmp_path, "--json") as process:
        eventually(lambda: out.read_text().count("\n") >= 2, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[0]["at"] < lines[1]["at"]
    assert lines[0]["queues"] == {}


def test_a_closed_pipe_ends_it_without_a_word(env: Settings) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tandemq", "stats", "--watch", "0.1"],
        cwd=ROOT, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline().startswith(b"-- 20")
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
