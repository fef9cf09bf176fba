"""The memory that a child shares with its supervisor: which leases it holds and which of their tasks have begun.

The mark "begun" must be known to the supervisor before the handler is entered and must outlive the child, without a
system call a task: so it is a store into a mapped file. Per batch (one lease token):

    header  token u64 | count u32 | phase u32 | deadline f64 | lost u32 | pad
    record  id u64 | state u32 | cancel u32 | since f64 | limit_s f64          x 512

The child writes everything but ``deadline`` (after the first), ``lost`` and ``cancel``, which are the supervisor's.
A batch becomes visible by its token, written last and cleared first: an aligned 8-byte store, which x86-64 and
AArch64 do not tear.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

MAX_BATCHES = 64
MAX_TASKS = 512
_HEADER = struct.Struct("<QIIdII")
_RECORD = struct.Struct("<QIIdd")
_U64, _U32, _F64 = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<d")
_BATCH_BYTES = _HEADER.size + MAX_TASKS * _RECORD.size
#: After the batches: when the flusher last had an answer, and when the fetcher last took a good turn (monotonic).
_FLUSHED = MAX_BATCHES * _BATCH_BYTES
_FETCHED = _FLUSHED + 8
SIZE = _FETCHED + 8
_COUNT, _PHASE, _DEADLINE, _LOST = 8, 12, 16, 24
_STATE, _CANCEL, _SINCE = 8, 12, 16
NO_LIMIT = 0.0


def begin_within_s(lease_s: float) -> float:
    """How long after sending a claim or a renewal its tasks may still begin: the lease less a margin, in seconds.

    Counted from before it was sent, so that the lease in the database ends later than the child believes.
    """
    return lease_s - min(1.0, lease_s / 5)


class Phase(IntEnum):
    """``CLAIMING``: the claim was sent, its answer is not known; such a token is not renewed."""

    CLAIMING = 0
    HELD = 1


class State(IntEnum):
    """Of one task of a batch."""

    WAITING = 0
    BEGUN = 1
    ENDED = 2
    SETTLED = 3


@dataclass(frozen=True, slots=True)
class Record:
    """One task as the supervisor sees it: in this state ``since`` (monotonic). ``limit_s`` 0 means no time limit."""

    id: int
    state: State
    cancel: bool
    since: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One batch as the supervisor sees it."""

    index: int
    token: int
    phase: Phase
    deadline: float
    lost: bool
    records: tuple[Record, ...]

    def open_records(self) -> Iterator[Record]:
        """Those not yet settled."""
        return (r for r in self.records if r.state is not State.SETTLED)


class Arena:
    """The mapped file. One writer per field; safe to read from both processes at any moment."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, SIZE)

    @classmethod
    def create(cls) -> Arena:
        """Anonymous memory of the right size, to be inherited by the child. OSError if there is none."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("tandemq")
            try:
                os.ftruncate(fd, SIZE)
                return cls(fd)
            except OSError:
                os.close(fd)
                raise
        with tempfile.TemporaryFile(prefix="tandemq-") as file:
            file.write(bytes(SIZE))  # written, not only sized: a full disk must be an error here, not a SIGBUS later
            file.flush()
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """Unmap."""
        self._map.close()
        os.close(self.fd)

    # the child's side

    def open(self, token: int, ids: Sequence[int], deadline: float) -> Batch | None:
        """Register a token before its claim is sent; None when all batches are in use."""
        for index in range(MAX_BATCHES):
            base = index * _BATCH_BYTES
            if _U64.unpack_from(self._map, base)[0] == 0:
                _HEADER.pack_into(self._map, base, 0, len(ids), Phase.CLAIMING, deadline, 0, 0)
                for i, task_id in enumerate(ids):
                    at = base + _HEADER.size + i * _RECORD.size
                    _RECORD.pack_into(self._map, at, task_id, State.WAITING, 0, 0.0, 0.0)
                _U64.pack_into(self._map, base, token)
                return Batch(self._map, base, token, ids)
        return None

    def note_flush(self, now: float) -> None:
        """The database has answered for some verdicts."""
        _F64.pack_into(self._map, _FLUSHED, now)

    def note_fetch(self, now: float) -> None:
        """The fetcher has looked for work and had its answer, or there is no room for more."""
        _F64.pack_into(self._map, _FETCHED, now)

    # the supervisor's side

    @property
    def fetched_at(self) -> float:
        """When the fetcher last took a good turn, 0 before the first."""
        value: float = _F64.unpack_from(self._map, _FETCHED)[0]
        return value

    @property
    def flushed_at(self) -> float:
        """When verdicts were last answered for."""
        value: float = _F64.unpack_from(self._map, _FLUSHED)[0]
        return value

    def snapshots(self) -> list[Snapshot]:
        """Every batch in use."""
        found = []
        for index in range(MAX_BATCHES):
            base = index * _BATCH_BYTES
            token, count, phase, deadline, lost, _ = _HEADER.unpack_from(self._map, base)
            if token:
                start = base + _HEADER.size
                raw = bytes(self._map[start : start + min(count, MAX_TASKS) * _RECORD.size])
                records = tuple(Record(i, State(s), bool(c), b, t) for i, s, c, b, t in _RECORD.iter_unpack(raw))
                found.append(Snapshot(index, token, Phase(phase), deadline, bool(lost), records))
        return found

    def set_deadline(self, index: int, token: int, deadline: float) -> None:
        """After a renewal: until when (monotonic) the child may begin tasks of this token."""
        base = index * _BATCH_BYTES
        if _U64.unpack_from(self._map, base)[0] == token:
            _F64.pack_into(self._map, base + _DEADLINE, deadline)

    def set_lost(self, index: int, token: int) -> None:
        """The renewal matched nothing: the token is worth nothing any more."""
        base = index * _BATCH_BYTES
        if _U64.unpack_from(self._map, base)[0] == token:
            _U32.pack_into(self._map, base + _LOST, 1)

    def set_cancel(self, index: int, token: int, task_ids: set[int]) -> None:
        """Somebody asked for these to be cancelled."""
        base = index * _BATCH_BYTES
        token_now, count, *_ = _HEADER.unpack_from(self._map, base)
        if token_now != token:
            return
        for i in range(min(count, MAX_TASKS)):
            at = base + _HEADER.size + i * _RECORD.size
            if _U64.unpack_from(self._map, at)[0] in task_ids:
                _U32.pack_into(self._map, at + _CANCEL, 1)


