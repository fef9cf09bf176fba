"""The supervisor's side of leases: renewing those of living children, ending those of dead ones."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from random import Random

from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import StoreUnavailable
from tandemq.core.failure import failure
from tandemq.core.lifecycle import Attempt, Cancelled, Event, Interrupted, Lost, Outcome, TimedOut, Verdict, decide
from tandemq.core.retry import policy_of
from tandemq.core.settings import Settings
from tandemq.core.task import Lease
from tandemq.redeliver import count, dispatch
from tandemq.service import Throttle
from tandemq.store.answers import Moved, WorkerRecord
from tandemq.store.protocol import Store
from tandemq.worker.arena import Phase, Snapshot, State, begin_within_s
from tandemq.worker.options import WorkerOptions
from tandemq.worker.process import ChildProcess

_log = logging.getLogger("tandemq.worker")
#: While the database is away, and when a lease is short, renewals are tried this often.
RETRY_S = 1.0
#: A task that had ended when its process died is handed back without a price unless that has been done so often: one
#: that kills its process just after its handler has returned must come to an end as well.
GIVEN_BACK_MOST = 3
#: Between two tries to end leases, and the longest sleep of the ender when nothing wakes it.
END_AGAIN_S, IDLE_S = 0.1, 60.0
#: For how long a close renewal is shown.
MARGIN_FOR_S = 60.0


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
        self._registered = False
        self._answered_at = float("-inf")
        self._answering_since: float | None = None
        self._suspected: set[int] = set()
        self._margins: deque[tuple[float, float]] = deque(maxlen=1000)  # when (monotonic), least seconds left

    def _register(self) -> None:
        """Insert the worker's record, once a child has told its queues: without -q only the application knows them."""
        queues = next((child.queues for child in self._children() if child.ready), None)
        if self._registered or queues is None:
            return
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
                options=self._options.shown,
            )
        )
        self._registered = True

    def stopped(self) -> None:
        """The last word of the record; a lost one only looks like a silent worker."""
        try:
            self._store.worker_beat(self._worker_id, "stopped")
        except StoreUnavailable as away:
            _log.warning("the worker's record could not be closed: %s", away)

    @property
    def answering_since(self) -> float | None:
        """From when on every beat has been answered (monotonic); None while the last one was not, or none is recent."""
        late_s = self._clock.monotonic() - self._answered_at
        return self._answering_since if late_s < 2 * self._settings.heartbeat_s + RETRY_S else None

    @property
    def margin_s(self) -> float | None:
        """The least that was left of a lease when it was renewed, in the last minute; None if none was."""
        now = self._clock.monotonic()
        return min((left_s for at, left_s in list(self._margins) if now - at <= MARGIN_FOR_S), default=None)

    def step(self) -> float:
        """One beat."""
        recent = self.answering_since
        try:
            self._renew()
            self._register()
            self._store.worker_beat(self._worker_id, self._state(), busy=self._busy())
            self._pass_on_cancels()
        except StoreUnavailable as away:
            self._answering_since = None
            what = "the heartbeat is refused" if away.denied else "the database is away, leases are not renewed"
            self._say(logging.WARNING, "renew", f"{what}: {away}")
            return min(RETRY_S, self._settings.heartbeat_s)
        self._answered_at = self._clock.monotonic()
        # A beat that came late after a silence starts anew: before it nothing could be written.
        self._answering_since = self._answered_at if recent is None else recent
        return self._settings.heartbeat_s

    def _busy(self) -> int:
        """How many slots run a task."""
        held = [record for child in self._children() for s in _snapshots(child) for record in s.records]
        return sum(record.state is State.BEGUN for record in held)

    def _renew(self) -> None:
        self._tell_lost()
        held = {s.token: (child, s) for child in self._children() for s in _held(child)}
        if not held:
            return
        sent = self._clock.monotonic()
        spare_s = self._settings.lease_s - begin_within_s(self._settings.lease_s)
        self._margins.append((sent, min(s.deadline for _, s in held.values()) + spare_s - sent))
        crash_point("renew.before")
        standing = self._store.renew(list(held), worker_id=self._worker_id, lease_s=self._settings.lease_s)
        crash_point("renew.after")
        deadline = sent + begin_within_s(self._settings.lease_s)
        for token, (child, snapshot) in held.items():
            with contextlib.suppress(ValueError):  # unmapped meanwhile: the child was reaped
                if token in standing:
                    child.arena.set_deadline(snapshot.index, token, deadline)
                elif any(now.token == token for now in _held(child)):  # else it was finished while this was sent
                    child.arena.set_lost(snapshot.index, token)
                    self._suspected.add(token)

    def _tell_lost(self) -> None:
        """A lease is called lost a beat later: its end may just have been written, and the child not yet know it."""
        lost = {s.token: s for child in self._children() for s in _snapshots(child) if s.phase is Phase.HELD and s.lost}
        for token in self._suspected & lost.keys():
            count_open = sum(1 for _ in lost[token].open_records())
            self._say(logging.WARNING, "lost", f"lease {token:x} of {count_open} tasks was lost")
        self._suspected.clear()

    def _pass_on_cancels(self) -> None:
        for child in self._children():
            asked: set[tuple[int, int]] = set()
            for snapshot in _held(child):
                task_ids = [record.id for record in snapshot.open_records()]
                found = self._store.cancel_requested(task_ids) if task_ids else set()
                asked |= {(snapshot.token, task_id) for task_id in found}
                with contextlib.suppress(ValueError):
                    child.arena.set_cancel(snapshot.index, snapshot.token, found)
            doomed = self._doomed({token for token, _ in asked}) if asked else ()
            child.asked_to_stop(asked, doomed, self._clock.monotonic())

    def _doomed(self, tokens: set[int]) -> Collection[tuple[int, int]]:
        """Whose process is to be replaced if it does not stop. Without the right to ask, nobody's: cancels go on."""
        try:
            return self._store.kills(tokens)
        except StoreUnavailable as refused:
            if not refused.denied:
                raise
            self._say(logging.ERROR, "kills", f"cancel --kill is not obeyed: {refused}")
            return ()


