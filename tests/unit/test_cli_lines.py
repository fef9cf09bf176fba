"""NDJSON lines into batches, with a recording stand-in for the queue."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from tandemq.cli import lines
from tandemq.cli.lines import BadLine, Importer, read_lines
from tandemq.core.errors import EnqueueUnknown, IdempotencyConflict, InvalidTask, StoreUnavailable, TandemQError
from tandemq.core.task import NewTask


class Queue:
    """Stores all or none of a call; refuses types that start with ``bad``."""

    def __init__(self, error: Callable[[NewTask], TandemQError | None] | None = None) -> None:
        self.stored: list[str] = []
        self.calls: list[int] = []
        self.error = error or (lambda new: InvalidTask(f"{new.task_type} is bad") if "bad" in new.task_type else None)

    def insert(self, news: list[NewTask]) -> list[bool]:
        self.calls.append(len(news))
        for new in news:
            if error := self.error(new):
                raise error
        self.stored += [new.task_type for new in news]
        return [new.idempotency_key != "known" for new in news]


def stream(*tasks: object) -> io.BytesIO:
    return io.BytesIO(b"".join(t if isinstance(t, bytes) else json.dumps({"type": t}).encode() + b"\n" for t in tasks))


def run(
    queue: Queue, source: io.BytesIO, *, keep_going: bool = False, skip: int = 0, max_bytes: int = 1000
) -> tuple[Importer, list[str]]:
    told: list[str] = []
    importer = Importer(queue.insert, keep_going, lambda number, bad: told.append(f"{number}: {bad}"))
    try:
        importer.run(read_lines(source, skip=skip, max_bytes=max_bytes))
    except TandemQError as stopped:
        told.append(f"{type(stopped).__name__} {stopped}")
    return importer, told


def names(*numbers: int) -> list[str]:
    return [f"t{n}" for n in numbers]


def test_lines_are_stored_in_order_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH_LINES", 4)
    queue = Queue()

    importer, told = run(queue, stream(*names(*range(10))))

    assert queue.stored == names(*range(10))
    assert queue.calls == [4, 4, 2]
    assert importer.tally.to_json() == {"stored": 10, "existing": 0, "bad": 0, "lines": 10}
    assert told == []


def test_a_batch_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH_BYTES", 30)
    queue = Queue()

    run(queue, stream(*names(*range(5))))

    assert queue.calls == [2, 2, 1], "a line is 15 bytes"


def test_the_first_bad_line_ends_it_and_everything_before_it_is_stored() -> None:
    queue = Queue()

    importer, told = run(queue, stream("t1", "t2", b"{oops\n", "t4"))

    assert queue.stored == names(1, 2)
    assert told == [
        "BadLine line 3: it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    ]
    assert importer.tally.done == 2


@pytest.mark.parametrize("position", range(8))
def test_a_line_that_the_queue_refuses_is_found_within_its_batch(position: int) -> None:
    queue = Queue()
    tasks = names(*range(8))
    tasks[position] = "bad"

    importer, told = run(queue, stream(*tasks))

    assert queue.stored == tasks[:position]
    assert told == [f"BadLine line {position + 1}: bad is bad"]
    assert (importer.tally.stored, importer.tally.done) == (position, position)


def test_a_key_that_belongs_to_another_task_is_a_bad_line() -> None:
    queue = Queue(lambda new: IdempotencyConflict("taken by 7", task_id=7) if new.task_type == "t2" else None)

    _, told = run(queue, stream(*names(1, 2, 3)))

    assert queue.stored == names(1)
    assert told == ["BadLine line 2: taken by 7"]


def test_keep_going_reports_every_bad_line_and_stores_the_rest() -> None:
    queue = Queue()

    importer, told = run(queue, stream("t1", "bad", b"[]\n", "t4", b"\xff\n", "bad", "t7"), keep_going=True)

    assert queue.stored == names(1, 4, 7)
    assert sorted(told) == [
        "2: bad is bad",
        "3: a task must be a JSON object, not an array",
        "5: it is not UTF-8 (byte 1)",
        "6: bad is bad",
    ]
    assert importer.tally.to_json() == {"stored": 3, "existing": 0, "bad": 4, "lines": 7}


def test_skip_leaves_out_lines_without_looking_at_them() -> None:
    queue = Queue()

    importer, told = run(queue, stream(b"junk\n", b"\n", "t3", "t4"), skip=2)

    assert queue.stored == names(3, 4)
    assert told == []
    assert importer.tally.done == 4


def test_stopping_and_skipping_what_is_done_stores_each_line_once() -> None:
    queue = Queue()
    first, _ = run(queue, stream("t1", "t2", "bad", "t4"))

    run(queue, stream("t1", "t2", "t3", "t4"), skip=first.tally.done)

    assert queue.stored == names(1, 2, 3, 4)


def test_blank_lines_a_byte_order_mark_and_a_missing_last_line_end_are_fine() -> None:
    queue = Queue()
    source = io.BytesIO(b'\xef\xbb\xbf{"type": "t1"}\r\n\n  \n{"type": "t4"}')

    importer, told = run(queue, source)

    assert (queue.stored, told, importer.tally.done) == (names(1, 4), [], 4)


def test_a_line_without_end_is_refused_without_being_held_in_memory() -> None:
    class Endless(io.RawIOBase):
        """Hands out one line of a terabyte, then ``t2``; remembers the most that was asked for at once."""

        def __init__(self) -> None:
            self.given, self.most = 0, 0

        def readline(self, size: int | None = -1) -> bytes:  # type: ignore[override]
            assert size is not None
            assert size > 0
            self.most = max(self.most, size)
            self.given += 1
            if self.given == 50:
                return b"x\n"
            if self.given > 50:
                return b'{"type": "t2"}\n' if self.given == 51 else b""
            return b"x" * size

    source, queue = Endless(), Queue()
    told: list[str] = []
    importer = Importer(queue.insert, True, lambda number, bad: told.append(f"{number}: {bad}"))

    importer.run(read_lines(source, skip=0, max_bytes=1000))  # type: ignore[arg-type]

    assert told == ["1: it is longer than 1000 bytes"]
    assert queue.stored == names(2)
    assert source.most <= 1 << 16


def test_existing_tasks_are_counted_apart() -> None:
    queue = Queue()
    source = stream("t1", json.dumps({"type": "t2", "idempotency_key": "known"}).encode() + b"\n")

    importer, _ = run(queue, source)

    assert (importer.tally.stored, importer.tally.existing) == (1, 1)


def test_a_server_that_goes_away_ends_it_with_a_true_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BATCH_LINES", 2)
    queue = Queue(lambda new: StoreUnavailable("gone") if new.task_type == "t4" else None)

    importer, told = run(queue, stream(*names(1, 2, 3, 4, 5)), keep_going=True)

    assert told == ["StoreUnavailable gone"]
    assert (queue.stored, importer.tally.stored, importer.tally.done) == (names(1, 2), 2, 2)


def test_a_lost_commit_names_the_lines_that_nobody_knows_about() -> None:
    queue = Queue(lambda new: EnqueueUnknown("cut") if new.task_type == "t3" else None)

    _, told = run(queue, stream(*names(1, 2, 3)))

    assert told == ["EnqueueUnknown lines 1 to 3: cut"]


@pytest.mark.parametrize(("signals", "stored"), [(1, ["t1", "t2"]), (2, [])])
def test_an_interrupt_lets_the_batch_in_hand_end_and_a_second_one_does_not(
    signals: int, stored: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BATCH_LINES", 2)
    queue = Queue()

    def insert(news: list[NewTask]) -> list[bool]:
        for _ in range(signals if not queue.calls else 0):
            importer.on_interrupt(2, None)
        return queue.insert(news)

    importer = Importer(insert, False, lambda number, bad: None)
    with pytest.raises(KeyboardInterrupt):
        importer.run(read_lines(stream(*names(1, 2, 3)), skip=0, max_bytes=1000))

    assert queue.stored == stored
    assert queue.calls == ([2] if stored else []), "nothing more is begun"
    assert (importer.tally.stored, importer.tally.done) == (len(stored), len(stored))


def test_an_interrupt_between_batches_ends_it_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        Importer(Queue().insert, False, lambda number, bad: None).on_interrupt(2, None)


def test_bad_line_is_bad_input() -> None:
    assert issubclass(BadLine, InvalidTask)
