"""One bad key or row must not stop the healing of the others; a server that is away must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandemq.broker.protocol import Broker
from tandemq.core.errors import BrokerUnavailable, StoreRefused
from tandemq.reconciler.report import Tally


@contextmanager
def isolated(broker: Broker, tally: Tally, what: str) -> Iterator[None]:
    """An alarm about ``what`` if the database refuses a statement, or Redis a command and still answers a ping.

    StoreUnavailable, and BrokerUnavailable of a Redis that does not answer, go on.
    """
    try:
        yield
    except StoreRefused as error:
        tally.alarm(f"{what}: {error}")
    except BrokerUnavailable as error:
        broker.ping()
        tally.alarm(f"{what}: {error}")
