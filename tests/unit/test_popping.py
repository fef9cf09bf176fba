"""How much a pop takes, by how long Redis takes to answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandemq.broker import popping
from tandemq.broker.keys import Keys
from tandemq.broker.popping import BadKeys, Popper
from tandemq.core.task import Level
from tandemq.testing import FakeClock

LEVEL = Level("default", 0)


class Line:
    """A Redis with one list behind a line of some length; ``pushed_after`` is how long a BRPOP of nothing waits."""

    max_block_s = 1.0

    def __init__(self, clock: FakeClock, round_trip_s: float) -> None:
        self.clock, self.round_trip_s, self.list, self.waits_s = clock, round_trip_s, deque[bytes](), 0.0
        self.commands: list[str] = []

    @contextmanager
    def use(self, role: object) -> Iterator[Line]:
        yield self

    def ask(self, client: object, *command: Any) -> Any:
        self.commands.append(command[0])
        self.clock.advance(self.round_trip_s)
        if command[0] == "BRPOP":
            self.clock.advance(self.waits_s)
            return (command[1].encode(), self.list.popleft()) if self.list else None
        return [self.list.popleft() for _ in range(min(command[2], len(self.list)))]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def popper(line: Line, monkeypatch: pytest.MonkeyPatch) -> Popper:
    monkeypatch.setattr(popping, "ask", line.ask)
    return Popper(line, Keys("ns"), line.clock, BadKeys(line.clock))  # type: ignore[arg-type]


@pytest.mark.parametrize("round_trip_s", [0.0001, 0.002, 0.05])
def test_a_long_list_is_popped_in_batches_however_long_the_line(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, round_trip_s: float
) -> None:
    line = Line(clock, round_trip_s)
    line.list.extend(b"%d" % n for n in range(1, 1001))
    pops = [popper(line, monkeypatch)] * 10
    assert [len(one.pop([LEVEL], 100, 0.5).ids) for one in pops] == [100] * 10


def test_a_line_that_becomes_slow_costs_small_batches_for_a_second(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(clock, 0.0001)
    line.list.extend(b"%d" % n for n in range(1, 10_001))
    one = popper(line, monkeypatch)
    assert len(one.pop([LEVEL], 100, 0.5).ids) == 100
    line.round_trip_s = 0.05
    sizes = [len(one.pop([LEVEL], 100, 0.5).ids) for _ in range(40)]
    assert sizes[:2] == [1, 1]
    assert set(sizes[25:]) == {100}


def test_an_entry_that_was_waited_for_is_taken_without_a_look_for_more(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(clock, 0.0001)
    one = popper(line, monkeypatch)
    line.waits_s = 0.05
    for n in range(1, 11):
        line.list.append(b"%d" % n)
        assert one.pop([LEVEL], 100, 0.5).ids == (n,)
    assert line.commands == ["BRPOP", "RPOP", *["BRPOP"] * 9]
