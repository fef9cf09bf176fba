"""A small world for tests of remote workers: an app without servers whose store and broker can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tandemq import TandemQ
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.task import Lease, Level, Task
from tandemq.redeliver import lost_judge
from tandemq.remote import Claims, Proof, Token, Wanted, Work
from tandemq.testing import FakeClock
from tests.healing import Tapped

ME = "worker of another language"
LOW = Level("default", 0)


class Bed:
    """An app whose store and broker can be made to fail, and what serves remote workers of it."""

    def __init__(self, app: TandemQ, clock: FakeClock) -> None:
        self.app, self.clock = app, clock
        self.store, self.broker = Tapped(app.store), Tapped(app.broker)
        app._links._given_store, app._links._given_broker = self.store, self.broker
        self.claims, self.work = Claims(app, rng=Random(1)), Work(app, rng=Random(1))

    def enqueue(self, task_type: str = "a", **options: Any) -> int:
        return self.app.enqueue(task_type, options.pop("payload", {}), **options).id

    def take(self, most: int = 1, **changes: Any) -> list[Lease]:
        given = {"worker_id": ME, "queues": ("default",), "types": None, "most": most, "lease_s": 30.0}
        return self.claims.take(Wanted(**given | changes))

    def claimed(self, **options: Any) -> tuple[int, Proof]:
        """A task that is held, and the proof of it."""
        self.enqueue(**options)
        (lease,) = self.take()
        return lease.id, Proof(str(Token(lease.token, 30.0)))

    def task(self, task_id: int) -> Task:
        task = self.app.get(task_id)
        assert task is not None
        return task

    def state(self, task_id: int) -> tuple[str, int]:
        task = self.task(task_id)
        return task.state, task.attempts

    def listed(self, level: Level = LOW) -> list[int]:
        """The ids of a ready list, the one that is popped next first; they stay there."""
        found: list[int] = []
        while ids := self.app.broker.pop([level], limit=100, wait_s=0.0).ids:
            found += ids
        self.app.broker.push_next(level, found)
        return found

    def expire(self, task_id: int) -> bool:
        """As a reconciler would, once the lease is over."""
        token = self.store.holding(task_id).lease.token
        judge = lost_judge(Random(1), "gone")
        return self.store.end_lease(token, [task_id], judge=judge, worker_id=ME, expired_only=True) is not None

    def fails(self, part: Tapped, method: str, *errors: Exception, when: str = "before") -> None:
        """The next calls of this method raise these, one each."""
        left = list(errors)

        def hook(*_: Any, **__: Any) -> None:
            if left:
                raise left.pop(0)

        getattr(part, when)[method] = hook

    @contextmanager
    def redis_away(self) -> Iterator[None]:
        """Every call of Redis fails."""

        def hook(*_: Any, **__: Any) -> None:
            raise BrokerUnavailable("away")

        self.broker.before["*"] = hook
        yield
        del self.broker.before["*"]
