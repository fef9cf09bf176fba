"""What the rest of tandemq may ask of the database. Values in, values out; no SQL leaves this package.

Every method raises StoreUnavailable when the server cannot be reached, is read-only or failing over. Deadlocks (1213),
lock waits (1205) and stale snapshots (1020) are retried inside, whole transactions with jitter. ``now`` is always the
database's UTC clock, unless the store was built with a test clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from tandemq.core.audit import Deed
from tandemq.core.lifecycle import Verdict
from tandemq.core.retry import QueuePolicy
from tandemq.core.task import Inserted, Lease, Level, NewRow
from tandemq.store.answers import (
    Claim,
    Claimed,
    Ended,
    OpenRow,
    Settled,
    Settlement,
    WorkerRecord,
)
from tandemq.store.facts import Diagnosing, Gauging
from tandemq.store.questions import Auditing, Holdings, Inspecting, Pausing, TokenKeeping, Watching
from tandemq.store.runs import Replaying

#: A SQLAlchemy Connection, Session or (inside ``run_sync``) the sync twin of an AsyncSession. Kept opaque here.
Transaction: TypeAlias = Any


#: Judges one running row of a lease that is being ended: (lease as it was claimed, without its payload) -> verdict, or
#: None to leave it.
Judge: TypeAlias = Callable[[Lease], Verdict | None]


class Producing(Protocol):
    """Inserting tasks."""

    def insert(
        self,
        rows: Sequence[NewRow],
        *,
        connection: Transaction | None = None,
        times: bool = False,
        patient: bool = True,
    ) -> list[Inserted]:
        """Store rows, answers in input order; atomic per call without ``connection``: all rows or none.

        Keyless rows: one multi-row INSERT (at most 1,000 rows a statement, callers chunk). Keyed rows: one INSERT
        each, in key order; an existing equal task gives ``created`` False, an unequal one IdempotencyConflict.
        ``run_at`` is never stored in the past. With ``connection`` everything happens in the caller's transaction,
        nothing of its session is changed, and nothing is committed. A COMMIT whose answer was lost: with keys looked
        up again, otherwise EnqueueUnknown. ``times`` (not with ``connection``): answers of new rows carry theirs.
        Rows that others hold are waited for, about 15 s; unless ``patient`` once, 3 s. Then StoreBusy.
        """
        ...

    def visible(self, ids: Sequence[int]) -> set[int]:
        """Which of these ids are committed and pending, read on an own connection."""
        ...

    def after_commit(self, connection: Transaction, then: Callable[[], None]) -> None:
        """Call ``then`` once the caller's transaction has committed, or is about to; never on rollback.

        On a Connection (not on a Session) it is called just before the COMMIT is sent: check ``visible``.
        """
        ...

    def queue_policies(self) -> Mapping[str, QueuePolicy]:
        """How the tasks of a queue are retried, where an operator has decided that."""
        ...

    def set_queue_policy(self, queue: str, policy: QueuePolicy, *, deed: Deed) -> None:
        """Decide it, in one transaction with the audit row; an empty policy takes back what was decided."""
        ...


class HandlerTransaction(Protocol):
    """An open transaction on a connection of its own, lent to a handler that takes ``tx``."""

    @property
    def connection(self) -> Transaction:
        """A SQLAlchemy Connection. A commit by the handler is refused; a rollback of it undoes what it has written."""
        ...

    def succeed(self, lease: Lease, result: str | None, note: str = "") -> None:
        """Record the task's success, guarded by its token, and commit it with everything the handler wrote.

        LeaseLost: the row is no longer this lease's, all of it was rolled back. StoreUnknown: the answer to COMMIT was
        lost; an ordinary verdict sent after it waits for the old session, and tells. Any other error: rolled back.
        """
        ...

    def close(self, *, broken: bool = False) -> None:
        """Roll back what was not committed; ``broken``: the connection may be in the middle of a statement."""
        ...


class Leasing(Protocol):
    """Claim, renew, finish, end: every write after the claim is guarded by (id, token, running)."""

    def claim(
        self,
        ids: Sequence[int],
        *,
        token: int,
        worker_id: str,
        lease_s: float,
        free: int,
        known: Collection[str] | None,
        unknown_task_s: float,
        queues: Collection[str] | None = None,
        paused: Collection[str] = (),
    ) -> Claimed:
        """Claim what is claimable of ``ids``, in the given order, under one token, in one transaction.

        The claims row is part of that transaction. Rows locked by others are skipped. A row on its last attempt
        (attempts >= max_retries) is claimed only while fewer than ``free`` rows are claimed before it; it and all after
        it go to ``put_back``. ``known`` None means every type; rows of other ``queues`` (None: any) go to ``put_back``
        with their own level. A row of an unknown type is not claimed: its run_at moves on with backoff (1 s, half as
        long again each time, to 30 s), and after ``unknown_task_s`` it is dead (``unknown_task``). A row past
        ``expires_at`` is dead (``expired``). One of a ``paused`` type is held: its run_at moves to the end of the
        pause, or for an hour, until ``release_held`` gives it back. StoreUnknown: never run, never forget,
        ``give_back``.
        """
        ...

    def give_back(self, token: int, ids: Sequence[int]) -> Settled:
        """After a claim whose answer was lost: hand back what of ``ids`` carries the token, and remove its claims row.

        May be called again and again; waits for the old session while that holds the rows.
        """
        ...

    def renew(self, tokens: Collection[int], *, worker_id: str, lease_s: float) -> set[int]:
        """Extend claims that nobody has ended; returns the tokens that still stand. The others are lost."""
        ...

    def cancel_requested(self, ids: Collection[int]) -> set[int]:
        """Which of these have a cancel request (plain read by primary key)."""
        ...

    def kills(self, tokens: Collection[int]) -> set[tuple[int, int]]:
        """(token, id) of the tasks of these leases that shall be ended, if need be with their process."""
        ...

    def finish(
        self, settlements: Sequence[Settlement], *, closing: Collection[int], worker_id: str, again: bool = False
    ) -> Settled:
        """Write verdicts; rows are matched in (id, token) pairs and ``running``.

        ``again``: these were ``locked`` before, so no lock is waited for.

        ``closing``: tokens of which nothing else is left in this worker's hands; their claims rows go in the same
        transaction, but only if none of their rows is ``locked``. A cancel request turns a retry or release into
        ``cancelled``.
        A verdict sent twice is accepted twice (an equal final row under the own token is not fenced).
        """
        ...

    def transaction(self, limit_s: float | None) -> HandlerTransaction:
        """Open a transaction for a handler with this time limit. StoreUnavailable."""
        ...

    def expired_claims(self, limit: int) -> list[Claim]:
        """Claims past their end, oldest first, read without locks."""
        ...

    def end_lease(
        self, token: int, ids: Sequence[int], *, judge: Judge, worker_id: str, expired_only: bool
    ) -> Settled | None:
        """End the lease: judge its running rows, then delete its claims row, in one transaction.

        ``expired_only``: the claims row must still be past its end, else ROLLBACK and None (it was renewed meanwhile).
        ``judge`` may return None for a row to leave it running (only then the claims row stays).
        """
        ...


class Surveying(Protocol):
    """The reconciler's reads, all bounded, all without locks."""

    def open_levels(self) -> list[Level]:
        """Levels that have open rows, by skip scan over the open index."""
        ...

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        """Ids of the oldest pending rows due for longer than ``older_than_s``, by (run_at, id)."""
        ...

    def count_later(self, level: Level, *, limit: int) -> int:
        """How many pending rows of the level lie ahead, counted up to ``limit``."""
        ...

    def count_due_before(self, level: Level, instant: datetime, *, limit: int) -> int:
        """How many open rows of the level were due before an instant, counted up to ``limit``."""
        ...

    def pending_after(self, queue: str, cursor: str, limit: int) -> tuple[list[OpenRow], str]:
        """Pending rows of a queue in (priority, run_at, id) order behind an opaque cursor, and the next cursor.

        "" is the cursor to start with, and the one at the end.
        """
        ...

    def discard_expired(self, level: Level, *, limit: int) -> list[Ended]:
        """Bury pending rows of the level whose ``expires_at`` has passed, among the ``limit`` oldest due."""
        ...

    def orphans(self, after_id: int, limit: int) -> tuple[list[tuple[int, int]], int]:
        """Running rows whose token has no claims row, as (id, token), in the next stretch of ids; and the next cursor.

        At most ``limit`` times ten rows are looked at, finished ones included. The next cursor is 0 at the end.
        """
        ...

    def end_orphan(self, task_id: int, token: int, *, judge: Judge) -> Settled:
        """Lock the row, look for its claims row in a second statement, and judge it only if there is still none."""
        ...


