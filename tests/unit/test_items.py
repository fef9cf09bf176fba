"""Splitting bodies: whatever the cuts between chunks, the same items come out, and no more is kept than allowed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.http.items import BrokenBody, Elements, Item, Lines, Splitter

MANY = 10**6
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SPACES = st.sampled_from(["", " ", "\n", "\r\n \t"])


def cut(body: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    """The body in pieces, empty ones too."""
    edges = sorted(c % (len(body) + 1) for c in cuts)
    for begin, end in zip([0, *edges], [*edges, len(body)], strict=True):
        yield body[begin:end]


def split(splitter: Splitter, pieces: Iterator[bytes] | Sequence[bytes]) -> tuple[list[Item], BrokenBody | None]:
    items: list[Item] = []
    try:
        for piece in pieces:
            items.extend(splitter.feed(piece))
        items.extend(splitter.end())
    except BrokenBody as broken:
        return items, broken
    return items, None


@given(st.lists(VALUES, max_size=5), SPACES, st.booleans(), st.lists(st.integers(min_value=0), max_size=6))
def test_an_array_comes_apart_into_its_elements_wherever_the_chunks_end(
    values: list[object], space: str, escape: bool, cuts: list[int]
) -> None:
    texts = [json.dumps(value, ensure_ascii=escape) for value in values]
    body = f"{space}[{space}{f'{space},{space}'.join(texts)}{space}]{space}".encode()

    items, broken = split(Elements(MANY), cut(body, cuts))

    assert broken is None
    assert split(Elements(MANY), [bytes([byte]) for byte in body]) == (items, None)
    assert [json.loads(item.text or b"") for item in items] == values
    for item, text in zip(items, texts, strict=True):
        assert body[item.at : item.at + item.size] == item.text
        assert (item.text or b"").startswith(text.encode())
        assert item.line == 1 + body[: item.at].count(b"\n")


@given(st.lists(VALUES, max_size=5), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n"]), st.booleans(), st.lists(st.integers(min_value=0), max_size=6))  # fmt: skip  # noqa: E501
def test_lines_come_apart_wherever_the_chunks_end(
    values: list[object], line_end: str, last_one: bool, cuts: list[int]
) -> None:
    body = (line_end.join(json.dumps(value) for value in values) + line_end * last_one).encode()

    items, broken = split(Lines(MANY), cut(body, cuts))

    assert broken is None
    assert [json.loads(item.text or b"") for item in items] == values
    for item in items:
        assert body[item.at : item.at + item.size] == item.text
        assert item.line == 1 + body[: item.at].count(b"\n")


@pytest.mark.parametrize(
    ("body", "items", "says", "at"),
    [
        (" \n", 0, "the body is empty", 2),
        ('{"a": 1}', 0, "must be a JSON array", 0),
        ("\ufeff[]", 0, "must be a JSON array", 0),
        ("[1,,2]", 1, "missing after the comma", 3),
        ("[,1]", 0, "an item is missing", 1),
        ("[1,]", 1, "missing after the comma", 3),
        ("[1}", 0, "not opened", 2),
        ("[1] 2", 1, "behind the array", 4),
        ("[1]]", 1, "behind the array", 3),
        ("[", 0, "ends within", 1),
        ("[1", 0, "ends within", 2),
        ("[1,", 1, "ends within", 3),
        ('[{"a": "b]"', 0, "ends within", 11),
        ('["\\', 0, "ends within", 3),
        ("[1, " + "[" * 501, 1, "more than 500 levels", 4),
        ("[1, " + "[" * 500, 1, "ends within", 504),
        ("[\n1,\n[2}, 3", 2, "ends within", 11),
    ],
)
def test_where_an_array_is_broken(body: str, items: int, says: str, at: int) -> None:
    for pieces in ([body.encode()], [bytes([byte]) for byte in body.encode()]):
        found, broken = split(Elements(MANY), pieces)
        assert len(found) == items
        assert broken is not None
        assert says in str(broken)
        assert (broken.at, broken.line) == (at, 1 + body[:at].count("\n"))


@pytest.mark.parametrize("body", ["[]", " [ ] \n"])
def test_no_items(body: str) -> None:
    assert split(Elements(MANY), [body.encode()]) == ([], None)


def test_what_is_longer_than_the_limit_is_left_out_and_counted() -> None:
    long = b'{"text": "' + b'],\\"}' * 4 + b'"}'
    assert len(long) > 20
    for splitter, body in [(Lines(20), b"1\n%b\n2" % long), (Elements(20), b"[1,%b,2]" % long)]:
        for size in (1, 7, 1000):
            items, broken = split(type(splitter)(20), [body[at : at + size] for at in range(0, len(body), size)])
            assert broken is None
            assert [(item.text, item.size) for item in items] == [(b"1", 1), (None, len(long)), (b"2", 1)]


@pytest.mark.parametrize("splitter", [Lines, Elements])
def test_an_endless_item_costs_no_memory(splitter: type[Splitter]) -> None:
    one = splitter(100_000)
    list(one.feed(b'["' if splitter is Elements else b'"'))
    tracemalloc.start()
    try:
        for _ in range(200):
            assert list(one.feed(b"x" * 65_536)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    (item,) = one.feed(b'"]' if splitter is Elements else b'"\n')
    assert (item.text, item.size) == (None, 200 * 65_536 + 2)


def test_escapes_that_are_cut_in_two() -> None:
    body = rb'["\\", "\"]", "\\\"", {"\\": "}"}]'
    whole, _ = split(Elements(MANY), [body])
    assert [json.loads(item.text or b"") for item in whole] == ["\\", '"]', '\\"', {"\\": "}"}]
    for at in range(len(body)):
        assert split(Elements(MANY), [body[:at], body[at:]]) == (whole, None)
