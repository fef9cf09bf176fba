"""The mover: due ids from the sorted sets to the lists, by the database's clock. It never writes a task.

One Lua call moves a chunk atomically, so a mover may be killed anywhere, and several may run at once: the leadership
in MySQL only saves work.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.store.protocol import Recording

ROLE = "mover"
CHUNK = 1000
CHUNKS_PER_TURN = 100
LEVELS_MAX_AGE_S = 0.5
SHORTEST_LEASE_S = 3.0
OFFSET_MAX_AGE_S = 30.0
#: A local clock that NTP slews runs up to this share too fast; without it a turn could come that much early.
SLEW = 500e-6
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DatabaseTime:
    """The database's clock without a query per turn: measured now and then, and never ahead of the true one.

    The server read its clock at an unknown moment between question and answer. The reading is counted from the moment
    the *answer* arrived, so it lags by at most the length of the round trip; counted from the question it could be
    ahead by as much, and ids would be promoted before their rows are due, popped, found not due, and put back, round
    and round.
    """

    def __init__(self, store: Recording, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._read: datetime | None = None
        self._read_at = 0.0

    @property
    def age_s(self) -> float:
        """Seconds since the last measurement; infinite before the first."""
        return float("inf") if self._read is None else self._clock.monotonic() - self._read_at

    def measure(self) -> None:
        """Ask the database. Raises StoreUnavailable; the last measurement then stays."""
        read = self._store.now()
        self._read, self._read_at = read, self._clock.monotonic()

    def now_ms(self) -> int | None:
        """Epoch milliseconds, rounded down; None when the last measurement is too old to be trusted."""
        age_s = self.age_s
        if self._read is None or age_s > OFFSET_MAX_AGE_S:
            return None
        since = self._read - EPOCH
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        return (micros + int(age_s * (1 - SLEW) * 1_000_000)) // 1000


class Mover:
    """Service: promotes what is due in every queue and level.

    MySQL is asked once per third of the leadership's lease, not per turn. While it is away the leader goes on with
    the last offset until that is 30 s old, then stops: the window finds the due ids later. An id is never promoted
    early.
    """

    def __init__(self, store: Recording, broker: Broker, clock: Clock, holder: str, settings: Settings) -> None:
        self._store, self._broker, self._clock, self._holder = store, broker, clock, holder
        self._period_s = settings.mover_s
        self._lease_s = max(3 * settings.mover_s, SHORTEST_LEASE_S)
        self._time = DatabaseTime(store, clock)
        self._install: str | None = None
        self._leads = False
        self._asked_at: float | None = None
        self._levels: list[Level] = []
        self._levels_at: float | None = None

    def step(self) -> float:
        """One turn; 0 while there is more to move, else the pause until the next.

        Raises StoreUnavailable or BrokerUnavailable when it cannot work, ForeignInstall when the namespace is
        another's.
        """
        self._contact()
        if not self._leads:
            return max(self._period_s, self._lease_s / 3)
        now_ms = self._time.now_ms()
        if now_ms is None:
            raise StoreUnavailable(f"the database's clock was last read more than {OFFSET_MAX_AGE_S:.0f} s ago")
        return 0.0 if self._promote(now_ms) else self._period_s

    def _contact(self) -> None:
        now = self._clock.monotonic()
        if self._asked_at is not None and now - self._asked_at < self._lease_s / 3:
            return
        # Also after a failure: with MySQL away every question costs a time-out, and ids wait meanwhile.
        self._asked_at = now
        try:
            if self._install is None:
                # First of all: a leader that could not learn it would take its own namespace for another's.
                self._install = self._store.install_id()
            self._leads = self._store.lead(ROLE, self._holder, self._lease_s)
            if self._leads:
                self._time.measure()
        except StoreUnavailable:
            if not self._leads or self._time.now_ms() is None:
                raise
        if (standing := self._broker.install()) not in {None, self._install}:
            self._asked_at = None
            raise ForeignInstall(f"the namespace belongs to install {standing}, this database is {self._install}")

    def _promote(self, now_ms: int) -> bool:
        levels = self._current_levels()
        budget = max(CHUNKS_PER_TURN, 2 * len(levels))
        while levels and budget >= len(levels):
            budget -= len(levels)
            levels = [level for level in levels if self._promote_chunk(level, now_ms) >= CHUNK]
        return bool(levels)

    def _promote_chunk(self, level: Level, now_ms: int) -> int:
        crash_point("promote.before")
        try:
            moved = self._broker.promote(level, now_ms=now_ms, limit=CHUNK)
        except BrokerUnavailable:
            # One key of another type must not hold up the other levels; a Redis that is away raises here too.
            self._broker.ping()
            return 0
        crash_point("promote.after")
        if moved:
            metrics.promoted(level.queue, moved)
        return moved

    def _current_levels(self) -> list[Level]:
        now = self._clock.monotonic()
        if self._levels_at is None or now - self._levels_at >= LEVELS_MAX_AGE_S:
            found = {Level(q, p) for q in self._broker.queues() for p in self._broker.levels(q)}
            self._levels = sorted(found, key=lambda level: (-level.priority, level.queue))
            self._levels_at = now
        return self._levels
