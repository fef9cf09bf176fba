"""One bad key or row must not stop the healing of the others; a server that is away must."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandemq.broker.protocol import Broker
from tandemq.core.errors import BrokerUnavailable, StoreRefused, StoreUnavailable
from tandemq.reconciler.report import Tally


@contextmanager
def isolated(broker: Broker, tally: Tally, what: str) -> Iterator[None]:
    """An alarm about ``what`` if the database refuses a statement, or Redis a command and still answers a ping.

    StoreUnavailable (but for a missing grant: see ``granted``), and BrokerUnavailable of a Redis that does not answer,
    go on.
    """
    try:
        with granted(tally, what):
            yield
    except StoreRefused as error:
        tally.alarm(f"{what}: {error}")
    except BrokerUnavailable as error:
        broker.ping()
        tally.alarm(f"{what}: {error}")


@contextmanager
def granted(tally: Tally, what: str) -> Iterator[None]:
    """An alarm about ``what``, and a pass that is not good, if this user may not: between ``tandemq migrate`` and
    grants.sql what needs no new table is done all the same. Other errors go on.
    """
    try:
        yield
    except StoreUnavailable as error:
        if not error.denied:
            raise
        tally.refused = error
        tally.alarm(f"{what}: {error}")
