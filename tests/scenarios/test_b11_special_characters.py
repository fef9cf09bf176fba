"""B11: a password with special characters in a URL, for the API (the other commands: tests/integration/test_cli.py).

Required: percent-encoded it works, for both servers; raw it is refused with the hint to encode it, and nothing connects
anywhere. The password shows up in no output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tandemq.core.settings import Settings
from tests.apiprocess import running
from tests.scenarios.command_line import tandemq
from tests.servers import MySQLServer, RedisServer

pytestmark = pytest.mark.scenario

PASSWORD = "p@ss#1/%:?"


@pytest.fixture
def guarded(
    settings_for: Callable[..., Settings],
    mysql_server: MySQLServer,
    mysql_url: str,
    own_redis: Callable[..., RedisServer],
) -> Iterator[Settings]:
    """Both servers want the password."""
    redis, user = own_redis(), f"b11_{os.getpid()}"
    settings = settings_for(mysql_url, redis.url())
    mysql_server.sql("CREATE USER %s@'%%' IDENTIFIED BY %s", (user, PASSWORD))
    mysql_server.sql("GRANT ALL ON *.* TO %s@'%%'", (user,))
    with redis.client() as client:
        client.config_set("requirepass", PASSWORD)
    secret = quote(PASSWORD, safe="")
    scheme, _, rest = mysql_url.partition("://")
    yield Settings.load(
        settings.environ()
        | {
            "TANDEMQ_DATABASE_URL": f"{scheme}://{user}:{secret}@{rest.rpartition('@')[2]}",
            "TANDEMQ_REDIS_URL": redis.url().replace("redis://", f"redis://:{secret}@"),
        }
    )
    mysql_server.sql("DROP USER %s@'%%'", (user,))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_encoded_it_works_in_the_api(guarded: Settings, tmp_path: Path, workers: str) -> None:
    with running(guarded, tmp_path, "--workers", workers) as api, api.client() as client:
        assert client.post("/jobs", json={"type": "a"}).status_code == 201
        claimed = client.post("/jobs/claim", json={"worker_id": "w", "wait": 20})
        assert claimed.status_code == 200, "through Redis"
        ready = client.get("/health/ready").json()
        assert ready == {"status": "ok", "database": "ok", "redis": "ok"}
        api.process.terminate()
        assert api.wait() == 0
        assert "p@ss" not in api.text()
        assert quote(PASSWORD, safe="") not in api.text()


@pytest.mark.parametrize("name", ["TANDEMQ_DATABASE_URL", "TANDEMQ_REDIS_URL"])
def test_raw_it_is_refused_with_the_hint(guarded: Settings, name: str) -> None:
    url = guarded.environ()[name].replace(quote(PASSWORD, safe=""), PASSWORD)
    refused = tandemq(guarded, "api", "--port", "0", code=2, **{name: url})
    assert "percent-encode" in refused.err
    assert name in refused.err
    assert "p@ss" not in refused.err
    assert "listening" not in refused.err


def test_a_wrong_password_is_told_at_the_start(guarded: Settings) -> None:
    url = guarded.database_url.replace(quote(PASSWORD, safe=""), "wrong")
    refused = tandemq(guarded, "api", "--port", "0", code=3, TANDEMQ_DATABASE_URL=url)
    assert "refused the connection" in refused.err
    assert "wrong" not in refused.err
