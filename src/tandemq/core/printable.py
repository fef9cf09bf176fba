"""Foreign text made safe to print: a stored error must not move the cursor, recolour a terminal or forge a line."""

from __future__ import annotations

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
