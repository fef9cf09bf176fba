"""Removing a namespace from Redis."""

from __future__ import annotations

from tandemq.broker.client import Pools, Role
from tandemq.broker.commands import ask
from tandemq.broker.keys import Keys
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.clock import Clock
from tandemq.core.task import Level


def delete_keys(pools: Pools, keys: Keys, clock: Clock) -> None:
    """Delete every key of the namespace, by the names that follow from its sets of queues and levels.

    No SCAN: that reads through the keys of everybody else too. The set of queues goes last, so a cut run can be
    repeated. One key a command: they lie in several slots of a cluster.
    """
    broker = RedisBroker(pools, keys, clock)
    names = []
    for queue in sorted(broker.queues()):
        levels = [Level(queue, priority) for priority in broker.levels(queue)]
        names += [key for level in levels for key in (keys.ready(level), keys.delayed(level))]
        names += [keys.levels(queue), keys.generation(queue)]
    with pools.use(Role.SERVE) as client:
        for name in [*names, keys.install, keys.queues]:
            ask(client, "DEL", name)
