"""What people ask of the store, and what they do to tasks: the part of ``store.protocol`` behind the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Protocol

from tandemq.core.audit import AuditPage, Deed
from tandemq.core.lifecycle import Status
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.task import Task
from tandemq.core.tokens import LiveTokens, NewToken, Token
from tandemq.store.answers import DeadKind, Filter, Holding, Moved, NotDue, Page, PruneCursor, PruneRule


class Inspecting(Protocol):
    """What people ask for; never counts a big table."""

    def get(self, task_id: int, *, attempts: bool = False) -> Task | None:
        """One row; with ``attempts`` its newest 100 failed ones (``full`` knows all)."""
        ...

    def ending(self, task_id: int) -> tuple[Status, str | None, str | None, str | None] | None:
        """(status, result, last_error, dead_reason) by primary key, for waiting callers."""
        ...

    def find(self, where: Filter, *, limit: int, after: int | None = None, max_bytes: int | None = None) -> Page:
        """Newest first by id, keyset pages. Reads a bounded number of rows: see ``Page`` for what that means.

        A page ends before payloads, results and errors together are over ``max_bytes``, but not before its first task.
        """
        ...

    def find_ids(self, where: Filter, *, limit: int, after: int | None = None) -> tuple[list[int], int | None]:
        """The ids of such a page, and its ``next``."""
        ...

    def counts(self) -> dict[str, Any]:
        """``{"queues": {queue: {"ready": n, "scheduled": n, "retrying": n, "running": n}}, "ended": {outcome: n}}``.

        Open rows are counted from the open index, and once more per priority under ``"priorities"``. Where there are
        more of them than may be counted a queue says ``"capped": true`` (there are at least so many); where it was too
        many to tell scheduled from retrying one by one, ``"estimated": true`` (those two are, from a sample). Ended
        ones come from ``task_counts``; ``ended["dead"]`` is how many are dead now, from the index
        (``"capped": ["dead"]``: at least), ``ended["dead_total"]`` how many ever died, ``ended["purged"]`` how many
        rows have been removed.
        """
        ...

    def busy(self, queues: Sequence[str]) -> bool:
        """Whether anything is due, running or retrying in these queues (``scheduled`` does not count).

        True as long as that is not known: very many rows for later are looked through in several calls.
        """
        ...

    def running(self, queue: str) -> int:
        """How many tasks of a queue run, by the batches in work: cheap, however long the queue is."""
        ...

    def merge_counts(self, after: tuple[str, str] | None) -> tuple[int, tuple[str, str] | None]:
        """Merge old counters of the (queue, task_type) behind ``after`` by day: rows that went, and where to go on.

        None, at the end, begins anew.
        """
        ...

    def cancel(self, task_id: int, *, kill: bool = False, deed: Deed | None = None) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has; TaskNotFound.

        ``kill``: one that runs and does not stop shall be ended with its process. The ``deed`` is written to the audit
        log where that changed something.
        """
        ...

    def purge(self, ids: Sequence[int], *, ended_before: datetime | None = None, deed: Deed | None = None) -> list[int]:
        """Delete final rows (status tested in the same statement) with their attempts; the ids that went.

        Keyed rows keep their key, and so stay, for 24 h after their end. Counted as ``purged``. The ids are added to
        the details of the ``deed``.
        """
        ...

    def purgeable(self, ids: Sequence[int]) -> list[int]:
        """Which of these ``purge`` would delete now."""
        ...

    def ended_ids(
        self, where: Filter, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[int], PruneCursor | None]:
        """Look at the next ``limit`` rows that ended as ``where.state`` says; the ids that fit, and where to go on.

        By queue, priority and run_at, each row once, in a time that does not grow: for all of them, where ``find``
        gives pages. ``where.ids`` and ``where.key`` are for ``find_ids``. None begins, and is the answer at the end.
        """
        ...

    def ended_kinds(
        self, where: Filter, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[DeadKind], PruneCursor | None]:
        """As ``ended_ids``, with what grouping needs to know of them."""
        ...

    def full(self, ids: Sequence[int]) -> tuple[list[Task], int]:
        """The first of these with their history, as many as fit into memory, at least one; and how many ids that were.

        In the order of the ids; rows that are gone are left out.
        """
        ...

    def prunable(
        self, rule: PruneRule, cursor: PruneCursor | None, *, limit: int
    ) -> tuple[list[int], PruneCursor | None]:
        """Look at the next ``limit`` rows at most, without locks: the ids that the rule means, and where to go on.

        None begins, and is the answer at the end.
        """
        ...

    def prune(self, ids: Sequence[int], rule: PruneRule, *, deed: Deed | None = None) -> int:
        """Delete what of these ids the rule still means; rows that others hold are left alone. Keyed ones as above."""
        ...


