"""When expired leases may be believed (protocol rule 7)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import cast

import pytest

from tandemq.core.errors import StoreUnavailable
from tandemq.reconciler.contact import Contact
from tandemq.store.protocol import Recording
from tandemq.testing import FakeClock


class Database:
    """Only a clock, that may run away from ours."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.ahead_s, self.away = clock, 0.0, False

    def now(self) -> datetime:
        if self.away:
            raise StoreUnavailable("away")
        return self.clock.now() + timedelta(seconds=self.ahead_s)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def database(clock: FakeClock) -> Database:
    return Database(clock)


@pytest.fixture
def contact(clock: FakeClock, database: Database) -> Contact:
    return Contact(cast(Recording, database), clock, lease_s=30.0, period_s=2.0)


def observe(contact: Contact, clock: FakeClock, seconds: float, *, every_s: float = 2.0) -> None:
    for _ in range(int(seconds / every_s)):
        clock.advance(every_s)
        contact.observe()


def test_armed_after_one_full_lease(contact: Contact, clock: FakeClock) -> None:
    contact.observe()
    observe(contact, clock, 28)
    assert not contact.armed

    observe(contact, clock, 2)

    assert contact.armed


def test_never_seen_is_not_armed(contact: Contact) -> None:
    assert not contact.armed


def test_an_error_begins_the_lease_anew(contact: Contact, clock: FakeClock, database: Database) -> None:
    contact.observe()
    observe(contact, clock, 40)
    database.away = True
    with pytest.raises(StoreUnavailable):
        contact.observe()
    database.away = False
    assert not contact.armed

    contact.observe()
    observe(contact, clock, 28)
    assert not contact.armed
    observe(contact, clock, 2)
    assert contact.armed


@pytest.mark.parametrize("jump_s", [1.5, -1.5, 3600.0])
def test_a_jump_begins_the_lease_anew(contact: Contact, clock: FakeClock, database: Database, jump_s: float) -> None:
    contact.observe()
    observe(contact, clock, 40)
    database.ahead_s = jump_s

    observe(contact, clock, 2)
    assert not contact.armed
    observe(contact, clock, 30)
    assert contact.armed


def test_slow_drift_is_no_jump(contact: Contact, clock: FakeClock, database: Database) -> None:
    contact.observe()
    for _ in range(100):
        database.ahead_s += 0.05
        observe(contact, clock, 2)

    assert contact.armed


def test_a_silence_hides_an_outage(contact: Contact, clock: FakeClock) -> None:
    """Stopped for a while (SIGSTOP, a long pass), we do not know whether the workers could renew meanwhile."""
    contact.observe()
    observe(contact, clock, 40)
    observe(contact, clock, 14, every_s=14)
    assert contact.armed

    observe(contact, clock, 16, every_s=16)

    assert not contact.armed


def test_passes_rarer_than_half_a_lease_are_not_a_silence(clock: FakeClock, database: Database) -> None:
    contact = Contact(cast(Recording, database), clock, lease_s=3.0, period_s=2.0)
    contact.observe()

    observe(contact, clock, 4)

    assert contact.armed
