"""What people and programs read: aligned tables, short lines, one JSON document.

Data from outside (payloads, errors, names of workers) never reaches a terminal raw: see ``core.printable``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from tandemq.core.printable import printable, when, width

#: Widest cell of a table; longer text is cut, ``show`` prints all of it.
MAX_CELL = 60


def cell(value: object, limit: int = MAX_CELL) -> str:
    """A value as a table shows it; None is ``-``."""
    if value is None:
        return "-"
    text = printable(when(value) if isinstance(value, datetime) else value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """An aligned table on stdout; numbers to the right; ``empty`` instead of a table without rows."""
    raw = [list(row) for row in rows]
    if not raw:
        click.echo(empty)
        return
    lines = [list(headers), *[[cell(value) for value in row] for row in raw]]
    widths = [max(width(line[i]) for line in lines) for i in range(len(headers))]
    right = [all(isinstance(row[i], int | float) for row in raw) for i in range(len(headers))]
    for line in lines:
        padded = [_pad(text, widths[i], right[i]) for i, text in enumerate(line)]
        click.echo("  ".join(padded).rstrip())


def _pad(text: str, columns: int, right: bool) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space


def pairs(fields: Mapping[str, object]) -> None:
    """``name  value`` lines; fields that are None are left out."""
    shown = {name: value for name, value in fields.items() if value is not None}
    columns = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name.ljust(columns)}  {cell(value, 100_000)}")


def block(text: str, indent: str = "    ") -> None:
    """Several lines of foreign text, each escaped and indented."""
    for line in text.rstrip("\n").split("\n"):
        click.echo(indent + printable(line))


def document(value: Any) -> None:
    """One JSON document on stdout, ASCII only."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def warn(message: str) -> None:
    """One line on stderr."""
    click.echo(printable(message), err=True)