def _snapshots(child: ChildProcess) -> list[Snapshot]:
    try:
        return child.arena.snapshots()
    except ValueError:  # unmapped a moment ago: the child was reaped by the main thread
        return []


def _held(child: ChildProcess) -> list[Snapshot]:
    return [s for s in _snapshots(child) if s.phase is Phase.HELD and not s.lost]


class Ending:
    """How the tasks of one token of a reaped process are judged.

    Waiting tasks are handed back. Begun ones: interrupted if the process was stopped on purpose; of a process that
    was killed for a culprit the culprit timed out (was cancelled, if that was why) and its neighbours are handed back;
    otherwise all of them are lost,
    for any of them may have killed it. One whose handler had ended is handed back too while there is such a suspect,
    which pays with an attempt: without one, or after some hand-backs, it is a suspect itself (a thread that it left
    behind, the memory it took).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        culprits: Collection[int] = (),
        unwanted: Collection[int] = (),
        interrupted: bool = False,
        others_ran: bool = False,
        rng: Random,
    ) -> None:
        self.snapshot, self._others_ran = snapshot, others_ran
        self.ids = [record.id for record in snapshot.records]
        self._states = {record.id: record.state for record in snapshot.records}
        self._culprits, self._unwanted, self._interrupted, self._rng = culprits, unwanted, interrupted, rng

    @property
    def is_loss(self) -> bool:
        """The process died by itself, or was killed by somebody else."""
        return not (self._culprits or self._unwanted or self._interrupted)

    def judge(self, lease: Lease) -> Verdict:
        """``decide``, by the row and the shared memory alone."""
        attempt = Attempt(lease.attempt, lease.max_retries)
        # ``fence`` rises with every claim, ``attempt`` falls back with every hand-back (and begins anew at a replay).
        outcome = self._outcome(lease.id, lease.fence - lease.attempt)
        return decide(attempt, outcome, policy_of(lease.options), self._rng)

    def _outcome(self, task_id: int, given_back: int) -> Outcome:
        state = self._states.get(task_id, State.WAITING)
        if state not in {State.BEGUN, State.ENDED}:
            return Interrupted(False, failure("Interrupted", "its process ended before it began"))
        if task_id in self._unwanted:
            return Cancelled(failure("Cancelled", "it did not stop on request; its process was replaced"))
        if task_id in self._culprits and state is State.ENDED:
            return Lost(failure("ResultLost", "it ran to its end, but its result could not be written"))
        if task_id in self._culprits:
            return TimedOut(failure("TaskTimeout", "still running after its time limit; its process was replaced"))
        if self._culprits or self._interrupted:
            return Interrupted(True, failure("Interrupted", "its process was stopped while it ran"))
        if state is State.ENDED and self._others_ran and given_back < GIVEN_BACK_MOST:
            return Interrupted(
                True, failure("ResultLost", "it had ended, but its process died before that was written")
            )
        return Lost(failure("ProcessLost", "its process died while it ran"))


def endings(child: ChildProcess, rng: Random) -> list[Ending]:
    """One for each token that a reaped child held."""
    held = child.leases()
    return [
        Ending(
            snapshot,
            culprits=child.culprits,
            unwanted=child.unwanted,
            interrupted=child.stopping,
            others_ran=any(record.state is State.BEGUN for s in held for record in s.records),
            rng=rng,
        )
        for snapshot in held
    ]


class LeaseEnder:
    """A service: ends the leases of reaped processes, and keeps what cannot be ended yet."""

    def __init__(
        self, store: Store, broker: Broker, *, worker_id: str, clock: Clock, on_dead: Callable[[Sequence[Moved]], None]
    ) -> None:
        self._store, self._broker, self._worker_id, self._on_dead = store, broker, worker_id, on_dead
        self._say = Throttle(_log, clock)
        self._waiting: deque[Ending] = deque()

    def add(self, ending: Ending) -> None:
        """Queue; call ``Loop.wake`` after it."""
        self._waiting.append(ending)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to end."""
        return not self._waiting

    def step(self) -> float:
        """Try each once; an error keeps it for the next turn, whatever the error."""
        for _ in range(len(self._waiting)):
            # Looked at in place: while it is tried it counts as not ended.
            try:
                done = self._end(self._waiting[0])
            except Exception as failed:
                self._say(logging.WARNING, "end", f"the leases of a dead child cannot be ended yet: {failed!r}")
                done = False
            if done:
                self._waiting.popleft()
            else:
                self._waiting.rotate(-1)
        return END_AGAIN_S if self._waiting else IDLE_S

    def _end(self, ending: Ending) -> bool:
        """False: rows are still locked, perhaps by the dead process's own session, which the server has not noticed."""
        token = ending.snapshot.token
        if ending.snapshot.phase is Phase.CLAIMING:
            # Its COMMIT may still be under way in the server: only a read that waits for it tells what was claimed.
            dispatch(self._broker, self._store.give_back(token, ending.ids).moved)
            return True
        settled = self._store.end_lease(
            token, ending.ids, judge=ending.judge, worker_id=self._worker_id, expired_only=False
        )
        if settled is None:
            return True
        count(settled.moved, lost=ending.is_loss)
        dispatch(self._broker, settled.moved)
        buried = [move for move in settled.moved if move.event is Event.BURY]
        if buried:
            self._on_dead(buried)
        return not settled.locked
