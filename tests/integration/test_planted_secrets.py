"""A handler's exception that quotes the passwords of both URLs: nothing that shows tasks shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli import session
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tests.api import served
from tests.http.hands import claim, enqueue, send
from tests.probe import Probe
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.workers import Bench, bench

PASSWORD, REDIS_PASSWORD = "canary77@pw", "canary88/pw"
QUOTED = f"cannot log in with {PASSWORD} and canary77%40pw"
OWN = "my-own-canary-in-a-payload"


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_server: MySQLServer, mysql_url: str,
    own_redis: Callable[..., RedisServer], tmp_path: Path, probe: Probe,
) -> Iterator[Bench]:  # fmt: skip
    database = mysql_url.rsplit("/", 1)[1]
    redis = own_redis()
    with redis.client() as client:
        client.config_set("requirepass", REDIS_PASSWORD)
    mysql_server.sql(f"CREATE USER planted@'%' IDENTIFIED BY '{PASSWORD}'")
    mysql_server.sql(f"GRANT ALL ON {database}.* TO planted@'%'")
    settings = settings_for(
        re.sub(r"(?<=://)[^@]*", "planted:canary77%40pw", mysql_url),
        redis.url().replace("://", "://:canary88%2Fpw@"), mover_s=0.05,
    )  # fmt: skip
    try:
        with bench(settings, tmp_path, probe.environ) as made:
            yield made
    finally:
        mysql_server.sql("DROP USER planted@'%'")


def leaks(text: str) -> list[str]:
    return [line for line in text.splitlines() if "canary77" in line or "canary88" in line]


def test_no_verb_and_no_answer_shows_a_password_that_an_exception_quotes(
    work: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = work.worker("-c", "2", app="tests.apps.quoting:app", TANDEMQ_LOG_FORMAT="json").ready()
    dead, retrying = work.app.enqueue("quotes", {"note": OWN}, max_retries=0), work.app.enqueue("quotes", {})
    assert work.ended([dead.id]) == {"dead": 1}
    eventually(lambda: (task := work.app.get(retrying.id)) is not None and task.last_error, 60)
    assert "login failed: mysql" in str(work.app.get(dead.id))

    monkeypatch.setattr(session, "TandemQ", lambda: work.app)
    exported = tmp_path / "out.jsonl"
    shown = ""
    for arguments in (
        *[(*verb, str(t.id)) for t in (dead, retrying) for verb in (("show",), ("show", "--json"), ("why",))],
        ("list",), ("list", "--json"), ("dead", "list"), ("dead", "list", "--json"), ("dead", "show", str(dead.id)),
        ("dead", "list", "--group-by", "error"), ("dead", "export", str(exported)), ("audit",), ("stats",),
        ("workers",), ("health",), ("doctor",), ("top", "--once"),
    ):  # fmt: skip
        done = CliRunner().invoke(tandemq_command, arguments, standalone_mode=False)
        assert done.exception is None, (arguments, done.output, done.exception)
        assert leaks(done.output) == [], arguments
        shown += done.output
    assert "***" in shown
    assert OWN in shown
    assert leaks(exported.read_text()) == []

    with served(work.settings) as api, api.client() as client:
        enqueue(client, "elsewhere", queue="remote")
        (job,) = claim(client, queues=["remote"])
        remote, proof = job["id"], {"lease_token": job["lease_token"]}
        failed = send(client, "fail", remote, {**proof, "error": QUOTED, "traceback": QUOTED, "retryable": False})
        assert failed[0] == 200
        assert leaks(str(failed)) == []
        ids = (remote, dead.id, retrying.id)
        for path in (*[f"/jobs/{task_id}" for task_id in ids], "/jobs", "/dead", "/stats", "/health/ready", "/metrics"):
            assert leaks(client.get(path).text) == [], path
        assert "***" in client.get(f"/jobs/{dead.id}").text

    assert leaks(worker.text()) == []
    for line in worker.text().splitlines():
        json.loads(line)
