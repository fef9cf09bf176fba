"""A producer asks whose namespace it is before its first push; with Redis frozen it waits for one of the two only."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tandemq.broker import connect
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests.servers import RedisServer
from tests.weather import Weather


@pytest.mark.servers
def test_a_frozen_server_is_waited_for_once(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    broker = connect(Settings(database_url="mysql://h/d", redis_url=server.url()), SystemClock())
    server.sigstop()
    try:
        with pytest.raises(BrokerUnavailable):
            broker.install()
        with Weather() as weather:
            begun = time.monotonic()
            with pytest.raises(BrokerUnavailable, match="not tried again"):
                broker.push(Level("default", 0), [1])
            took_s = time.monotonic() - begun
        assert took_s < 0.5 + weather.slack_s
    finally:
        server.sigcont()
        broker.close()
