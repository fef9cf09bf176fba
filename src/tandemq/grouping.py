"""Group commit for producers: calls that come while an INSERT is under way share the next one.

Nobody waits for a timer. A call that finds nobody inserting inserts at once, alone, in its own thread. While it does,
others queue up, and a thread of ours inserts for all of them: one multi-row INSERT, one COMMIT, one push. Each caller
is answered after the commit that stored its row, and gets its own error.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from tandemq.background import Background
from tandemq.core.clock import Clock
from tandemq.core.errors import EnqueueUnknown, InvalidTask, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.task import Inserted, NewRow

_log = logging.getLogger("tandemq.producer")
#: How often a waiting caller looks whether the thread that is to answer lives, and how long closing waits for it.
LOOK_AGAIN_S, CLOSE_S = 1.0, 5.0
#: Rows of one shared INSERT, and bytes of their payloads: a small caller must not wait for megabytes of others.
MAX_ROWS = 500
MAX_BYTES = 1024 * 1024

Insert = Callable[[Sequence[NewRow]], Sequence[Inserted]]


class _Call:
    __slots__ = ("answer", "answered", "error", "row")

    def __init__(self, row: NewRow) -> None:
        self.row = row
        self.answer: Inserted | None = None
        self.error: BaseException | None = None
        #: Released by whoever answers. One lock per call: callers that share a lock, or a condition, wake up one after
        #: the other, each waiting for a turn of the one before (measured: no more enqueues with 32 threads than with 1
        #: on a busy machine).
        self.answered = threading.Lock()
        self.answered.acquire()

    @property
    def is_answered(self) -> bool:
        return self.answer is not None or self.error is not None


class GroupCommit:
    """Shares INSERTs between threads. ``insert`` stores rows in one transaction and pushes them: all or none.

    No caller inserts for others: one that is interrupted (a time limit, a signal) takes nobody along.
    """

    def __init__(self, insert: Insert, clock: Clock) -> None:
        self._insert = insert
        self._commit = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread = Background(self._run, clock)
        #: The thread that is inserting, 0 for none.
        self._owner = 0

    def store(self, row: NewRow) -> Inserted:
        """Store one keyless row; its answer, or the error that its row (or the shared commit) met.

        Interrupted while it waits, its row may or may not be stored: nobody is told then.
        """
        call = _Call(row)
        if self._owner == threading.get_ident():
            # A signal handler, or a logging handler, that enqueues while this thread is inserting: waiting for itself
            # would be for ever.
            self._store([call])
        elif self._commit.locked() or self._waiting:
            self._wait_for(call)
        else:
            # ``with`` is one C call: a TaskTimeout cannot fall between taking the lock and the body.
            with self._commit:
                self._store_as_owner([call])
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # noqa: S101 - answered without an error
        return call.answer

    def close(self) -> None:
        """End the thread; a later call starts another."""
        if self._thread.is_running:
            self._wake.put(False)
            self._thread.join(CLOSE_S)

    def _wait_for(self, call: _Call) -> None:
        self._waiting.append(call)
        try:
            self._wake.put(True)
            self._thread.ensure()
            while not call.answered.acquire(timeout=LOOK_AGAIN_S):
                self._thread.ensure()
        except BaseException:
            with contextlib.suppress(ValueError):  # it is being stored right now
                self._waiting.remove(call)
            raise

    def _run(self) -> None:
        while self._wake.get():
            group: list[_Call] = []
            with self._commit:
                try:
                    self._take(group)
                    if group:
                        self._store_as_owner(group)
                except BaseException as broken:
                    _log.exception("storing for %d callers failed", len(group))
                    for call in group:
                        if not call.is_answered:
                            call.error = EnqueueUnknown(f"the tasks may or may not be stored: {broken!r}")
            for call in group:
                call.answered.release()

    def _store_as_owner(self, group: list[_Call]) -> None:
        self._owner = threading.get_ident()
        try:
            self._store(group)
        finally:
            self._owner = 0

    def _take(self, group: list[_Call]) -> None:
        """Those who have waited longest; none if they were all taken along by the group before."""
        size = 0
        with contextlib.suppress(IndexError):  # nobody else waits (or has just been interrupted)
            while len(group) < MAX_ROWS:
                size += len(self._waiting[0].row.payload)
                if group and size > MAX_BYTES:
                    break
                group.append(self._waiting.popleft())

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
