"""A small world for tests of mover and reconciler: a store, a broker, one clock for all, and hands to break things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any

import redis
import sqlalchemy as sa

import tandemq.broker
import tandemq.store
from tandemq.broker.client import Role
from tandemq.broker.keys import Keys
from tandemq.broker.local import InProcessPools
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.clock import Clock
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.core.task import DEFAULT_QUEUE, Level, NewRow
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler, Report
from tandemq.testing import FakeClock
from tests import recipes

WORKER = "worker-1"
LOW = Level(DEFAULT_QUEUE, 0)


class Killed(BaseException):
    """The process died here."""


class Tapped:
    """A store or broker with a tap on its calls: ``before``/``after`` hooks by method name."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.before: dict[str, Callable[..., None]] = {}
        self.after: dict[str, Callable[..., None]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            for hook in (self.before.get("*"), self.before.get(name)):
                if hook is not None:
                    hook(*args, **kwargs)
            answer = method(*args, **kwargs)
            if name in self.after:
                self.after[name](*args, **kwargs)
            return answer

        return call

    def dies(self, method: str, *, at: int = 1, when: str = "before", error: BaseException | None = None) -> None:
        """Raise ``Killed`` (or ``error``) at the ``at``-th call of ``method`` from now on; once."""
        left = [at]

        def hook(*_: Any, **__: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise error or Killed

        getattr(self, when)[method] = hook


class World:
    """Everything a test of the healers needs, with the clock of database and processes in the test's hand."""

    def __init__(self, settings: Settings, store: Any, broker: Any, raw: redis.Redis, clock: FakeClock) -> None:
        self.settings, self.raw, self.clock = settings, raw, clock
        self.store, self.broker = Tapped(store), Tapped(broker)
        self.tokens = iter(range(1, 1_000_000))
        self.engine = sa.create_engine(recipes.administrator(settings.database_url), poolclass=sa.NullPool)

    # making tasks

    def insert(self, n: int = 1, **changes: Any) -> list[int]:
        """Committed rows, not pushed."""
        fields = {"queue": DEFAULT_QUEUE, "priority": 0, "max_retries": 3, **changes}
        rows = [NewRow(task_type="noop", payload="{}", **fields)] * n
        return [done.id for at in range(0, n, 1000) for done in self.store.insert(rows[at : at + 1000])]

    def enqueue(self, n: int = 1, **changes: Any) -> list[int]:
        """Committed rows, pushed as a producer does."""
        ids = self.insert(n, **changes)
        level = Level(changes.get("queue", DEFAULT_QUEUE), changes.get("priority", 0))
        if delay_s := changes.get("delay_s"):
            due = self.clock.now() + timedelta(seconds=delay_s)
            self.broker.delay(level, dict.fromkeys(ids, int(due.timestamp() * 1000)))
        else:
            self.broker.push(level, ids)
        return ids

    def claim(self, ids: Sequence[int], lease_s: float | None = None, worker_id: str = WORKER) -> int:
        """Claim them all under one token, which is returned."""
        token = next(self.tokens)
        claimed = self.store.claim(
            list(ids),
            token=token,
            worker_id=worker_id,
            lease_s=lease_s or self.settings.lease_s,
            free=len(ids),
            known=None,
            unknown_task_s=60.0,
        )
        assert {lease.id for lease in claimed.leases} == set(ids)
        return token

    # looking

    def listed(self, level: Level = LOW) -> list[int]:
        """The ready list, the id that is popped next first."""
        found: Any = self.raw.lrange(self.key(level, "ready"), 0, -1)
        return [int(entry) for entry in reversed(found)]

    def scheduled(self, level: Level = LOW) -> dict[int, int]:
        """The sorted set: id -> due ms."""
        found: Any = self.raw.zrange(self.key(level, "delayed"), 0, -1, withscores=True)
        return {int(entry): int(score) for entry, score in found}

    def key(self, level: Level, kind: str) -> str:
        """The Redis key, as the contract has it."""
        return f"{self.settings.namespace}:{{{level.queue}}}:{kind}:{level.priority}"

    def generation_key(self, queue: str = DEFAULT_QUEUE) -> str:
        """The Redis key of a queue's generation."""
        return f"{self.settings.namespace}:{{{queue}}}:generation"

    def status(self, task_id: int) -> Status:
        """As stored."""
        task = self.store.get(task_id)
        assert task is not None
        return Status(task.status)

    # healing

    def reconciler(self, **changes: Any) -> Reconciler:
        """One more reconciler, as a process of its own would have it."""
        given = {
            "store": self.store,
            "broker": self.broker,
            "clock": self.clock,
            "rng": Random(1),
            "settings": self.settings,
            "holder": f"holder-{next(self.tokens)}",
            "lead": False,
        }
        return Reconciler(**{**given, **changes})

    def mover(self, clock: Clock | None = None, **changes: Any) -> Mover:
        """One more mover."""
        given = {
            "store": self.store,
            "broker": self.broker,
            "clock": clock or self.clock,
            "holder": f"holder-{next(self.tokens)}",
            "settings": self.settings,
        }
        return Mover(**{**given, **changes})

    def passes(self, reconciler: Reconciler, n: int = 1) -> list[Report]:
        """``n`` full passes at their usual distance."""
        reports = []
        for _ in range(n):
            reports.append(reconciler.run_once(looks=1))
            self.clock.advance(self.settings.reconcile_s)
        return reports

    def arm(self, reconciler: Reconciler) -> None:
        """Give it the lease of unbroken contact that expiry needs: its next pass is armed."""
        for report in self.passes(reconciler, int(self.settings.lease_s / self.settings.reconcile_s)):
            assert not report.expired

    # breaking

    def flush(self) -> None:
        """FLUSHALL."""
        self.raw.flushall()

    def lose(self, ids: Sequence[int], level: Level = LOW) -> None:
        """Take ids out of the ready list."""
        for task_id in ids:
            assert self.raw.lrem(self.key(level, "ready"), 1, str(task_id)) == 1

    def snapshot(self) -> Callable[[], None]:
        """Remember all of Redis; the answer puts it back."""
        saved: dict[bytes, tuple[str, Any]] = {}
        for key in self.raw.keys():  # noqa: SIM118 - a Redis command
            kind = self.raw.type(key).decode()
            read = {
                "string": self.raw.get,
                "list": lambda k: self.raw.lrange(k, 0, -1),
                "set": self.raw.smembers,
                "zset": lambda k: dict(self.raw.zrange(k, 0, -1, withscores=True)),
            }[kind]
            saved[key] = (kind, read(key))

        def restore() -> None:
            self.raw.flushall()
            for key, (kind, value) in saved.items():
                if kind == "string":
                    self.raw.set(key, value)
                elif kind == "list":
                    self.raw.rpush(key, *value)
                elif kind == "set":
                    self.raw.sadd(key, *value)
                else:
                    self.raw.zadd(key, value)

        return restore

    def sql(self, text: str, **params: Any) -> None:
        """A statement behind the store's back; ``{t}`` is the table prefix."""
        with self.engine.begin() as connection:
            connection.execute(sa.text(text.replace("{t}", self.settings.table_prefix)), params)

    @contextmanager
    def outage(self, part: Tapped, error: Exception) -> Iterator[None]:
        """Every call of the store or the broker raises ``error``."""

        def hook(*_: Any, **__: Any) -> None:
            raise error

        part.before["*"] = hook
        yield
        del part.before["*"]

    def close(self) -> None:
        """Drop all connections."""
        self.engine.dispose()
        self.store.close()
        self.broker.close()


def open_world(settings: Settings, clock: FakeClock, *, real: bool) -> World:
    """Over real servers, or over SQLite and a fakeredis inside this process."""
    store = tandemq.store.connect(settings, clock=clock)
    if real:
        broker = tandemq.broker.connect(settings, clock)
        return World(settings, store, broker, redis.Redis.from_url(recipes.administrator(settings.redis_url)), clock)
    pools = InProcessPools()
    with pools.use(Role.SERVE) as raw:
        return World(settings, store, RedisBroker(pools, Keys(settings.namespace), clock), raw, clock)
