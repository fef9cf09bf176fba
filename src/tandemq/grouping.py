"""Group commit for producers: calls that come while an INSERT is under way share the next one.

Nobody waits for a timer. A call that finds nobody inserting inserts at once, alone; while it does, others queue up,
and the first of them inserts for all of them: one multi-row INSERT, one COMMIT, one push. Each caller is answered
after the commit that stored its row, and gets its own error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tandemq.core.errors import EnqueueUnknown, InvalidTask, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.task import Inserted, NewRow

#: Rows of one shared INSERT, and bytes of their payloads: a small caller must not wait for megabytes of others.
MAX_ROWS = 500
MAX_BYTES = 1024 * 1024

Insert = Callable[[Sequence[NewRow]], Sequence[Inserted]]


class _Call:
    __slots__ = ("answer", "done", "error", "leads", "row")

    def __init__(self, row: NewRow) -> None:
        self.row = row
        self.answer: Inserted | None = None
        self.error: BaseException | None = None
        self.leads = False
        self.done = threading.Event()


class GroupCommit:
    """Shares INSERTs between threads. ``insert`` stores rows in one transaction and pushes them: all or none."""

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._is_led = False

    def store(self, row: NewRow) -> Inserted:
        """Store one keyless row; its answer, or the error that its row (or the shared commit) met."""
        call = _Call(row)
        with self._lock:
            if self._is_led:
                self._waiting.append(call)
            else:
                self._is_led = call.leads = True
        if not call.leads:
            call.done.wait()
        if call.leads:
            self._lead(call)
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # noqa: S101 - a call ends with an answer or an error
        return call.answer

    def _lead(self, own: _Call) -> None:
        """Insert for everybody who waits now, then hand the lead to one who came meanwhile."""
        group = [own, *self._take(own)]
        try:
            self._store(group)
        finally:
            with self._lock:
                heir = self._waiting.pop(0) if self._waiting else None
                if heir is None:
                    self._is_led = False
                else:
                    heir.leads = True
            if heir is not None:
                heir.done.set()
            for call in group[1:]:
                if call.answer is None and call.error is None:
                    call.error = EnqueueUnknown("the caller who was storing this task too was interrupted")
                call.done.set()

    def _take(self, own: _Call) -> list[_Call]:
        size = len(own.row.payload)
        with self._lock:
            for taken, call in enumerate(self._waiting):
                size += len(call.row.payload)
                if taken >= MAX_ROWS - 1 or size > MAX_BYTES:
                    break
            else:
                taken = len(self._waiting)
            group, self._waiting = self._waiting[:taken], self._waiting[taken:]
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