class Batch:
    """The child's view of one registered token."""

    def __init__(self, memory: mmap.mmap, base: int, token: int, ids: Sequence[int]) -> None:
        self._map, self._base, self.token = memory, base, token
        self._at = {task_id: base + _HEADER.size + i * _RECORD.size for i, task_id in enumerate(ids)}
        self.unsettled = set(ids)
        #: When its claim was sent (monotonic).
        self.sent_at = 0.0

    def held(self, ids: Sequence[int]) -> None:
        """The claim was answered: these are ours, the others never were."""
        ours = set(ids)
        for task_id in self.unsettled - ours:
            _U32.pack_into(self._map, self._at[task_id] + _STATE, State.SETTLED)
        self.unsettled = ours
        _U32.pack_into(self._map, self._base + _PHASE, Phase.HELD)

    def begin(self, task_id: int, now: float, limit_s: float | None) -> bool:
        """Mark as begun, before the handler is entered; False when it must not begin any more.

        It must not when the conservative deadline has passed, the lease is lost or a cancel is asked for.
        """
        at = self._at[task_id]
        _, _, _, deadline, lost, _ = _HEADER.unpack_from(self._map, self._base)
        if now >= deadline or lost or _U32.unpack_from(self._map, at + _CANCEL)[0]:
            return False
        _RECORD.pack_into(self._map, at, task_id, State.BEGUN, 0, now, limit_s or NO_LIMIT)
        # A cancel written between the test and the pack is overwritten; the supervisor's next beat repeats it.
        return True

    def end(self, task_id: int, now: float) -> None:
        """The handler has returned or raised; ``since`` becomes the instant of the end."""
        at = self._at[task_id]
        _F64.pack_into(self._map, at + _SINCE, now)
        _U32.pack_into(self._map, at + _STATE, State.ENDED)

    def settle(self, task_ids: Sequence[int]) -> None:
        """The database has answered for these."""
        settled = int(State.SETTLED)
        for task_id in task_ids:
            _U32.pack_into(self._map, self._at[task_id] + _STATE, settled)
        self.unsettled.difference_update(task_ids)

    def close(self) -> None:
        """Nothing of the token is left in this process's hands."""
        _U64.pack_into(self._map, self._base, 0)

    @property
    def deadline(self) -> float:
        """Monotonic instant after which nothing of this token may begin."""
        value: float = _F64.unpack_from(self._map, self._base + _DEADLINE)[0]
        return value

    @property
    def lost(self) -> bool:
        """The supervisor could not renew it."""
        return bool(_U32.unpack_from(self._map, self._base + _LOST)[0])

    def cancel_asked(self, task_id: int) -> bool:
        """A cancel request is known."""
        return bool(_U32.unpack_from(self._map, self._at[task_id] + _CANCEL)[0])
