"""Errors that differ in ids, numbers and quotes only are of one kind; kinds are counted in bounded memory."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.core import kinds
from tandemq.core.kinds import Grouping, error_kind

AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("order 4711 has 3 items", "order N has N items"),
        ("took 0.25s of 10s", "took N.Ns of Ns"),
        ("no row 123e4567-e89b-12d3-a456-426614174000 here", "no row <uuid> here"),
        ("no row 123E4567-E89B-12D3-A456-426614174000 here", "no row <uuid> here"),
        ("commit deadbeef1 is gone", "commit <hex> is gone"),
        ("at 0x7f3a99 in object", "at <hex> in object"),
        ("a facade decade is a word", "a facade decade is a word"),
        ("key 'ann' not in \"users\" of `shop`", "key '...' not in '...' of '...'"),
        ("can't read it, isn't there", "can't read it, isn't there"),
        ("don't take 'x' and 'y z'", "don't take '...' and '...'"),
        ("\n\n  first   line \nsecond 7", "first line"),
        ("", ""),
        ("   \n", ""),
        ("an open 'quote", "an open 'quote"),
        ("漢字 12 😀", "漢字 N 😀"),
    ],
)
def test_what_only_tells_cases_apart_is_folded(text: str, kind: str) -> None:
    assert error_kind(text) == kind


def test_a_kind_has_a_length() -> None:
    assert len(error_kind("word " * 1000)) <= kinds.MAX_KIND


@given(st.text(max_size=3000))
def test_any_text_has_a_kind_and_a_kind_is_one_line(text: str) -> None:
    kind = error_kind(text)
    assert len(kind) <= kinds.MAX_KIND
    assert len(kind.splitlines()) <= 1


@pytest.mark.parametrize(
    "text", ["'" * 100_000, '"a' * 50_000, "a" * 100_000, "f0" * 50_000, "-".join(["0" * 8] * 9999)]
)
def test_an_error_made_to_be_slow_is_not(text: str) -> None:
    begun = time.process_time()
    error_kind(text)
    assert time.process_time() - begun < 0.5


def test_a_group_knows_its_first_and_last_and_the_id_of_the_last() -> None:
    grouping = Grouping("error")
    for task_id, kind, minutes in ((5, "a", 3), (7, "b", 0), (2, "a", 9), (9, "a", 1), (1, "a", 9)):
        grouping.add(task_id, kind, "E", AT + timedelta(minutes=minutes))

    groups = grouping.groups(capped=False)

    a, b = groups.items
    assert (a.kind, a.count, a.example_id, b.count) == ("a", 4, 2, 1)
    assert (a.first_at, a.last_at) == (AT + timedelta(minutes=1), AT + timedelta(minutes=9))
    assert (groups.total, groups.others, groups.capped) == (5, 0, False)
    assert groups.to_json() == {
        "by": "error", "total": 5, "others": 0, "capped": False, "next": None,
        "items": [
            {"error_type": "E", "kind": "a", "count": 4, "first_at": "2030-01-01T00:01:00.000000Z",
             "last_at": "2030-01-01T00:09:00.000000Z", "example_id": 2},
            {"error_type": "E", "kind": "b", "count": 1, "first_at": "2030-01-01T00:00:00.000000Z",
             "last_at": "2030-01-01T00:00:00.000000Z", "example_id": 7},
        ],
    }  # fmt: skip
    assert (groups.first(1).items, groups.first(1).others, groups.first(1).total) == ((a,), 1, 5)


def test_the_same_text_of_two_error_types_is_two_kinds() -> None:
    grouping = Grouping("error")
    grouping.add(1, "x", "KeyError", AT)
    grouping.add(2, "x", "ValueError", AT)
    assert len(grouping.groups(capped=False).items) == 2


def test_too_many_kinds_are_counted_together_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MAX_GROUPS", 3)
    grouping = Grouping("type")
    for n in range(10):
        grouping.add(n, f"kind {n % 5}", None, AT)

    groups = grouping.groups(capped=False)

    assert (len(groups.items), groups.others, groups.total, groups.capped) == (3, 4, 10, True)
    assert "error_type" not in groups.items[0].to_json()
