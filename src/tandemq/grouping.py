"""Group commit for producers: calls that come while an INSERT is under way share the next one.

Nobody waits for a timer. A call that finds nobody inserting inserts at once, alone; while it does, others queue up,
and the next of them inserts for all of them: one multi-row INSERT, one COMMIT, one push. Each caller is answered
after the commit that stored its row, and gets its own error.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence

from tandemq.core.errors import EnqueueUnknown, InvalidTask, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.task import Inserted, NewRow

#: Rows of one shared INSERT, and bytes of their payloads: a small caller must not wait for megabytes of others.
MAX_ROWS = 500
MAX_BYTES = 1024 * 1024

Insert = Callable[[Sequence[NewRow]], Sequence[Inserted]]


class _Call:
    __slots__ = ("answer", "error", "row")

    def __init__(self, row: NewRow) -> None:
        self.row = row
        self.answer: Inserted | None = None
        self.error: BaseException | None = None

    @property
    def is_answered(self) -> bool:
        return self.answer is not None or self.error is not None


class GroupCommit:
    """Shares INSERTs between threads. ``insert`` stores rows in one transaction and pushes them: all or none.

    Nobody is handed the lead: whoever gets the lock and is not answered yet inserts for all who wait. So a caller
    that is interrupted (a time limit, a signal) cannot take the lead with him.
    """

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._commit = threading.Lock()
        self._waiting: deque[_Call] = deque()

    def store(self, row: NewRow) -> Inserted:
        """Store one keyless row; its answer, or the error that its row (or the shared commit) met.

        Interrupted while it waits, its row may or may not be stored: nobody is told then.
        """
        call = _Call(row)
        self._waiting.append(call)
        try:
            with self._commit:
                while not call.is_answered:
                    self._lead()
        except BaseException:
            with contextlib.suppress(ValueError):
                self._waiting.remove(call)
            raise
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # noqa: S101 - answered without an error
        return call.answer

    def _lead(self) -> None:
        group = self._take()
        try:
            self._store(group)
        finally:
            for call in group:
                if not call.is_answered:
                    call.error = EnqueueUnknown("the caller who was storing this task too was interrupted")

    def _take(self) -> list[_Call]:
        """Those who have waited longest; at least one."""
        group = [self._waiting.popleft()]
        size = len(group[0].row.payload)
        with contextlib.suppress(IndexError):  # nobody else waits (or has just been interrupted)
            while len(group) < MAX_ROWS:
                size += len(self._waiting[0].row.payload)
                if size > MAX_BYTES:
                    break
                group.append(self._waiting.popleft())
        return group

    def _store(self, group: list[_Call]) -> None:
        try:
            answers = self._insert([call.row for call in group])
        except TandemQError as failed:
            # Refused for one of them: each is tried alone. Anything that may have been stored, or a server that is
            # away, is everybody's error: sending again could store a task twice, or wait once per caller.
            if len(group) == 1 or not _is_of_one_row(failed):
                for call in group:
                    call.error = failed if call is group[0] else _copy(failed)
                return
            for call in group:
                self._store([call])
            return
        for call, answer in zip(group, answers, strict=True):
            call.answer = answer


def _is_of_one_row(error: TandemQError) -> bool:
    return isinstance(error, InvalidTask | StoreRefused)


def _copy(error: BaseException) -> BaseException:
    """An exception of its own for each caller: a shared one would collect everybody's traceback."""
    try:
        copy = type(error)(*error.args)
    except TypeError:
        return StoreUnavailable(str(error))
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy
