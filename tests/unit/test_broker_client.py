from __future__ import annotations

import pytest

from tandemq.broker.client import Connections, Role
from tandemq.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://:secret@h:notaport/0", "cannot be read"),
        ("redis://:secret@h/one", "must end in a database number, not 'one'"),
        ("redis://:secret@h/0?socket_timeout=x", "socket_timeout"),
        ("redis://:secret@h/0?socket_timeout=0", "socket_timeout=0.0 must be a number of seconds > 0"),
        ("redis://:secret@h/0?socket_timeout=nan", "socket_timeout=nan must be a number of seconds > 0"),
        ("redis://:secret@h/0?socket_connect_timeout=-1", "socket_connect_timeout"),
        ("redis://:secret@h/0?sokket_timeout=1", "sokket_timeout"),
        ("redis://:secret@h/0?ssl_ca_certs=f", "ssl_ca_certs"),
        ("redis://:secret@h/0?max_connections=-1", "max_connections"),
        ("http://:secret@h/0", "redis://, rediss://, unix://"),
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_connects(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")) as caught:
        Connections(url)

    assert "TANDEMQ_REDIS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://h", "redis://h/", "redis://h/7", "rediss://h:1/0", "unix:///run/r.sock?db=1"])
def test_usual_urls_are_accepted(url: str) -> None:
    Connections(url).close()


@pytest.mark.parametrize(
    ("query", "produce_s", "serve_s", "block_s"),
    [("", 1.0, 3.0, 3.1), ("?socket_timeout=0.4", 0.4, 0.4, 0.4), ("?socket_timeout=30", 1.0, 30.0, 30.0)],
)
def test_the_url_s_time_out_holds_for_all_but_slow_producers(
    query: str, produce_s: float, serve_s: float, block_s: float
) -> None:
    connections = Connections(f"redis://h/0{query}")

    given = []
    for role in (Role.PRODUCE, Role.SERVE, Role.BLOCK):
        with connections.use(role) as client:
            given.append(client.connection_pool.connection_kwargs["socket_timeout"])

    assert given == [produce_s, serve_s, block_s]
    assert 0 < connections.max_block_s < block_s / 2
