"""What people do in the model: producers and operators, each an actor that may be stopped between two calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tandemq.core.errors import TandemQError
from tandemq.core.lifecycle import Status
from tandemq.core.task import Level, NewRow
from tandemq.dispatch import Entry
from tandemq.pausing import Pauses
from tandemq.redeliver import dispatch
from tandemq.store.answers import PruneRule
from tests.model.coop import Call
from tests.model.ledger import FINAL
from tests.model.records import Promise
from tests.model.stage import LEVELS, QUEUES, Stage

DELAYS = (0.0, 0.0, 3.0, 25.0)
EXPIRES = (None, None, None, 20.0)
PAUSABLE = (*(("queue", queue) for queue in QUEUES), *[("task_type", "work")] * 2)
HOLDS = (None, None, 25.0)


class People(Stage):
    """Every public method is a command."""

    def enqueue(self, level: int, retries: int, delay: int, key: int, expires: int, at_once: int) -> None:
        """A producer stores a task and pushes its id."""
        self._n += 1
        promise = self.ledger.promises[self._n] = Promise(key=f"key-{key}" if key % 8 < 3 else None)
        row = self._row(LEVELS[level % len(LEVELS)], retries, DELAYS[delay % len(DELAYS)], promise.key)
        row = replace(row, expires_s=EXPIRES[expires % len(EXPIRES)])

        def produce() -> None:
            try:
                (done,) = self._links.store.insert([row])
            except TandemQError as failed:
                self.ledger.promised(promise, "unknown" if getattr(failed, "unknown", False) else "refused")
                return
            if done.created:
                self.ledger.promised(promise, "stored", done.id)
                self._pusher.push([Entry(done.id, Level(done.queue, done.priority), done.due_ms)])
            else:
                promise.outcome = "another's"
                self.ledger.check(done.id in self.ledger.rows, "I1: a key's task is missing", done)

        self._do("produce", produce, at_once)

    def enqueue_with(self, level: int, retries: int, commit: int, pushed: int) -> None:
        """A producer stores a task in its own transaction, which commits or is rolled back."""
        if self.servers.is_away("store"):
            return
        self._n += 1
        promise = self.ledger.promises[self._n] = Promise("refused" if commit % 3 == 0 else "stored")
        level_of = LEVELS[level % len(LEVELS)]
        with self.world.engine.connect() as connection, connection.begin() as transaction:
            if connection.dialect.name == "mysql":
                connection.exec_driver_sql(f"SET @@session.timestamp = {self.clock.now().timestamp():.6f}")
            (done,) = self.world.store.insert([self._row(level_of, retries, 0.0, None)], connection=connection)
            if promise.outcome == "refused":
                transaction.rollback()
            else:
                transaction.commit()
        self.ledger.wrote(Call("store", "insert", (), {}))
        if promise.outcome == "stored":
            self.ledger.promised(promise, "stored", done.id)
        if (promise.outcome == "stored" or pushed % 2) and not self.servers.is_away("broker"):
            # SQLAlchemy tells of a commit before it has happened: the id of a rolled back row may be pushed as well.
            self.world.broker.push(level_of, [done.id])

    def batch(self, level: int, retries: int, count: int) -> None:
        """A producer stores several tasks at once and pushes them."""
        if self.servers.is_away("store"):
            return
        level_of = LEVELS[level % len(LEVELS)]
        rows = []
        for _ in range(count + 2):
            self._n += 1
            self.ledger.promises[self._n] = Promise()
            rows.append(self._row(level_of, retries, 0.0, None))
        done = self._links.store.insert(rows)
        for n, one in enumerate(done, self._n - len(rows) + 1):
            self.ledger.promised(self.ledger.promises[n], "stored", one.id)
        if not self.servers.is_away("broker"):
            self._links.broker.push(level_of, [one.id for one in done])

    def _row(self, level: Level, retries: int, delay_s: float, key: str | None) -> NewRow:
        payload = f'{{"n": {self._n}}}' if key is None else '{"n": 0}'
        if key is not None:
            # Equal payloads under one key: the rows are told apart by the key itself.
            payload = f'{{"n": {-1 - int(key[4:])}}}'
            self.ledger.promises.setdefault(-1 - int(key[4:]), Promise(key=key))
        return NewRow("work", payload, level.queue, level.priority, retries % 4, delay_s=delay_s, idempotency_key=key)

    def cancel(self, pick: int, at_once: int) -> None:
        """An operator cancels a task."""
        if ids := list(self.ledger.rows):
            task_id = ids[pick % len(ids)]

            def ask() -> None:
                try:
                    self.ledger.cancelled(task_id, self._links.store.cancel(task_id))
                except TandemQError:
                    pass

            self._do("cancel", ask, at_once)

    def kill(self, pick: int, at_once: int) -> None:
        """An operator cancels a task, if need be with its process."""
        if ids := list(self.ledger.rows):
            task_id = ids[pick % len(ids)]
            self._do("kill", lambda: _quietly(self._links.store.cancel, task_id, kill=True), at_once)

    def hold(self, what: int, for_s: int, at_once: int) -> None:
        """An operator pauses a queue or the task type, for some time or until it is resumed."""
        kind, name = PAUSABLE[what % len(PAUSABLE)]
        given = {kind: name, "for_": HOLDS[for_s % len(HOLDS)]}
        self._do("hold", lambda: _quietly(self._pauses.pause, **given), at_once)

    def unhold(self, what: int, at_once: int) -> None:
        """An operator resumes it."""
        kind, name = PAUSABLE[what % len(PAUSABLE)]
        self._do("unhold", lambda: _quietly(self._pauses.resume, **{kind: name}), at_once)

    @property
    def _pauses(self) -> Pauses:
        return Pauses(self._links)

    def replay(self, pick: int, at_once: int) -> None:
        """An operator replays up to two tasks that ended, as they were when he looked."""
        ended = [row.id for row in self.ledger.rows.values() if row.status in {"dead", "cancelled"}]
        if ended:
            wanted = [ended[pick % len(ended)], ended[-1]]

            def ask() -> None:
                try:
                    dispatch(self._links.broker, self._links.store.replay(sorted(set(wanted))))
                except TandemQError:
                    pass

            self._do("replay", ask, at_once)

    def purge(self, pick: int, at_once: int) -> None:
        """An operator removes a task that had ended when he looked."""
        ended = [row.id for row in self.ledger.rows.values() if row.status in FINAL]
        if ended:
            wanted = [ended[pick % len(ended)]]
            self._do("purge", lambda: _quietly(self._links.store.purge, wanted), at_once)

    def prune(self, at_once: int) -> None:
        """Retention."""
        rule = PruneRule(self.clock.now() - timedelta(seconds=20), (Status.SUCCEEDED, Status.CANCELLED))

        def remove() -> None:
            ids, _ = _quietly(self._links.store.prunable, rule, None, limit=50) or ([], None)
            if ids:
                _quietly(self._links.store.prune, ids, rule)

        self._do("prune", remove, at_once)

    def drain(self, tree: int, grace: int) -> None:
        """SIGTERM to a worker; without ``grace`` it is told to stop at once."""
        if self._trees:
            one = self._trees[tree % len(self._trees)]
            one.draining = True
            for child in one.children:
                with self.scene.starting(child.process):
                    child.child.drain()
            if not grace % 3:
                self.stop(tree)

    def stop(self, tree: int) -> None:
        """Its grace time is over."""
        if self._trees and (one := self._trees[tree % len(self._trees)]).draining:
            for child in one.children:
                if not child.stopping:
                    child.stopping = True
                    self.scene.start(child.process, "stop", child.child.stop)


def _quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return call(*args, **kwargs)
    except TandemQError:
        return None
