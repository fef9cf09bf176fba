"""What a worker takes from MySQL while Redis is away: which rows, in which order, how much, how often."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest

from tandemq.core.task import Level
from tandemq.testing import FakeClock
from tandemq.worker import direct
from tandemq.worker.direct import WithoutRedis
from tandemq.worker.fair import FairTurns

LOW, HIGH = Level("default", 0), Level("default", 20)
OTHER, FOREIGN = Level("a-other", 20), Level("foreign", 30)


class Rows:
    """Pending rows by level, the oldest first; some are locked, or refused by the database."""

    def __init__(self, rows: dict[Level, list[int]]) -> None:
        self.rows = rows
        self.held: set[int] = set()
        self.claimed: list[int] = []
        self.reads = 0

    def open_levels(self) -> list[Level]:
        return sorted(level for level, ids in self.rows.items() if ids)

    def oldest_due(self, level: Level, *, limit: int, older_than_s: float) -> list[int]:
        assert older_than_s == 0
        self.reads += 1
        return self.rows[level][:limit]

    def claim(self, level: Level, ids: list[int]) -> Collection[int]:
        taken = [i for i in ids if i not in self.held and i in self.rows[level]]
        self.rows[level] = [i for i in self.rows[level] if i not in taken]
        self.claimed += taken
        return [i for i in ids if i not in taken]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def without(rows: Rows, clock: FakeClock, *, after_s: float = 5.0, seed: int = 1) -> WithoutRedis:
    return WithoutRedis(rows, lambda: ("default", "a-other"), after_s=after_s, clock=clock, rng=Random(seed))  # type: ignore[arg-type]


def test_work_goes_on_after_the_set_time_and_redis_is_tried_now_and_then(clock: FakeClock) -> None:
    mode = without(Rows({}), clock)
    assert not mode.is_away
    assert mode.is_time_for_redis

    mode.failed()
    clock.advance(4.9)
    mode.failed()
    assert mode.is_away
    assert mode.is_time_for_redis
    assert mode.begins_in_s == pytest.approx(0.1)
    clock.advance(0.1)
    assert mode.begins_in_s == 0
    assert not mode.is_time_for_redis
    clock.advance(direct.TRY_REDIS_S)
    assert mode.is_time_for_redis
    mode.failed()
    assert not mode.is_time_for_redis

    assert mode.is_back()
    assert not mode.is_away
    mode.failed()
    assert mode.begins_in_s == 5
    assert not mode.is_back(), "nothing was done without it"


def test_redis_that_is_back_in_the_middle_of_a_look_does_not_confuse_it(clock: FakeClock) -> None:
    rows, asked = Rows({LOW: [1, 2]}), list[int]()
    rows.held = {1}
    mode = without(rows, clock)
    mode.failed()

    def claim(level: Level, ids: list[int]) -> Collection[int]:
        asked.extend(ids)
        no_work = rows.claim(level, ids)
        mode.is_back()  # another thread has popped
        return no_work

    mode.look(lambda: 1, claim)
    assert asked == [1, 2], "what was passed over stays so for this look"


def test_a_look_that_sets_no_pace_puts_off_no_other(clock: FakeClock) -> None:
    rows = Rows({LOW: [1]})
    mode = without(rows, clock)
    mode.look(lambda: 1, rows.claim, sets_pace=False)
    assert (rows.claimed, mode.next_look_s) == ([1], 0)


def test_a_look_goes_through_all_levels_of_the_worker_as_a_pop_would(clock: FakeClock) -> None:
    rows = Rows({FOREIGN: [1], LOW: [2, 3], HIGH: [4, 5], OTHER: [6, 7]})
    without(rows, clock).look(lambda: 100, rows.claim)

    assert rows.claimed == [4, 5, 6, 7, 2, 3], "default before a-other, in the order of -q"


def test_a_look_takes_no_more_than_there_is_room_for_and_never_more_than_50(clock: FakeClock) -> None:
    rows = Rows({HIGH: list(range(1, 31)), LOW: list(range(31, 200))})
    mode = without(rows, clock)
    mode.look(lambda: 7 - len(rows.claimed), rows.claim)
    assert rows.claimed == list(range(1, 8))
    mode.look(lambda: 400, rows.claim)
    assert rows.claimed == list(range(1, 58))
    reads = rows.reads
    mode.look(lambda: 0, rows.claim)
    assert rows.reads == reads


def test_rows_that_are_held_do_not_hide_those_behind_them_nor_lower_levels(clock: FakeClock) -> None:
    rows = Rows({HIGH: list(range(1, 11)), LOW: [20, 21]})
    rows.held = set(range(1, 7))
    mode = without(rows, clock)

    mode.look(lambda: 3, rows.claim)
    assert rows.claimed[:3] == [7, 8, 9], "two claims found nothing, the third went on behind them"
    mode.look(lambda: 10, rows.claim)
    assert rows.claimed[3:6] == [10, 20, 21]

    rows.held.clear()
    mode.look(lambda: 10, rows.claim)
    assert len(rows.claimed) == len({7, 8, 9, 10, 20, 21}), "passed over for a while"
    clock.advance(direct.PASS_OVER_S)
    mode.look(lambda: 10, rows.claim)
    assert sorted(rows.claimed) == [*range(1, 11), 20, 21]


def test_a_look_ends_however_many_rows_cannot_be_claimed(clock: FakeClock) -> None:
    rows = Rows({LOW: list(range(1, 20_001))})
    rows.held = set(range(1, 20_001))
    mode = without(rows, clock)
    for looks in range(1, 31):
        mode.look(lambda: 400, rows.claim)
        assert rows.reads <= looks * direct.MAX_CLAIMS


def test_a_level_full_of_rows_that_are_no_work_keeps_no_level_below_it_waiting(clock: FakeClock) -> None:
    rows = Rows({HIGH: list(range(1, 20_001)), LOW: [30_001]})
    rows.held = set(range(1, 20_001))
    without(rows, clock).look(lambda: 50, rows.claim)
    assert rows.claimed == [30_001]


def test_what_is_passed_over_is_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_PASSED_OVER", 60)
    rows = Rows({LOW: list(range(1, 1000))})
    rows.held = set(range(1, 1000))
    mode = without(rows, clock)
    asked: list[int] = []

    def claim(level: Level, ids: list[int]) -> Collection[int]:
        asked.extend(ids)
        return rows.claim(level, ids)

    for _ in range(4):
        mode.look(lambda: 50, claim)
    assert max(asked) <= 160


def test_a_worker_whose_ids_another_one_takes_goes_on_behind_them_in_the_same_look(clock: FakeClock) -> None:
    rows = Rows({LOW: list(range(1, 41))})
    lost: list[int] = []

    def lost_race(level: Level, ids: list[int]) -> Collection[int]:
        if not lost:
            lost.extend(ids)
            rows.rows[level] = [i for i in rows.rows[level] if i not in ids]  # the other worker's now
        return rows.claim(level, ids)

    without(rows, clock).look(lambda: 8, lost_race)

    assert lost == list(range(1, 9))
    assert rows.claimed[:8] == list(range(9, 17))


def test_looks_are_half_a_second_apart_or_two_while_there_is_nothing_and_workers_drift_apart(clock: FakeClock) -> None:
    rows = Rows({LOW: list(range(1, 500))})
    mode, other = without(rows, clock), without(rows, clock, seed=2)
    mode.look(lambda: 1, rows.claim)
    other.look(lambda: 1, rows.claim)
    assert 0.375 <= mode.next_look_s <= 0.625
    assert mode.next_look_s != other.next_look_s

    rows.rows[LOW] = []
    for _ in range(3):
        mode.look(lambda: 1, rows.claim)
    assert 1.5 <= mode.next_look_s <= 2.5
    rows.rows[LOW] = [1]
    mode.look(lambda: 1, rows.claim)
    assert mode.next_look_s <= 0.625


def test_a_look_that_fails_is_not_repeated_at_once(clock: FakeClock) -> None:
    mode = without(Rows({LOW: [1]}), clock)

    def broken(_level: Level, _ids: list[int]) -> Collection[int]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        mode.look(lambda: 1, broken)
    assert mode.next_look_s > 0.3


def test_with_fair_lower_levels_have_their_share_here_too(clock: FakeClock) -> None:
    rows = Rows({HIGH: list(range(1, 1000)), OTHER: list(range(2001, 3000)), LOW: list(range(5001, 5201))})
    mode = WithoutRedis(
        rows, lambda: ("default", "a-other"), after_s=5.0, clock=clock, rng=Random(1), fair=FairTurns()  # type: ignore[arg-type]
    )  # fmt: skip
    for _ in range(60):
        begun = len(rows.claimed)
        mode.look(lambda begun=begun: 8 - (len(rows.claimed) - begun), rows.claim)  # type: ignore[misc]
        clock.advance(1)
    of = [sum(first < i < first + 1000 for i in rows.claimed) for first in (0, 2000, 5000)]
    assert of == [pytest.approx(n, abs=8) for n in (384, 48, 48)]
