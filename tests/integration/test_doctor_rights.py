"""The doctor's trial of its rights runs nothing, whatever the server refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import tandemq.broker
from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.servers import RedisServer

LOW = Level("default", 0)


@pytest.fixture
def limited(redis_server: RedisServer, redis_url: str) -> Iterator[Callable[[str], str]]:
    """The URL of a user that may do everything but these."""
    client = redis_server.client()

    def make(rules: str) -> str:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", *rules.split())
        return redis_url.replace("redis://", "redis://limited:pw@")

    yield make
    client.execute_command("ACL", "DELUSER", "limited")


def everything(server: RedisServer) -> dict[bytes, bytes]:
    client = server.client()
    return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize(
    ("rules", "denied"), [("", ()), ("-lpush -zadd", ("LPUSH", "ZADD")), ("-multi", None), ("-discard", ())]
)
def test_nothing_is_run_to_find_out_what_may_be_run(
    settings_for: Callable[..., Settings],
    mysql_url: str,
    redis_url: str,
    redis_server: RedisServer,
    limited: Callable[[str], str],
    rules: str,
    denied: tuple[str, ...] | None,
) -> None:
    settings = settings_for(mysql_url, redis_url)
    broker = tandemq.broker.connect(settings, SystemClock())
    broker.push(LOW, [101, 102, 103])
    before = everything(redis_server)
    restricted = tandemq.broker.connect(settings_for(mysql_url, limited(rules)), SystemClock())
    assert restricted.redis_facts().denied == denied
    assert everything(redis_server) == before
    restricted.ping()
    assert broker.pop([LOW], limit=3, wait_s=0).ids == (101, 102, 103)
    for one in (broker, restricted):
        one.close()
