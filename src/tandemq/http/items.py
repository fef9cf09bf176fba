"""Splitting a batch into its items while it arrives: lines of NDJSON, or the elements of a JSON array.

Nothing is parsed here. A splitter knows no more of JSON than where a value ends: strings, escapes, brackets. What it
keeps is the item that has begun, and never more of it than ``limit`` bytes: a longer one is counted and dropped.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

#: More than any task may have; without a bound brackets alone would keep a processor busy.
MAX_DEPTH: Final = 500
SPACE: Final = b" \t\r\n"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
#: Up to the next bracket (or comma), over all strings that are there as a whole. Possessive: nothing is read twice.
_WITHIN_BRACKETS = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+", re.DOTALL)
_OUTSIDE_BRACKETS = re.compile(rb'(?:[^"\[\]{},]++|' + _STRING + rb")*+", re.DOTALL)
#: The rest of a string: to its end, to what has not come yet, or to an escape whose other half has not.
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class Item(NamedTuple):
    """One item. ``text`` is None if it was longer than the limit; ``at`` and ``line`` say where it begins.

    ``at`` counts bytes from 0, ``line`` counts from 1.
    """

    text: bytes | None
    size: int
    at: int
    line: int


class BrokenBody(Exception):
    """From here on nobody can say what an item is; ``at`` and ``line`` as in ``Item``."""

    def __init__(self, why: str, at: int, line: int) -> None:
        super().__init__(f"{why} (line {line}, byte {at})")
        self.at, self.line = at, line


class Splitter(ABC):
    """Takes the bytes of a body, gives its items. One that raised BrokenBody takes no more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.at, self.line = 0, 1
        #: The item that has begun: where, and what is kept of it.
        self._began = (0, 1)
        self._kept: list[bytes] = []
        self._size = 0

    @abstractmethod
    def feed(self, chunk: bytes) -> Iterator[Item]:
        """The items that end in this chunk. Raises BrokenBody after those before it."""

    @abstractmethod
    def end(self) -> Iterator[Item]:
        """The body is over: what is left. Raises BrokenBody if it was cut."""

    def _begin(self) -> None:
        self._began = (self.at, self.line)

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self.limit:
            self._kept.append(piece)
        else:
            self._kept.clear()
        self._pass(piece)

    def _pass(self, piece: bytes) -> None:
        self.at += len(piece)
        self.line += piece.count(b"\n")

    def _item(self) -> Item:
        text = None if self._size > self.limit else b"".join(self._kept)
        item = Item(text, self._size, *self._began)
        self._kept.clear()
        self._size = 0
        return item


class Lines(Splitter):
    """NDJSON: an item a line. Blank lines are none; the last needs no line end."""

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """See ``Splitter``."""
        begin = 0
        # No string of JSON holds a raw line end.
        while (end := chunk.find(b"\n", begin)) >= 0:
            self._keep(chunk[begin:end])
            yield from self.end()
            self._pass(b"\n")
            self._begin()
            begin = end + 1
        self._keep(chunk[begin:])

    def end(self) -> Iterator[Item]:
        """See ``Splitter``."""
        item = self._item()
        if item.text is None or item.text.strip(SPACE):
            yield item


class _Next(Enum):
    """What may come next in an array, and what to say of anything else."""

    ARRAY = "the body must be a JSON array"
    FIRST = "an item is missing"
    ITEM = "an item is missing after the comma"
    INSIDE = "a bracket is closed that was not opened"
    NOTHING = "there is something behind the array"


class Elements(Splitter):
    """A JSON array: its elements, whatever they are."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._next = _Next.ARRAY
        self._depth = 0
        #: ``escaped``: the last byte of the chunk before was a backslash.
        self._in_string = self._escaped = False

    def feed(self, chunk: bytes) -> Iterator[Item]:
        """See ``Splitter``."""
        at = 0
        while at < len(chunk):
            if self._next is not _Next.INSIDE:
                at = self._between(chunk, at)
                continue
            end = self._find_end(chunk, at)
            self._keep(chunk[at:end])
            if end == len(chunk):
                return
            behind = chunk[end : end + 1]
            if behind == b"}":
                raise BrokenBody(self._next.value, self.at, self.line)
            yield self._item()
            self._next = _Next.ITEM if behind == b"," else _Next.NOTHING
            self._pass(behind)
            at = end + 1

    def end(self) -> Iterator[Item]:
        """See ``Splitter``."""
        if self._next is _Next.ARRAY:
            raise BrokenBody("the body is empty; an array without items is []", self.at, self.line)
        if self._next is not _Next.NOTHING:
            raise BrokenBody("the body ends within the array", self.at, self.line)
        yield from ()

    def _between(self, chunk: bytes, at: int) -> int:
        """Go on to what is no space; where to look next."""
        found = _NOT_SPACE.search(chunk, at)
        end = found.start() if found else len(chunk)
        self._pass(chunk[at:end])
        if found is None:
            return end
        mark, following = found.group(), self._next
        if following is _Next.ARRAY and mark == b"[":
            self._next = _Next.FIRST
        elif following is _Next.FIRST and mark == b"]":
            self._next = _Next.NOTHING
        elif following in {_Next.FIRST, _Next.ITEM} and mark not in b",]}":
            self._next = _Next.INSIDE
            self._begin()
            return end
        else:
            raise BrokenBody(following.value, self.at, self.line)
        self._pass(mark)
        return end + 1

    def _find_end(self, chunk: bytes, at: int) -> int:
        """Where the item ends that goes on here: at what is behind it, or with the chunk if the item does not."""
        if self._escaped:
            self._escaped = False
            at += 1
        while at < len(chunk):
            if self._in_string:
                at = self._end_of_string(chunk, at)
                continue
            flat = _WITHIN_BRACKETS if self._depth else _OUTSIDE_BRACKETS
            found = flat.match(chunk, at)
            at = found.end() if found else at
            mark = chunk[at : at + 1]
            if mark == b'"':
                self._in_string = True
            elif mark and mark in b"[{":
                self._depth += 1
                if self._depth > MAX_DEPTH:
                    raise BrokenBody(f"an item is nested more than {MAX_DEPTH} levels deep", *self._began)
            elif mark and not self._depth:
                return at
            elif mark:
                self._depth -= 1
            at += 1
        return len(chunk)

    def _end_of_string(self, chunk: bytes, at: int) -> int:
        """Go on to the first byte behind the string, or to the end of the chunk."""
        found = _IN_STRING.match(chunk, at)
        at = found.end() if found else at
        mark = chunk[at : at + 1]
        self._in_string = mark != b'"'
        self._escaped = mark == b"\\"
        return at + 1
