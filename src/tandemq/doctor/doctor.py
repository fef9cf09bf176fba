"""Puts the examinations together; a server that is away is a finding, and the rest is looked at all the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.errors import BrokerUnavailable, NotMigrated, StoreRefused, StoreUnavailable, Unavailable
from tandemq.core.settings import Settings
from tandemq.doctor import database, redis_server
from tandemq.doctor import settings as settings_judge
from tandemq.doctor.drift import Drift
from tandemq.doctor.finding import Diagnosis, Finding, Grade
from tandemq.registry import RegisteredTask
from tandemq.store.protocol import Store

DATABASE, REDIS = "database", "redis"


class Doctor:
    """Examines one installation over connections whose schema and install nobody has checked yet."""

    def __init__(self, store: Store, broker: Broker, clock: Clock, settings: Settings) -> None:
        self._store, self._broker, self._clock, self._settings = store, broker, clock, settings
        self._away: list[str] = []

    def examine(self, tasks: Iterable[RegisteredTask] = (), *, fix: bool = False) -> Diagnosis:
        """Everything, within a few dozen round trips and rows per level, whatever the size of the queues.

        ``fix`` pushes ids that are missing, takes out entries that are proven dead, restores the sets of names and
        marks a namespace without a mark. It changes no setting of a server and no row. Killed in between, what it has
        done is done, and the next run does the rest.
        """
        self._away = []
        findings = [*settings_judge.judge(self._settings, tasks), *self._database(), *self._redis()]
        if not self._away and not any(f.name == "database.migrations" and f.level is Grade.FAULT for f in findings):
            findings += self._drift(fix=fix)
        return Diagnosis(tuple(findings), tuple(self._away))

    def _database(self) -> Iterator[Finding]:
        try:
            self._store.ping()
            yield Finding("database.reachable", Grade.OK, "the database answers")
            yield from database.judge(self._store.database_facts(), self._settings)
            before = self._clock.now()
            there = self._store.now()
            yield database.clock(there, before, self._clock.now())
        except (StoreUnavailable, StoreRefused) as error:
            yield self._unreachable(DATABASE, error, "check TANDEMQ_DATABASE_URL, the server, and the network between")

    def _redis(self) -> Iterator[Finding]:
        try:
            self._broker.ping()
            yield Finding("redis.reachable", Grade.OK, "Redis answers")
            if self._settings.is_embedded:
                return  # a look-alike: it has no settings
            yield from redis_server.judge(self._broker.redis_facts())
        except BrokerUnavailable as error:
            yield self._unreachable(REDIS, error, "check TANDEMQ_REDIS_URL, the server, and the network between")

    def _drift(self, *, fix: bool) -> Iterator[Finding]:
        try:
            yield from Drift(self._store, self._broker, self._clock, self._settings, fix=fix).examine()
        except StoreUnavailable as error:
            yield self._refused(error) if self._answers() else self._unreachable(DATABASE, error, "run it again")
        except BrokerUnavailable as error:
            yield self._unreachable(REDIS, error, "run it again")
        except (StoreRefused, NotMigrated) as error:
            yield self._refused(error)

    @staticmethod
    def _refused(error: Exception) -> Finding:
        says = f"the rows cannot be compared with Redis any further: {error}"
        return Finding("queues.compared", Grade.UNKNOWN, says, "GRANT SELECT, INSERT, UPDATE, DELETE on the tables")

    def _answers(self) -> bool:
        """A missing grant looks like a server that refuses for now."""
        try:
            self._store.ping()
        except StoreUnavailable:
            return False
        return True

    def _unreachable(self, server: str, error: Exception, remedy: str) -> Finding:
        self._away.append(server)
        return Finding(f"{server}.reachable", Grade.FAULT, str(error), remedy)


def unsafe(store: Store, broker: Broker) -> list[Finding]:
    """What a worker names in its log at start: settings of the servers under which tasks or ids can be lost.

    Two round trips. Never raises Unavailable: that is for others to find.
    """
    try:
        findings = [*database.durability(store.server_settings()), redis_server.eviction(broker.server_info())]
    except Unavailable:
        return []
    return [finding for finding in findings if finding.level in {Grade.WARNING, Grade.FAULT}]
