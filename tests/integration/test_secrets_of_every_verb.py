"""Passwords and tokens are in no output of any verb, of the API or of a worker: not while all is well, nor when not."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import click
import httpx
import pytest
from click.testing import CliRunner

from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tests.apiprocess import ApiProcess
from tests.probe import Probe
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import APP, ROOT, Bench, bench, environment

#: As people write them, and as they stand in a URL.
PASSWORD, IN_URL = "canary1@pw:s", "canary1%40pw%3As"
REDIS_PASSWORD, REDIS_IN_URL = "canary2/pw#s", "canary2%2Fpw%23s"
#: What a verb is given; all others need nothing. Those that stay run as processes of their own.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "migrate": ("--check",), "enqueue": ("noop", "{}"), "show": ("1",), "why": ("1",), "cancel": ("1",),
    "pause": ("default",), "resume": ("default",), "drain": ("default", "--timeout", "1"), "dead show": ("1",),
    "dead export": ("-",), "dead import": ("{folder}/nothing.jsonl",), "dead purge": ("1", "--yes"),
    "dead replay": ("--all",), "dead replays show": ("1",), "dead replays pause": ("1",), "dead replays cancel": ("1",),
    "dead replays continue": ("1",), "top": ("--once", "--interval", "0.2"), "prune": ("--older-than", "7d", "--yes"),
    "queue set": ("default", "--max-retries", "3"), "token create": ("planted", "--role", "read"),
    "token revoke": ("planted",), "reconcile": ("--once",), "bench": ("--yes", "--tasks", "100"),
}  # fmt: skip
STAYING = ("worker", "mover", "api")
#: It makes servers of its own, and has no password.
ELSEWHERE = {*STAYING, "demo"}


def verbs(command: click.Command = tandemq_command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from verbs(below, (*words, name))
    else:
        yield " ".join(words), command


def leaks(text: str, *more: str) -> list[str]:
    return [line for line in text.splitlines() if any(secret in line for secret in ("canary", *more))]


@pytest.fixture
def planted(
    settings_for: Callable[..., Settings], mysql_server: MySQLServer, mysql_url: str,
    own_redis: Callable[..., RedisServer],
) -> Iterator[Settings]:  # fmt: skip
    """Both servers want a password that is easily found."""
    server = own_redis()
    with server.client() as client:
        client.config_set("requirepass", REDIS_PASSWORD)
    mysql_server.sql(f"CREATE USER planted2@'%' IDENTIFIED BY '{PASSWORD}'")
    mysql_server.sql(f"GRANT ALL ON {mysql_url.rsplit('/', 1)[1]}.* TO planted2@'%'")
    yield settings_for(
        re.sub(r"(?<=://)[^@]*", f"planted2:{IN_URL}", mysql_url), server.url().replace("://", f"://:{REDIS_IN_URL}@")
    )
    mysql_server.sql("DROP USER planted2@'%'")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _refused(settings: Settings) -> Settings:
    return replace(
        settings, database_url=settings.database_url.replace(IN_URL, f"{IN_URL}wrong"),
        redis_url=settings.redis_url.replace(REDIS_IN_URL, f"{REDIS_IN_URL}wrong"),
    )  # fmt: skip


def _redis_refused(settings: Settings) -> Settings:
    return replace(settings, redis_url=settings.redis_url.replace(REDIS_IN_URL, f"{REDIS_IN_URL}wrong"))


def _away(settings: Settings) -> Settings:
    changed = {
        name: getattr(settings, name).replace(f":{urlsplit(getattr(settings, name)).port}", f":{closed_port()}")
        for name in ("database_url", "redis_url")
    }
    return replace(settings, **changed)


def _no_database(settings: Settings) -> Settings:
    return replace(settings, database_url=settings.database_url.rpartition("/")[0] + "/nothing_there")


STATES = [lambda settings: settings, _refused, _redis_refused, _away, _no_database]


@pytest.mark.parametrize("state", STATES, ids=["well", "refused", "redis_refused", "away", "no_database"])
def test_no_verb_shows_a_password(planted: Settings, tmp_path: Path, state: Callable[[Settings], Settings]) -> None:
    settings = state(planted)
    (tmp_path / "nothing.jsonl").write_text("")
    shown = {}
    for verb, command in verbs():
        if verb in ELSEWHERE:
            continue
        given = [word.replace("{folder}", str(tmp_path)) for word in ARGUMENTS.get(verb, ())]
        has_json = any("--json" in flag.opts for flag in command.params)
        for more in ([], ["--json"]) if has_json else ([],):
            words = [*verb.split(), *given, *more]
            done = CliRunner().invoke(tandemq_command, words, env=environment(settings), standalone_mode=False)
            text = f"{done.output}\n{done.exception!r}"
            assert not isinstance(done.exception, click.UsageError), (words, text)
            assert leaks(text) == [], words
            shown[" ".join(words)] = text
    assert len(shown) > 45
    assert all(text.strip() for text in shown.values())


@pytest.mark.parametrize(
    ("state", "log_format"),
    [(_refused, "json"), (_redis_refused, "text"), (_away, "json"), (_no_database, "text")],
    ids=["refused", "redis_refused", "away", "no_database"],
)
def test_nothing_that_stays_shows_a_password(
    planted: Settings, state: Callable[[Settings], Settings], log_format: str, tmp_path: Path
) -> None:
    env = environment(replace(state(planted), log_format=log_format, log_level="debug"), NO_COLOR="1")
    running = {}
    for verb in STAYING:
        log = (tmp_path / verb).open("wb")
        command = [sys.executable, "-m", "tandemq", "-A", APP, verb, *(["--port", "0"] if verb == "api" else [])]
        running[verb] = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        for verb in STAYING:
            eventually(lambda v=verb: (tmp_path / v).stat().st_size or running[v].poll() is not None, 60)
        eventually(lambda: running["worker"].poll() is not None, 60, (tmp_path / "worker").read_text)
    finally:
        for process in running.values():
            process.terminate()
            process.wait(60)
    for verb in STAYING:
        said = (tmp_path / verb).read_text()
        assert said
        assert leaks(said) == [], verb


def test_no_token_and_no_password_is_in_what_the_api_and_a_worker_say(
    planted: Settings, tmp_path: Path, probe: Probe
) -> None:
    run = CliRunner()
    made = run.invoke(tandemq_command, ["token", "create", "planted", "--role", "operate"], env=environment(planted))
    assert made.exit_code == 0, made.output
    (token,) = re.findall(r"tq_\S+|\S{40,}", made.output)
    secrets = (token, token[-20:])
    with bench(planted, tmp_path, probe.environ) as work:
        port = closed_port()
        worker = work.worker("--metrics-port", str(port), TANDEMQ_LOG_LEVEL="debug").ready()
        assert work.ended(work.ids("noop", 3)) == {"succeeded": 3}
        said = [_served(work, tmp_path, token)]
        eventually(lambda: _page(port, "/metrics"), 60, worker.text)
        said += [_page(port, path) for path in ("/metrics", "/health/live", "/health/ready")]
        said.append(worker.text())
        for words in (["token", "list"], ["token", "list", "--json"], ["audit"], ["audit", "--json"], ["doctor"]):
            said.append(run.invoke(tandemq_command, words, env=environment(planted)).output)
    for text in said:
        assert text
        assert leaks(text, *secrets) == []


def _page(port: int, path: str) -> str:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).text
    except httpx.TransportError:
        return ""


def _served(work: Bench, folder: Path, token: str) -> str:
    """All that the API answers and logs to who has the token, and to who has one that is nearly it."""
    api, said = ApiProcess(work.settings, folder / "api.log", TANDEMQ_LOG_LEVEL="debug"), ""
    try:
        with api.client() as client:
            for bearer in (token, token[:-1], token + "x", token.upper()):
                headers = {"Authorization": f"Bearer {bearer}"}
                for path in ("/jobs", "/stats", "/metrics", "/health/ready", "/jobs/999", f"/{token[:6]}", "/dead"):
                    answer = client.get(path, headers=headers)
                    said += f"{answer.headers} {answer.text}\n"
                said += client.post("/jobs", headers=headers, json={"type": 5, "payload": {}}).text
                said += client.post("/jobs", headers=headers, content=b"{").text
    finally:
        api.process.terminate()
        api.wait()
    return said + api.text()
