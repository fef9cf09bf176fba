"""What the window remembers is bounded, whatever Redis does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tandemq.broker import protocol
from tandemq.core.task import Level
from tandemq.reconciler import window
from tandemq.reconciler.window import Window
from tandemq.testing import FakeClock

LOW = Level("default", 0)


class Redis:
    """Loses everything that is pushed to it."""

    def __init__(self) -> None:
        self.pushed: list[int] = []

    def window(self, level: Level, size: int) -> protocol.Window:
        return protocol.Window()

    def push_next(self, level: Level, ids: Sequence[int]) -> None:
        self.pushed += ids


class Database:
    """Its oldest rows move on by ``step`` at every look, as if somebody ran them."""

    def __init__(self, step: int) -> None:
        self.at, self.step = 0, step

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        self.at += self.step
        return list(range(self.at, self.at + limit))


def make(clock: FakeClock, redis: Redis, database: Database) -> Window:
    return Window(cast(Any, database), cast(Any, redis), clock)


def test_ids_are_forgotten_after_30_seconds_and_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_REMEMBERED", 3000)
    clock, redis = FakeClock(), Redis()
    looker = make(clock, redis, Database(500))
    for _ in range(50):
        looker.look(LOW)
        clock.advance(0.25)

    remembered = looker._seen[LOW].pushed_at
    assert len(remembered) <= 3000 + window.ROWS
    assert len(redis.pushed) > 3000
    clock.advance(31)
    looker.look(LOW)
    assert not looker._seen[LOW].pushed_at


def test_an_id_is_pushed_at_most_once_in_30_seconds() -> None:
    clock, redis = FakeClock(), Redis()
    looker = make(clock, redis, Database(0))
    for _ in range(290):
        looker.look(LOW)
        clock.advance(0.1)

    assert sorted(redis.pushed) == list(range(window.ROWS))


def test_levels_that_are_gone_are_forgotten() -> None:
    clock = FakeClock()
    looker = make(clock, Redis(), Database(0))
    for priority in range(5):
        looker.look(Level("default", priority))

    looker.forget(keep=[LOW])

    assert set(looker._seen) == {LOW}


def test_a_look_of_long_ago_is_not_the_look_before() -> None:
    """Out of leadership for a minute: missing then and missing now is not missing twice in a row."""
    clock, redis = FakeClock(), Redis()
    looker = make(clock, redis, Database(0))
    looker.look(LOW)
    clock.advance(60)

    looker.look(LOW)

    assert redis.pushed == []
