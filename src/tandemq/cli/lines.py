"""NDJSON into the queue: batches of lines, each stored whole, in bounded memory, in the order of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

from tandemq.core.body import new_task, parse_json
from tandemq.core.errors import EnqueueUnknown, IdempotencyConflict, InvalidTask, TandemQError
from tandemq.core.task import NewTask

#: Tasks stored by one call, and bytes of lines held for it.
BATCH_LINES, BATCH_BYTES = 1000, 4 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"

#: Stores tasks, all or none; says for each whether it was created (False: its key already had this task).
Insert = Callable[[list[NewTask]], list[bool]]
OnBad = Callable[[int, TandemQError], None]


class BadLine(InvalidTask):
    """A line was refused and the import ends there; everything before it is stored."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its number from 1, its bytes, and its task or what is wrong with it (neither: nothing to do)."""

    number: int
    size: int
    task: NewTask | None = None
    fault: InvalidTask | None = None


@dataclass(slots=True)
class Tally:
    """How far an import has come. All lines up to ``done`` need no second look: ``--skip done`` goes on after them."""

    stored: int = 0
    existing: int = 0
    bad: int = 0
    done: int = 0

    def to_json(self) -> dict[str, int]:
        """The JSON shape of the summary."""
        return {"stored": self.stored, "existing": self.existing, "bad": self.bad, "lines": self.done}


def read_lines(
    stream: IO[bytes], *, skip: int, max_bytes: int, task_of: Callable[[Any], NewTask] = new_task
) -> Iterator[Line]:
    """Parse line by line; blank lines count but are no tasks. A line over ``max_bytes`` is never held as a whole."""
    number = 0
    while raw := stream.readline(max_bytes + 1):
        number += 1
        size, rest, too_long = len(raw), raw, len(raw) > max_bytes
        while too_long and rest and not rest.endswith(b"\n"):
            rest = stream.readline(1 << 16)
            size += len(rest)
        if number <= skip:
            yield Line(number, size)
        elif too_long:
            yield Line(number, size, fault=InvalidTask(f"it is longer than {max_bytes} bytes", field="line"))
        else:
            yield _parse(number, size, raw.removeprefix(_BOM) if number == 1 else raw, task_of)


def _parse(number: int, size: int, raw: bytes, task_of: Callable[[Any], NewTask]) -> Line:
    if not raw.strip():
        return Line(number, size)
    try:
        return Line(number, size, task=task_of(parse_json(raw, "it")))
    except InvalidTask as fault:
        return Line(number, size, fault=fault)


@dataclass(slots=True)
class Importer:
    """Feeds lines to ``insert``. A bad line ends it (BadLine); with ``keep_going`` it is told to ``on_bad``.

    If the process dies, whole batches are stored: ``tally.done`` as last reported, or up to one batch more. With
    ``on_interrupt`` as the handler of SIGINT, Ctrl-C lets the batch in hand end, so that the tally is true; a second
    one does not.
    """

    insert: Insert
    keep_going: bool
    on_bad: OnBad
    tally: Tally = field(default_factory=Tally)
    _batch: list[tuple[int, NewTask]] = field(default_factory=list)
    _held: int = 0
    _inserting: bool = False
    _interrupted: bool = False

    def on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, now or after the batch in hand."""
        if not self._inserting or self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def run(self, lines: Iterator[Line]) -> None:
        """Take every line; what was read before the line that ends it is stored."""
        last = 0
        for line in lines:
            if line.fault is not None:
                if not self.keep_going:
                    self._flush(last)
                self._refuse(line.number, line.fault)
            elif line.task is not None:
                self._batch.append((line.number, line.task))
                self._held += line.size
            last = line.number
            if len(self._batch) >= BATCH_LINES or self._held >= BATCH_BYTES:
                self._flush(last)
        self._flush(last)

    def _flush(self, last: int) -> None:
        batch, self._batch, self._held = self._batch, [], 0
        if batch:
            self._store(batch)
        self.tally.done = last
        if self._interrupted:
            raise KeyboardInterrupt

    def _store(self, batch: list[tuple[int, NewTask]]) -> None:
        try:
            created = self._insert([task for _, task in batch])
        except (InvalidTask, IdempotencyConflict) as bad:
            # The call stores all or none and names no line: halves find it, and keep the order.
            if len(batch) == 1:
                self._refuse(batch[0][0], bad)
                return
            middle = len(batch) // 2
            self._store(batch[:middle])
            self._store(batch[middle:])
        except EnqueueUnknown as lost:
            raise EnqueueUnknown(f"lines {batch[0][0]} to {batch[-1][0]}: {lost}") from lost
        else:
            self.tally.stored += sum(created)
            self.tally.existing += len(created) - sum(created)
            self.tally.done = batch[-1][0]

    def _insert(self, news: list[NewTask]) -> list[bool]:
        self._inserting = True
        try:
            return self.insert(news)
        finally:
            self._inserting = False

    def _refuse(self, number: int, bad: TandemQError) -> None:
        if not self.keep_going:
            raise BadLine(f"line {number}: {bad}") from bad
        self.tally.bad += 1
        self.on_bad(number, bad)