class TokenKeeping(Protocol):
    """Tokens of the HTTP API. Small: whoever lists them reads them all."""

    def add_token(self, new: NewToken, *, deed: Deed) -> None:
        """Store it, in one transaction with the audit row. Repeated by itself when the answer to COMMIT was lost."""
        ...

    def tokens(self) -> list[Token]:
        """All of them, newest first."""
        ...

    def live_tokens(self) -> LiveTokens:
        """Those that are neither revoked nor expired, by the database's clock; one round trip as long as any is."""
        ...

    def revoke_tokens(self, ids: Collection[str], *, deed: Deed) -> int:
        """Revoke what of these is not revoked yet, and write the audit row if that was any; how many."""
        ...

    def note_tokens_used(self, ids: Collection[str]) -> None:
        """Move ``last_used_at`` to now, where that is not less than a minute old."""
        ...


class Holdings(Protocol):
    """What a worker that is no process of ours is judged by before anything is written; plain reads."""

    def holding(self, task_id: int) -> Holding | None:
        """Who holds a task, without its payload; None if there is none."""
        ...

    def types_of(self, ids: Sequence[int]) -> dict[int, str]:
        """The types of those tasks that exist."""
        ...


class Watching(Protocol):
    """What a live view asks every second."""

    def kinds(self, ids: Sequence[int]) -> list[DeadKind]:
        """What grouping needs to know of these rows, in the given order; those that are gone are left out."""
        ...

    def waits(self, limit: int) -> list[tuple[str, float]]:
        """(queue, seconds from due to claimed) of up to ``limit`` tasks that are claimed at this moment."""
        ...


class Auditing(Protocol):
    """Who did what to which tasks, and why. Deeds are written in the transactions of what they tell of."""

    def record(self, deed: Deed, n: int) -> None:
        """Add ``n`` to the row of a deed, or write it, in a transaction of its own: after what cannot share one."""
        ...

    def audit(self, *, task_id: int | None = None, limit: int = 50, after: int | None = None) -> AuditPage:
        """Newest first. Of one task: rows about it alone, and among the newest thousand about many those that name it.

        A row names its tasks by ``details["ids"]``.
        """
        ...


class Pausing(Protocol):
    """What operators have paused."""

    def pauses(self) -> Sequence[Pause]:
        """Those that hold now, by kind and name."""
        ...

    def pause(self, kind: PauseKind, name: str, for_s: float | None, *, deed: Deed) -> None:
        """Pause a queue or a task type for so many seconds of database time (None: until resumed).

        One transaction with its audit row. One that holds already gets the new end and reason.
        """
        ...

    def resume(self, kind: PauseKind, name: str, *, deed: Deed) -> bool:
        """End a pause, in one transaction with its audit row; False if none holds, and nothing is written."""
        ...

    def hold(self, ids: Sequence[int], paused: Collection[str]) -> list[NotDue]:
        """Hold, as a claim would, what is due of ``ids`` and of one of these types, if that is paused indeed.

        Claims nothing. Ids that are not in the answer are left as they are: the caller puts them back.
        """
        ...

    def release_held(self, limit: int) -> tuple[list[Moved], bool]:
        """Let up to ``limit`` held tasks of types that are not paused any more be due from now on.

        Those that became due, oldest first, to be pushed; and whether there may be more that can be moved now.
        """
        ...
