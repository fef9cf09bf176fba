"""The hint: ready and delayed task ids in Redis. The only package that imports redis.

``connect`` makes the broker that the settings ask for: a Redis server by URL, or the embedded look-alike that all
processes of one data directory share. Nothing is connected before the first call.
"""

from __future__ import annotations

from tandemq.broker.clearing import delete_keys
from tandemq.broker.client import Connections, Pools
from tandemq.broker.keys import Keys
from tandemq.broker.protocol import Broker, Popped, Window
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.clock import Clock
from tandemq.core.settings import Settings

__all__ = ["Broker", "Popped", "Window", "clear", "connect", "in_process"]


def connect(settings: Settings, clock: Clock) -> Broker:
    """The broker of these settings. Raises ConfigurationError for a URL that cannot work."""
    return RedisBroker(_pools(settings, clock), Keys(settings.namespace), clock)


def clear(settings: Settings, clock: Clock) -> None:
    """Delete every key of the namespace, once nobody works in it any more. Raises BrokerUnavailable."""
    pools = _pools(settings, clock)
    try:
        delete_keys(pools, Keys(settings.namespace), clock)
    finally:
        pools.close()


def _pools(settings: Settings, clock: Clock) -> Pools:
    if settings.is_embedded:
        from tandemq.broker.embedded import EmbeddedConnections

        return EmbeddedConnections(settings.data_path, clock)
    return Connections(settings.redis_url)


def in_process(namespace: str, clock: Clock) -> Broker:
    """A broker that lives and ends with this process; needs ``tandemq[embedded]``. For tests."""
    from tandemq.broker.local import InProcessPools

    return RedisBroker(InProcessPools(), Keys(namespace), clock)