class Recording(Protocol):
    """Install, epoch, leadership, workers, queues."""

    def ping(self) -> None:
        """One round trip, or StoreUnavailable."""
        ...

    def now(self) -> datetime:
        """The database's clock."""
        ...

    def check_schema(self) -> None:
        """NotMigrated unless every migration this code needs is applied."""
        ...

    def install_id(self) -> str:
        """Made by migrate, never changed."""
        ...

    def epoch(self) -> int:
        """The generation epoch."""
        ...

    def advance_epoch(self, old: int, new: int) -> bool:
        """Compare-and-set."""
        ...

    def lead(self, role: str, holder: str, lease_s: float) -> bool:
        """Take or keep the leadership of a role for ``lease_s``; only saves work, two leaders are harmless."""
        ...

    def worker_started(self, record: WorkerRecord) -> None:
        """Insert the worker's row (its times are the database's)."""
        ...

    def worker_beat(self, worker_id: str, state: str, *, busy: int = 0) -> None:
        """Move its heartbeat and state; ``busy``: how many of its slots run a task."""
        ...

    def workers(self, *, alive_s: float) -> list[WorkerRecord]:
        """Worker records; ``alive`` when the heartbeat is at most ``alive_s`` old and the state is not stopped."""
        ...

    def forget_workers(self, older_than_s: float) -> int:
        """Delete records of stopped or silent workers."""
        ...


class Store(
    Producing,
    Leasing,
    Surveying,
    Recording,
    Inspecting,
    Watching,
    Pausing,
    Replaying,
    Auditing,
    TokenKeeping,
    Holdings,
    Diagnosing,
    Gauging,
    Protocol,
):
    """All of it."""

    def close(self) -> None:
        """Drop all connections."""
        ...
