"""When may expired leases be believed? After a full lease of unbroken contact with a database whose clock is steady.

After an outage of MySQL longer than a lease *every* lease has run out, because nobody could renew it, while the
handlers run on. The first thing the workers do is renew; the reconciler must not be quicker. The same after a jump of
either clock.
"""

from __future__ import annotations

from datetime import datetime

from tandemq.core.clock import Clock
from tandemq.store.protocol import Recording

JUMP_S = 1.0


class Contact:
    """Unbroken contact with the database, and whether its clock runs as fast as ours.

    Contact is broken by an error (``lost``), by a jump of more than a second between the database's clock and the
    monotonic one, and by a silence in which an outage could have gone unnoticed: half a lease (renewals come at least
    that often), or two passes where passes are rarer.
    """

    def __init__(self, store: Recording, clock: Clock, *, lease_s: float, period_s: float) -> None:
        self._store, self._clock, self._lease_s = store, clock, lease_s
        self._silence_s = max(lease_s / 2, 2 * period_s + JUMP_S)
        self._since: float | None = None
        self._last: tuple[float, datetime] | None = None

    def observe(self) -> None:
        """Read the database's clock once. Raises StoreUnavailable, and contact is lost."""
        try:
            database = self._store.now()
        except BaseException:
            self.lost()
            raise
        local = self._clock.monotonic()
        if self._last is not None:
            passed = local - self._last[0]
            jump = (database - self._last[1]).total_seconds() - passed
            if abs(jump) > JUMP_S or passed > self._silence_s:
                self._since = None
        self._last = (local, database)
        if self._since is None:
            self._since = local

    def lost(self) -> None:
        """The database did not answer: start anew."""
        self._since = self._last = None

    @property
    def armed(self) -> bool:
        """A full lease of contact lies behind the last observation."""
        return self._since is not None and self._last is not None and self._last[0] - self._since >= self._lease_s
