"""The fair order of levels: shares are kept whatever the sizes of the pops, and nobody is passed over for ever."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core.task import Level
from tandemq.worker.fair import ONE_OF, FairTurns

HIGH, MEDIUM, LOW, OTHER = Level("a", 20), Level("a", 10), Level("a", 0), Level("b", 0)
LEVELS = [HIGH, MEDIUM, LOW, OTHER]


def pops(turns: FairTurns, waiting: dict[Level, int], limit: int, times: int) -> list[tuple[Level, int]]:
    """What a worker would take, pop by pop: the first level in order that has something."""
    taken = []
    for _ in range(times):
        order, most = turns.order(LEVELS, limit)
        assert sorted(order) == sorted(LEVELS)
        assert 1 <= most <= limit
        level = next((level for level in order if waiting.get(level)), None)
        if level is None:
            break
        n = min(most, waiting[level])
        waiting[level] -= n
        turns.took(level, n)
        taken.append((level, n))
    return taken


def sums(taken: list[tuple[Level, int]]) -> Counter[Level]:
    found: Counter[Level] = Counter()
    for level, n in taken:
        found[level] += n
    return found


@pytest.mark.parametrize("limit", [1, 3, 50, 400])
def test_one_of_five_is_of_a_lower_level_whatever_a_pop_takes(limit: int) -> None:
    found = sums(pops(FairTurns(), dict.fromkeys([HIGH, LOW], 10**6), limit, 1000))
    assert found[LOW] / found.total() == pytest.approx(1 / ONE_OF, rel=0.05)


def test_lower_levels_share_it_by_turns() -> None:
    taken = pops(FairTurns(), dict.fromkeys(LEVELS, 10**6), 1, 600)
    found = sums(taken)
    assert found[HIGH] == pytest.approx(480, abs=5)
    assert {found[level] for level in LEVELS[1:]} <= {39, 40, 41}
    for level in LEVELS[1:]:
        places = [i for i, (of, _) in enumerate(taken) if of == level]
        assert max(b - a for a, b in pairwise(places)) <= ONE_OF * 3


def test_what_is_highest_now_counts_not_what_could_be() -> None:
    found = sums(pops(FairTurns(), dict.fromkeys([LOW, OTHER], 1000), 1, 500))
    assert found[OTHER] == pytest.approx(100, abs=2)


def test_a_turn_takes_no_more_than_was_earned() -> None:
    """Where higher work comes in small portions a big pop of lower work would keep the next ones waiting."""
    turns, waiting = FairTurns(), {LOW: 1000}
    for _ in range(50):
        waiting[HIGH] = 8
        assert max(n for level, n in pops(turns, waiting, 400, 2) if level == LOW or n == 8) <= 8
    assert 80 <= 1000 - waiting[LOW] <= 120


def test_without_lower_work_nothing_is_saved_up_for_it() -> None:
    turns, waiting = FairTurns(), {HIGH: 10**6}
    pops(turns, waiting, 4, 500)
    waiting[LOW] = 100
    assert sums(pops(turns, waiting, 4, 10))[LOW] <= 12


def test_levels_that_are_not_watched_any_more_are_no_hindrance() -> None:
    turns = FairTurns()
    turns.took(Level("gone", 5), 100)
    assert turns.order(LEVELS, 7) == (LEVELS, 7)
    turns.took(OTHER, 100)  # the lowest of all
    assert turns.order(LEVELS, 7) == (LEVELS, 7)


@given(st.lists(st.tuples(st.sampled_from(LEVELS[:3]), st.integers(1, 30)), max_size=60), st.integers(1, 20))
def test_whatever_comes_the_lowest_is_not_kept_waiting(arrivals: list[tuple[Level, int]], limit: int) -> None:
    """Other levels fill and empty as they like; OTHER always has something, and gets its turn in a bounded time."""
    turns, waiting, since = FairTurns(), {OTHER: 10**6}, 0
    for level, n in arrivals * 3:
        waiting[level] = waiting.get(level, 0) + n
        for served, taken in pops(turns, waiting, limit, 2):
            since = 0 if served == OTHER else since + taken
        # Three rounds among the lower levels, each of which takes what up to four more pops have earned.
        assert since <= 3 * (ONE_OF * limit + ONE_OF)
