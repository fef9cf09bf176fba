"""Texts without what differs from batch to batch: ids, tokens, names, payloads, the lengths of lists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

#: Words and dates that say what a statement does, so they stay.
KEPT = frozenset(
    f"'{word}'" for word in ("pending", "running", "succeeded", "dead", "cancelled", "9999-12-31 00:00:00.000000")
)
_STRING = re.compile(r"(?:_binary)?'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?\b")
_IDS = re.compile(r"\bIN \(N(?:, N)*\)")
_PAIRS = re.compile(r"\bIN \(\(N, N\)(?:, \(N, N\))*\)")


def statements(packet: str) -> list[str]:
    """The statements of one packet, each normalised."""
    text = _STRING.sub(lambda found: found[0] if found[0] in KEPT else "'S'", packet)
    parts = []
    for part in text.split(";"):
        pieces = re.split(r"('[^']*')", part)  # what is kept in quotes keeps its digits
        pieces[::2] = [_NUMBER.sub("N", piece) for piece in pieces[::2]]
        one = re.sub(r"\s*,\s*", ", ", re.sub(r"\s+", " ", "".join(pieces))).strip()
        if one:
            parts.append(_rows(_PAIRS.sub("IN ((N, N)..)", _IDS.sub("IN (N..)", one))))
    return parts


def _rows(text: str) -> str:
    """Several equal rows after VALUES become ``(..), more rows``."""
    head, values, tail = text.partition(" VALUES ")
    if not values:
        return text
    rows, end = _parenthesised(tail)
    if len(rows) > 1 and len(set(rows)) == 1:
        return f"{head} VALUES {rows[0]}, more rows{tail[end:]}"
    return text


def _parenthesised(text: str) -> tuple[list[str], int]:
    """The comma-separated groups in parentheses that a text begins with, and where they end."""
    rows, depth, start, end = [], 0, 0, 0
    for place, char in enumerate(text):
        if char == "(":
            start = place if depth == 0 else start
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                rows.append(text[start : place + 1])
                end = place + 1
        elif depth == 0 and char not in ", ":
            break
    return rows, end


def redis_command(line: str) -> str:
    """A line of MONITOR as ``COMMAND key key N..``; empty for what a script did inside the server."""
    _, _, rest = line.partition("[")
    client, _, words = rest.partition("] ")
    if client.endswith("lua"):
        return ""
    return " ".join(_words(words))


def _words(text: str) -> Iterator[str]:
    was_number = False
    try:
        words = shlex.split(text)
    except ValueError:  # an unfinished escape in a script's text
        words = text.split()
    for place, word in enumerate(words):
        is_number = bool(re.fullmatch(r"-?\d+(\.\d+)?", word))
        if not is_number:
            yield word.upper() if place == 0 else word
        elif not was_number:
            yield "N.."
        was_number = is_number
