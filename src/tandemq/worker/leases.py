"""The supervisor's side of leases: renewing those of living children, ending those of dead ones."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from random import Random

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.errors import StoreUnavailable
from tandemq.core.failure import failure
from tandemq.core.lifecycle import Attempt, Event, Interrupted, Lost, Outcome, TimedOut, Verdict, decide
from tandemq.core.retry import policy_of
from tandemq.core.settings import Settings
from tandemq.core.task import Lease
from tandemq.redeliver import dispatch
from tandemq.service import Throttle
from tandemq.store.protocol import Moved, Store, WorkerRecord
from tandemq.worker.arena import Phase, Snapshot, State
from tandemq.worker.options import WorkerOptions
from tandemq.worker.process import ChildProcess

_log = logging.getLogger("tandemq.worker")
#: While the database is away, and when a lease is short, renewals are tried this often.
RETRY_S = 1.0


class LeaseKeeper:
    """A service: one beat renews every held token of every child, reads cancel requests, moves the worker's record."""

    def __init__(
        self, store: Store, children: Callable[[], Sequence[ChildProcess]], *, settings: Settings, worker_id: str,
        name: str, options: WorkerOptions, clock: Clock, state: Callable[[], str],
    ) -> None:  # fmt: skip
        self._store, self._children, self._settings = store, children, settings
        self._worker_id, self._name, self._options = worker_id, name, options
        self._clock, self._state = clock, state
        self._say = Throttle(_log, clock)
        self._answered_at = float("-inf")

    def register(self, queues: Sequence[str]) -> None:
        """Insert the worker's record: one row per process start."""
        now = self._clock.now()
        self._store.worker_started(
            WorkerRecord(
                id=self._worker_id,
                name=self._name,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=",".join(queues),
                slots=self._options.slots,
                processes=self._options.processes,
                state="running",
                started_at=now,
                heartbeat_at=now,
                alive=True,
            )
        )

    def stopped(self) -> None:
        """The last word of the record; a lost one only looks like a silent worker."""
        try:
            self._store.worker_beat(self._worker_id, "stopped")
        except StoreUnavailable as away:
            _log.warning("the worker's record could not be closed: %s", away)

    def store_answers(self, now: float) -> bool:
        """The database has answered within the last two beats."""
        return now - self._answered_at < 2 * self._settings.heartbeat_s + RETRY_S

    def step(self) -> float:
        """One beat."""
        try:
            self._renew()
            self._pass_on_cancels()
            self._store.worker_beat(self._worker_id, self._state())
        except StoreUnavailable as away:
            self._say(logging.WARNING, "renew", f"the database is away, leases are not renewed: {away}")
            return min(RETRY_S, self._settings.heartbeat_s)
        self._answered_at = self._clock.monotonic()
        return self._settings.heartbeat_s

    def _renew(self) -> None:
        held = {s.token: (child, s) for child in self._children() for s in _held(child)}
        if not held:
            return
        # Taken before the renewal is sent: the lease in the database ends later than the child believes.
        sent = self._clock.monotonic()
        standing = self._store.renew(list(held), worker_id=self._worker_id, lease_s=self._settings.lease_s)
        deadline = sent + self._settings.lease_s - min(1.0, self._settings.lease_s / 5)
        for token, (child, snapshot) in held.items():
            if token in standing:
                child.arena.set_deadline(snapshot.index, token, deadline)
            elif any(now.token == token for now in _held(child)):  # else it was finished while the renewal was sent
                self._say(logging.WARNING, "lost", f"lease {token:x} of {len(snapshot.records)} tasks was lost")
                child.arena.set_lost(snapshot.index, token)

    def _pass_on_cancels(self) -> None:
        for child in self._children():
            for snapshot in _held(child):
                task_ids = [record.id for record in snapshot.open_records()]
                asked = self._store.cancel_requested(task_ids) if task_ids else set()
                if asked:
                    child.arena.set_cancel(snapshot.index, snapshot.token, asked)


def _held(child: ChildProcess) -> list[Snapshot]:
    try:
        snapshots = child.arena.snapshots()
    except ValueError:  # unmapped a moment ago: the child was reaped by the main thread
        return []
    return [s for s in snapshots if s.phase is Phase.HELD and not s.lost]


def end_leases(
    store: Store, broker: Broker, snapshot: Snapshot, *, worker_id: str, rng: Random, culprits: frozenset[int],
    interrupted: bool, on_dead: Callable[[Sequence[Moved]], None],
) -> Callable[[], bool]:  # fmt: skip
    """The act of ending one token of a process that has been reaped; call it until it answers True.

    False (or StoreUnavailable): rows are still locked, perhaps by the dead process's own session, which the server
    has not noticed yet.

    Waiting tasks are handed back. Begun ones: interrupted if the process was stopped on purpose; of a process that
    was killed for a culprit the culprit timed out and its neighbours are handed back; otherwise all of them are lost,
    for any of them may have killed it.
    """
    begun = {r.id for r in snapshot.records if r.state in {State.BEGUN, State.ENDED}}
    task_ids = [record.id for record in snapshot.records]

    def outcome(task_id: int) -> Outcome:
        if task_id not in begun:
            return Interrupted(False, failure("Interrupted", "its process ended before it began"))
        if task_id in culprits:
            return TimedOut(failure("TaskTimeout", "still running after its time limit; its process was replaced"))
        if culprits or interrupted:
            return Interrupted(True, failure("Interrupted", "its process was stopped while it ran"))
        return Lost(failure("ProcessLost", "its process died while it ran"))

    def judge(lease: Lease) -> Verdict:
        return decide(Attempt(lease.attempt, lease.max_retries), outcome(lease.id), policy_of(lease.options), rng)

    def act() -> bool:
        settled = store.end_lease(snapshot.token, task_ids, judge=judge, worker_id=worker_id, expired_only=False)
        if settled is None:
            return True
        dispatch(broker, settled.moved)
        buried = [m for m in settled.moved if m.event is Event.BURY]
        if buried:
            on_dead(buried)
        return not settled.locked

    return act
