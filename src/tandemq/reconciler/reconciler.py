"""Puts the parts of a pass together and decides when to take the next look."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, StoreUnavailable
from tandemq.core.lifecycle import Event, Status
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.reconciler.contact import Contact
from tandemq.reconciler.expiry import Expiry, Sweep
from tandemq.reconciler.generation import Generation
from tandemq.reconciler.isolation import granted, isolated
from tandemq.reconciler.report import Report, Tally
from tandemq.reconciler.retention import Retention
from tandemq.reconciler.window import LOOKS_APART_S, Window
from tandemq.redeliver import count, dispatch
from tandemq.replaying import Keeper
from tandemq.service import PartlyDone, Throttle
from tandemq.store.answers import Ended, Moved
from tandemq.store.protocol import Store

log = logging.getLogger("tandemq.reconciler")

ROLE = "reconciler"
SHORTEST_LEASE_S = 3.0
EXPIRED_ROWS_PER_LEVEL = 1000
#: In one pass so many chunks of so many held tasks are woken at most.
WAKE_CHUNKS, WAKE_ROWS = 4, 500
TIDY_EVERY_S = 60.0
#: Records of workers that have stopped, or were not heard of, for so long are removed. Named in docs/workers.md.
FORGET_WORKERS_S = 3600.0
BUILDING_PAUSE_S = 0.05

#: Called with the tasks that a pass ended, after the commit and outside any transaction; at most once per task.
OnDead = Callable[[Sequence[Moved]], None]


class Reconciler:
    """Service: the one healer. ``step`` takes its turn if it leads; ``run_once`` makes a pass whoever leads.

    Every part of a pass is bounded, harmless when two reconcilers run at once, and can be killed at any line.
    """

    def __init__(
        self,
        store: Store,
        broker: Broker,
        clock: Clock,
        rng: Random,
        settings: Settings,
        holder: str,
        on_dead: OnDead | None = None,
        lead: bool = True,
    ) -> None:
        self._store, self._broker, self._clock, self._holder = store, broker, clock, holder
        self._on_dead, self._lead = on_dead, lead
        self._period_s = settings.reconcile_s
        self._contact = Contact(store, clock, lease_s=settings.lease_s, period_s=settings.reconcile_s)
        self._generation = Generation(store, broker)
        self._window = Window(store, broker, clock)
        self._expiry = Expiry(store, rng)
        self._sweep = Sweep(store, clock, rng, settings.lease_s)
        self._retention = Retention(store, clock, settings, holder)
        self._keeper = Keeper(store, self._after, clock, holder, settings.max_payload_bytes)
        self._throttle = Throttle(log, clock)
        self._tally = Tally()
        self._refused: StoreUnavailable | None = None
        self._redis = False
        self._levels: list[Level] = []
        self._chasing: list[Level] = []
        self._pass_at: float | None = None
        self._tidied_at: float | None = None
        self._merged: tuple[str, str] | None = None
        self.last_report = Report()
        #: When the last good pass ended (monotonic); None while another process leads. Redis away makes none good.
        self.last_pass_at: float | None = None

    def step(self) -> float:
        """A pass, or between passes a look at the levels that were wiped; returns the pause until the next turn.

        Raises StoreUnavailable, and PartlyDone for a missing grant when all else is done. Redis away is an alarm in the
        report: what needs only MySQL is done all the same.
        """
        try:
            pass_at = self._pass_at if self._chasing or self._keeper.is_busy else None
            if pass_at is not None and self._clock.monotonic() < pass_at:
                return self._turned(self._between(pass_at))
            self._contact.observe()
            if not self._leads():
                self._window.forget()
                self._chasing, self.last_pass_at = [], None
                return self._period_s
            pause_s = min(self._run(self._tally), self._keep())
        except StoreUnavailable:
            self._contact.lost()
            raise
        tally, self._tally = self._tally, Tally()
        self._publish(tally)
        self._refused = tally.refused
        return self._turned(pause_s)

    def _turned(self, pause_s: float) -> float:
        if self._refused is not None:
            # Contact stands and the pace is kept: the loop is late for whoever looks, leases are ended all the same.
            raise PartlyDone(f"not all of a pass could be done: {self._refused}", pause_s)
        return pause_s

    def _leads(self) -> bool:
        leads = True
        if self._lead:
            # If it is refused, lead: two at once are harmless, none is not.
            with granted(self._tally, "leadership"):
                leads = self._store.lead(ROLE, self._holder, max(3 * self._period_s, SHORTEST_LEASE_S))
        return leads

    def _between(self, pass_at: float) -> float:
        """What cannot wait for the next pass: levels that were wiped, and the pace of replay runs."""
        pause_s = self._look(self._chasing, self._tally) if self._chasing else self._period_s
        if self._keeper.is_busy:
            pause_s = min(pause_s, self._keep())
        return min(pause_s, max(0.0, pass_at - self._clock.monotonic()))

    def _keep(self) -> float:
        pause_s = self._period_s
        with granted(self._tally, "replay runs"):
            pause_s = self._keeper.turn(self._tally.alarm)
        return pause_s if self._keeper.is_busy else self._period_s

    def run_once(self, looks: int = 2) -> Report:
        """One pass, whoever leads. With two looks, ids missing in the first are looked for again 0.2 s on and pushed.

        Leases that have run out are counted as ``overdue`` but not ended unless this object has been in contact with
        the database for a lease (see ``Contact``).
        """
        tally = Tally()
        try:
            self._contact.observe()
            self._run(tally)
            for _ in range(looks - 1):
                if not tally.report().missing:
                    break
                self._clock.sleep(LOOKS_APART_S)
                self._look(self._levels, tally)
        except StoreUnavailable:
            self._contact.lost()
            raise
        self._publish(tally)
        return self.last_report

    def _publish(self, tally: Tally) -> None:
        self.last_report = report = tally.report()
        if self._redis and tally.refused is None:
            self.last_pass_at = self._clock.monotonic()
        for alarm in report.alarms:
            self._throttle(logging.WARNING, alarm, f"reconciler: {alarm}")
        if not report.quiet:
            self._throttle(logging.INFO, "healed", f"reconciler: {report}")

    def _run(self, tally: Tally) -> float:
        tally.armed = self._contact.armed
        with granted(tally, "queues"):
            self._levels = self._store.open_levels()
        self._window.forget(keep=set(self._levels))
        self._redis = False
        with granted(tally, "generations"):
            self._redis = self._open_redis(tally)
        self._contact.observe()  # a frozen Redis costs a time-out a pass: that is no silence of the database
        with granted(tally, "lost leases"):
            self._expiry.turn(tally, self._after)
        for level in self._levels:
            self._discard(level, tally)
        pause_s = self._look(self._levels, tally)
        with granted(tally, "running rows without a lease"):
            self._sweep.turn(tally, self._after)
        with granted(tally, "tasks of paused types"):
            self._wake(tally)
        with granted(tally, "small tables"):
            self._tidy(tally)
        with granted(tally, "retention"):
            self._retention.turn(tally)
        if tally.report().building:
            pause_s = BUILDING_PAUSE_S
        self._pass_at = self._clock.monotonic() + (BUILDING_PAUSE_S if tally.report().building else self._period_s)
        return pause_s

    def _open_redis(self, tally: Tally) -> bool:
        """Whether Redis answers and its namespace is ours; restores the sets of names and the generations if so."""
        try:
            install = self._store.install_id()
            # An empty Redis belongs to whoever comes first; a mark that stands is never replaced here.
            standing = self._broker.mark_install(install)
            if standing != install:
                tally.alarm(
                    f"the Redis namespace belongs to install {standing}, this database is {install}: nothing is pushed"
                )
                return False
            self._broker.register(self._levels)
            queues = {level.queue for level in self._levels} | self._broker.queues()
            self._generation.turn(install, queues, tally)
        except BrokerUnavailable as error:
            tally.alarm(f"Redis is away: {error}")
            return False
        return True

    def _look(self, levels: Sequence[Level], tally: Tally) -> float:
        chase: dict[Level, float] = {}
        try:
            for level in levels if self._redis else ():
                with isolated(self._broker, tally, f"list of queue {level.queue!r}, priority {level.priority}"):
                    look = self._window.look(level)
                    tally.add(levels=1, looked=look.rows, missing=look.missing, repushed=look.repushed)
                    if look.chase_s is not None:
                        chase[level] = look.chase_s
        except BrokerUnavailable as error:
            self._redis = False
            tally.alarm(f"Redis is away: {error}")
        self._chasing = list(chase)
        return min([self._period_s, *chase.values()])

    def _discard(self, level: Level, tally: Tally) -> None:
        ended: list[Ended] = []
        with isolated(self._broker, tally, f"expired tasks of queue {level.queue!r}, priority {level.priority}"):
            ended = self._store.discard_expired(level, limit=EXPIRED_ROWS_PER_LEVEL)
        tally.add(discarded=len(ended))
        self._after([Moved(e.id, level, e.task_type, Event.DISCARD, Status.DEAD, dead_reason=e.reason) for e in ended])

    def _after(self, moved: Sequence[Moved]) -> None:
        count(moved, lost=True)
        if moved and self._redis:
            self._redis = dispatch(self._broker, moved)
        dead = [move for move in moved if move.status is Status.DEAD]
        if not dead or self._on_dead is None:
            return
        try:
            self._on_dead(dead)
        except Exception as exc:  # a user's on_dead_letter stands behind it; the pass goes on
            self._throttle(logging.ERROR, "on_dead", f"reconciler: on_dead failed: {exc!r}", exc=exc)

    def _wake(self, tally: Tally) -> None:
        """Held tasks of types whose pause is over: whoever ended it does this at once, unless it ran out or died."""
        for _ in range(WAKE_CHUNKS):
            moved, more = self._store.release_held(WAKE_ROWS)
            tally.add(woken=len(moved))
            self._after(moved)
            if not more:
                break

    def _tidy(self, tally: Tally) -> None:
        """What keeps the small tables small: dead workers go, old counters of one queue and type are merged."""
        now = self._clock.monotonic()
        if self._tidied_at is None or now - self._tidied_at >= TIDY_EVERY_S:
            merged, self._merged = self._store.merge_counts(self._merged)
            tally.add(forgotten=self._store.forget_workers(FORGET_WORKERS_S), merged=merged)
            self._tidied_at = now
