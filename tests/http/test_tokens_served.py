"""Tokens on a served API over real servers: revoked in time, good through an outage, told to nobody."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from tandemq.cli import session
from tandemq.cli.entry import tandemq_command
from tandemq.core.settings import Settings
from tandemq.store import engines
from tests.api import ServedApi, app_of, served
from tests.proxy import Proxy
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather

TASK = {"type": "t", "payload": {}}


def secret_of(text: str) -> str:
    return text.split("_", 2)[2]


def test_a_revoked_token_is_refused_within_two_seconds(api: ServedApi, env: Settings, weather: Weather) -> None:
    # Revoked by another program than the one that serves.
    operators = app_of(env)
    made = operators.tokens.create("shop", ["produce"])
    with api.client(made.text) as client:
        assert client.post("/jobs", json=TASK).status_code == 201
        for _ in range(20):
            assert client.post("/jobs", json=TASK).status_code == 201
        operators.tokens.revoke("shop")
        revoked_at = time.monotonic()
        eventually(lambda: client.post("/jobs", json=TASK).status_code == 401)
        assert time.monotonic() - revoked_at <= 2.0 + weather.slack_s
        # Kept away for good: the API is not open again because no token is left.
        assert {client.post("/jobs", json=TASK).status_code for _ in range(3)} == {401}
    operators.close()


def test_an_outage_of_the_database_is_503_to_who_was_let_in_and_401_to_nobody_new(
    env: Settings, mysql_server: MySQLServer
) -> None:
    with Proxy(*mysql_server.address) as proxy:
        through = replace(env, database_url=env.database_url.replace(f":{mysql_server.port}/", f":{proxy.port}/"))
        with app_of(env) as operators:
            made = operators.tokens.create("shop", ["produce"])
        with served(through) as api, served(through) as late, api.client() as client, late.client() as early:
            mine = {"Authorization": f"Bearer {made.text}"}
            assert client.post("/jobs", json=TASK, headers=mine).status_code == 201
            proxy.refuse = True
            proxy.cut()
            for _ in range(3):
                refused = client.post("/jobs", json=TASK, headers=mine)
                assert (refused.status_code, refused.json()["type"]) == (503, "urn:tandemq:problem:unavailable")
                assert int(refused.headers["Retry-After"]) > 0
            assert client.post("/jobs", json=TASK).status_code == 401
            assert client.post("/jobs", json=TASK, headers={"Authorization": "Bearer x"}).status_code == 401
            # This one has not read the tokens yet: it cannot know.
            for headers in (mine, {}):
                assert early.post("/jobs", json=TASK, headers=headers).status_code == 503
            assert early.get("/health/live").status_code == 200
            proxy.refuse = False
            for one in (client, early):
                eventually(lambda one=one: one.post("/jobs", json=TASK, headers=mine).status_code == 201, 60)


def test_a_token_whose_commit_was_not_answered_is_made_once(env: Settings, mysql_server: MySQLServer) -> None:
    with Proxy(*mysql_server.address) as proxy:
        through = replace(env, database_url=env.database_url.replace(f":{mysql_server.port}/", f":{proxy.port}/"))
        with app_of(through) as app:
            assert app.tokens.list() == []  # connected
            proxy.swallow(b"COMMIT")
            made = app.tokens.create("shop", ["produce"])
            assert proxy.hits == 1
            assert [token.id for token in app.tokens.list()] == [made.id]
            assert [record.action for record in app.audit().items] == ["token_create"]
            proxy.swallow(b"COMMIT")
            app.tokens.revoke("shop")
            assert proxy.hits == 2
            assert [token.state for token in app.tokens.list()] == ["revoked"]
            assert [record.action for record in app.audit().items] == ["token_revoke", "token_create"]


def test_what_a_caller_does_is_in_the_audit_log_under_the_name_of_its_token(api: ServedApi) -> None:
    made = api.app.tokens.create("ops-1", ["operate"])
    task = api.app.enqueue("t", {}, delay=3600)
    with api.client(made.text) as client:
        cancelled = client.post(f"/jobs/{task.id}/cancel", json={"reason": "not wanted"})
        assert cancelled.status_code == 200, cancelled.text
    record = api.app.audit(task_id=task.id).items[0]
    assert (record.who, record.action, record.reason) == ("token ops-1", "cancel", "not wanted")


def test_a_rate_is_429_with_the_time_to_wait(env: Settings) -> None:
    with served(env, rate=0.5) as api:
        made = api.app.tokens.create("shop", ["read"])
        with api.client(made.text) as client:
            assert client.get("/jobs/1").status_code == 404
            late = eventually(lambda: (one := client.get("/jobs/1")).status_code == 429 and one)
            assert late.headers["Retry-After"] in {"1", "2"}
            assert late.headers["Content-Type"] == "application/problem+json"
            assert late.json()["title"] == "Too many requests"
            eventually(lambda: client.get("/jobs/1").status_code == 404)


def test_a_token_is_told_to_nobody(
    api: ServedApi, env: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that anybody can read of a run: answers, logs at DEBUG, the verbs, the database, the list of processes."""
    caplog.set_level(logging.DEBUG)
    made = {role: api.app.tokens.create(role, [role]) for role in ("read", "produce", "operate")}
    ended = api.app.tokens.create("ended", ["read"])
    api.app.tokens.revoke("ended", reason="leaked")
    seen: list[str] = [repr(one) for one in (*made.values(), ended)]
    wrong = made["read"].text[:-1] + ("A" if made["read"].text[-1] != "A" else "B")

    def note(answer: httpx.Response) -> None:
        seen.extend([str(answer.status_code), repr(answer.headers), answer.text])

    for text in (*(one.text for one in made.values()), ended.text, wrong):
        with api.client(text) as client:
            note(client.post("/jobs", json=TASK))
            note(client.get("/jobs", params={"token": text}))
            note(client.get(f"/jobs/{text}"))
            note(client.get("/metrics"))
            note(client.post("/jobs", json={**TASK, "token": text}, headers={"X-Api-Key": text}))
            note(client.post("/jobs", content=b"{", headers={"Authorization": f"Token {text}"}))
    assert {"201", "400", "401", "403"} <= set(seen)

    monkeypatch.setattr(session, "TandemQ", lambda: app_of(env))
    for verb in ("token list", "token list --json", "audit --json", "audit"):
        done = CliRunner().invoke(tandemq_command, verb.split())
        assert "read" in done.output
        seen.append(done.output)
    # httpx and httpcore are the client's own.
    records = [record for record in caplog.records if not record.name.startswith("http")]
    seen += [f"{record.getMessage()} {record.args!r} {record.exc_text}" for record in records]
    assert "refused a token" in caplog.text
    seen += _rows(env)
    seen += [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]

    secrets = [secret_of(one) for one in (*(one.text for one in made.values()), ended.text, wrong)]
    assert [text for text in seen if any(secret in text for secret in secrets)] == []


def _rows(env: Settings) -> list[str]:
    engine = sa.create_engine(engines.url_of(env), poolclass=sa.NullPool)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        assert "tandemq_api_tokens" in tables
        return [repr(row) for table in tables for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:  # it has just ended
        return ""
