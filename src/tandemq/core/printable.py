"""Foreign text made safe to print: a stored error must not move the cursor, recolour a terminal or forge a line."""

from __future__ import annotations

import unicodedata
from datetime import datetime


def printable(text: object) -> str:
    """One line: control, format and bidi characters, line ends and lone surrogates become escapes."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in line)


def when(instant: datetime | None) -> str:
    """``2026-11-30 12:00:00Z``, or ``-``."""
    return "-" if instant is None else instant.strftime("%Y-%m-%d %H:%M:%SZ")


def width(text: str) -> int:
    """Columns a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def fitted(text: object, columns: int) -> str:
    """Printable, cut or filled up to just so many columns."""
    line = printable(text)
    if width(line) > columns:
        while line and width(line) > max(0, columns - 1):
            line = line[: max(0, min(len(line) - 1, columns - 1))]
        line = f"{line}…" if columns > 0 else ""
    return line + " " * (columns - width(line))
