"""URLs, passwords, permissions and TLS against a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tandemq.broker import connect
from tandemq.broker.client import Connections, Role
from tandemq.broker.keys import Keys
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.servers import RedisServer, free_port
from tests.tls import make_authority, redis_options

PASSWORD = "p@ss#1/%:?"
LEVEL = Level("default", 10)

OwnRedis = Callable[..., RedisServer]


def make_broker(url: str) -> RedisBroker:
    return RedisBroker(Connections(url), Keys("t"), SystemClock())


@pytest.fixture
def locked(own_redis: OwnRedis) -> RedisServer:
    """A server whose password is set after it has started (the fixture's own ping gives none)."""
    server = own_redis()
    with server.client() as raw:
        raw.config_set("requirepass", PASSWORD)
    return server


def test_a_percent_encoded_password_of_special_characters_works(locked: RedisServer) -> None:
    broker = make_broker(f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{locked.port}/0")

    broker.push(LEVEL, [1])

    assert broker.pop([LEVEL], limit=1, wait_s=1).ids == (1,)
    broker.close()


@pytest.mark.parametrize(
    ("authority", "message"),
    [("", "wants a password: give it in TANDEMQ_REDIS_URL"), (":wrong@", "password of TANDEMQ_REDIS_URL was refused")],
)
def test_a_missing_or_wrong_password_names_the_setting(locked: RedisServer, authority: str, message: str) -> None:
    broker = make_broker(f"redis://{authority}127.0.0.1:{locked.port}/0")

    for call in (broker.ping, lambda: broker.push(LEVEL, [1]), lambda: broker.pop([LEVEL], limit=1, wait_s=1)):
        with pytest.raises(BrokerUnavailable, match=message) as caught:
            call()
        assert "wrong@" not in str(caught.value)


def test_a_user_that_may_touch_only_the_namespace_and_no_dangerous_command_is_enough(own_redis: OwnRedis) -> None:
    server = own_redis()
    with server.client() as raw:
        rules = ["on", ">pw", "~t:*", "+@all", "-@dangerous", "-@admin"]
        raw.execute_command("ACL", "SETUSER", "tq", *rules)
    broker = make_broker(f"redis://tq:pw@127.0.0.1:{server.port}/0")

    broker.push(LEVEL, [1])
    broker.delay(LEVEL, {2: 2})
    assert broker.promote(LEVEL, now_ms=9, limit=9) == 1
    assert broker.pop([LEVEL], limit=9, wait_s=1).ids == (1, 2)
    assert broker.mark_install("i") == "i"
    assert broker.begin_rebuild("default", old=None, new="g")

    stranger = RedisBroker(Connections(f"redis://tq:pw@127.0.0.1:{server.port}/0"), Keys("u"), SystemClock())
    with pytest.raises(BrokerUnavailable, match="lacks a permission"):
        stranger.push(LEVEL, [1])
    stranger.close()
    broker.close()


def test_the_database_number_and_the_client_names_are_used(own_redis: OwnRedis) -> None:
    server = own_redis()
    broker = make_broker(server.url(3))

    broker.push(LEVEL, [1])
    broker.pop([LEVEL], limit=1, wait_s=1)
    broker.ping()

    with server.client(3) as raw:
        assert raw.exists("t:queues")
        names = {client["name"] for client in raw.client_list()}
    assert {"tandemq-produce", "tandemq-block", "tandemq-serve"} <= names
    broker.close()


def test_a_unix_socket_works(own_redis: OwnRedis, tmp_path: Path) -> None:
    own_redis("--unixsocket", str(tmp_path / "s"))
    broker = make_broker(f"unix://{tmp_path / 's'}?db=2")

    broker.push(LEVEL, [1])

    assert broker.pop([LEVEL], limit=1, wait_s=1).ids == (1,)
    broker.close()


def test_connecting_is_left_to_the_first_command() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    broker = connect(Settings.load({}, database_url="mysql://db/x", redis_url=url), SystemClock())

    with pytest.raises(BrokerUnavailable, match="refused"):
        broker.ping()


def test_no_client_resends_or_waits_for_ever(redis_url: str) -> None:
    for options in ("", "?retry_on_timeout=yes&health_check_interval=3", "?socket_timeout=50"):
        connections = Connections(redis_url + options)
        for role in Role:
            with connections.use(role) as client:
                pool = client.connection_pool
                connection = pool.make_connection()
                assert connection.retry._retries == 0
                assert connection.retry_on_error == []
                assert connection.health_check_interval == 0
                assert 0 < connection.socket_timeout <= 50
                assert 0 < connection.socket_connect_timeout <= 1
                if role is Role.BLOCK:
                    assert connections.max_block_s < connection.socket_timeout / 2
                assert int(connection.protocol) == 2
        connections.close()


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a private authority (ca.pem) and a certificate for 127.0.0.1 (cert.pem, key.pem)."""
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls(own_redis: OwnRedis, authority: Path) -> int:
    port = free_port()
    own_redis(*redis_options(authority, port))
    return port


@pytest.mark.parametrize("options", ["ssl_ca_certs={ca}", "ssl_cert_reqs=none&ssl_check_hostname=false"])
def test_tls_works_with_a_private_authority_or_without_verification(tls: int, authority: Path, options: str) -> None:
    broker = make_broker(f"rediss://127.0.0.1:{tls}/0?{options.format(ca=authority / 'ca.pem')}")

    broker.push(LEVEL, [1])

    assert broker.pop([LEVEL], limit=1, wait_s=1).ids == (1,)
    broker.close()


def test_an_unknown_authority_names_the_option(tls: int) -> None:
    broker = make_broker(f"rediss://127.0.0.1:{tls}/0")

    with pytest.raises(BrokerUnavailable, match="ssl_ca_certs=FILE in TANDEMQ_REDIS_URL"):
        broker.ping()


def test_an_authority_file_that_is_missing_is_named(tls: int) -> None:
    broker = make_broker(f"rediss://127.0.0.1:{tls}/0?ssl_ca_certs=/nowhere/ca.pem")

    with pytest.raises(BrokerUnavailable, match="ssl_ca_certs"):
        broker.ping()


def test_tls_to_a_plain_port_says_so(redis_server: RedisServer) -> None:
    broker = make_broker(f"rediss://127.0.0.1:{redis_server.port}/0")

    with pytest.raises(BrokerUnavailable, match="a port that speaks TLS"):
        broker.ping()
