"""A picture as lines of a given width: what is foreign in them is printable, and no line is longer than the screen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import NamedTuple

from tandemq.core.pausing import Pause
from tandemq.core.printable import fitted, printable, width
from tandemq.store.answers import WorkerRecord
from tandemq.top.model import State, View, place
from tandemq.top.picture import DeadRow, Picture, QueueRow

KEYS = {
    View.QUEUES: "up/down select  p pause  r resume  d dead letters  w workers  ? help  q quit",
    View.WORKERS: "up/down select  u queues  d dead letters  ? help  q quit",
    View.DEAD: "up/down select  R replay this kind  u queues  w workers  ? help  q quit",
    View.HELP: "u queues  d dead letters  w workers  q quit",
}
HELP = """\
u, Esc        queues
d             dead letters, the newest 500 by kind
w             workers
up, down, k, j, PgUp, PgDn, Home, End    select
p, r          pause the selected queue, let it go on
R             replay all that were counted of the selected kind, after a question
q             quit

IN/S, DONE/S, FAIL/S   enqueued (or replayed), succeeded and failed attempts a second, over the last 10 s
OLDEST        for how long the oldest ready task has been due
WAIT          how long those that run now had waited (the median)
~             about, or at least: there are too many to be counted
""".splitlines()


TITLES = {
    View.QUEUES: (
        "QUEUE", "READY", "RUNNING", "OLDEST", "IN/S", "DONE/S", "FAIL/S", "WAIT", "RETRYING", "SCHEDULED",
    ),
    View.WORKERS: ("WORKER", "STATE", "BUSY", "HEARTBEAT", "HOST", "PID", "OPTIONS", "QUEUES"),
    View.DEAD: ("TASKS", "LAST DIED", "TYPE", "ERROR", "TEXT"),
}  # fmt: skip
EMPTY = {View.QUEUES: "no open tasks", View.WORKERS: "no workers", View.DEAD: "no dead letters"}


class Style(Enum):
    """How a line is shown; without colours what matters is bold or reversed."""

    PLAIN = 0
    TITLE = 1
    SELECTED = 2
    ALARM = 3
    HINT = 4


class Line(NamedTuple):
    """One line, at most as wide as the screen."""

    text: str
    style: Style = Style.PLAIN


class Frame(NamedTuple):
    """What stands around the rows: who is shown, and what went wrong in reading, since how many seconds."""

    name: str
    trouble: str = ""
    trouble_s: float = 0.0
    is_working: bool = False


def screen(state: State, picture: Picture | None, frame: Frame, columns: int, lines: int) -> list[Line]:
    """Everything, from top to bottom; the selected row is among what is shown, however few lines there are."""
    head = heading(picture, frame)
    table = rows_of(state.view, picture)
    chosen = place(state, picture)
    foot = [Line(state.message, Style.TITLE)] if state.message else []
    if state.asking is not None:
        ask = state.asking
        foot = [Line(f"replay {len(ask.ids)} dead letters of {ask.what}? y/n", Style.ALARM)]
    elif frame.is_working:
        foot = [Line("working ...", Style.TITLE)]
    foot.append(Line(KEYS[state.view], Style.HINT))
    title, body = table[:1], table[1:]
    _squeeze(head, title, foot, lines - 1)
    room = max(1, lines - len(head) - len(title) - len(foot))
    start = max(0, min(chosen - room // 2, len(body) - room))
    shown = [
        line._replace(style=Style.SELECTED) if start + i == chosen and state.view is not View.HELP else line
        for i, line in enumerate(body[start : start + room])
    ]
    gap = [Line("")] * max(0, room - len(shown))
    every = [*head, *title, *shown, *gap, *foot][: max(1, lines)]
    return [Line(fitted(line.text, columns), line.style) for line in every]


def _squeeze(head: list[Line], title: list[Line], foot: list[Line], most: int) -> None:
    """Drop what matters least until no more than that is left. A question stays longest."""
    for part, least in ((head, 1), (title, 0), (head, 0), (foot, 1), (foot, 0)):
        while len(part) > least and len(head) + len(title) + len(foot) > most:
            part.pop()


def heading(picture: Picture | None, frame: Frame) -> list[Line]:
    """Who and when, what is wrong, and the sums."""
    at = "" if picture is None else f"  {picture.at:%H:%M:%S}Z"
    lines = [Line(f"tandemq {frame.name}{at}", Style.TITLE)]
    if frame.trouble:
        since = f" for {span(frame.trouble_s)}" if frame.trouble_s >= 1 else ""
        lines.append(Line(f"NO ANSWER{since}: {frame.trouble}", Style.ALARM))
    if picture is None:
        return lines
    if picture.redis:
        lines.append(Line(f"REDIS IS AWAY: {picture.redis}", Style.ALARM))
    alive = [w for w in picture.workers if w.alive]
    slots = sum(w.slots * w.processes for w in alive)
    rates = picture.rates
    dead = f"{picture.dead_count}{'+' if picture.dead_capped else ''}"
    lines.append(
        Line(
            f"in/s {number(rates.came)}  done/s {number(rates.done)}  failed/s {number(rates.failed)}"
            f"  workers {len(alive)}, busy {sum(w.busy for w in alive)}/{slots}  dead {dead}"
            f"  ids in Redis {'-' if picture.in_redis is None else picture.in_redis}"
        )
    )
    lines += [Line(f"task type {p.name} is paused{_until(p)}", Style.ALARM) for p in picture.paused_types[:3]]
    return lines


def rows_of(view: View, picture: Picture | None) -> list[Line]:
    """The title of the table, and its rows."""
    if view is View.HELP:
        return [Line("KEYS AND COLUMNS", Style.TITLE), *map(Line, HELP)]
    if picture is None:
        return [Line("waiting for the database ...", Style.TITLE)]
    titles, table = TITLES[view], _tables(view, picture)
    lines = _aligned([titles, *table], numbers_follow=view is View.QUEUES)
    is_alarm = [view is View.QUEUES and row.pause is not None for row in picture.queues]
    rows = [
        Line(text, Style.ALARM if view is View.QUEUES and is_alarm[i] else Style.PLAIN)
        for i, text in enumerate(lines[1:])
    ]
    return [Line(lines[0], Style.TITLE), *(rows or [Line(EMPTY[view])])]


def _tables(view: View, picture: Picture) -> list[tuple[str, ...]]:
    match view:
        case View.QUEUES:
            return [_queue(row) for row in picture.queues]
        case View.WORKERS:
            return [_worker(worker) for worker in picture.workers]
        case View.DEAD:
            return [_dead(row) for row in picture.dead]
        case View.HELP:
            return []


def _worker(w: WorkerRecord) -> tuple[str, ...]:
    busy, heartbeat = f"{w.busy}/{w.slots * w.processes}", f"{span(w.heartbeat_age_s)} ago"
    return w.name, w.shown_state, busy, heartbeat, w.host, str(w.pid), w.options or "-", w.queues


def _queue(row: QueueRow) -> tuple[str, ...]:
    about = "~" if row.is_inexact else ""
    name = f"{row.name} (paused{_until(row.pause)})" if row.pause else row.name
    rates = [number(rate) for rate in (row.rates.came, row.rates.done, row.rates.failed)]
    oldest, wait = span(row.oldest_s) if row.ready else "-", "-" if row.wait_s is None else span(row.wait_s)
    counts = [f"{about}{n}" for n in (row.retrying, row.scheduled)]
    return name, f"{about}{row.ready}", str(row.running), oldest, *rates, wait, *counts


def _dead(row: DeadRow) -> tuple[str, ...]:
    return str(len(row.ids)), f"{row.last_at:%m-%d %H:%M:%S}Z", row.task_type, row.error_type, row.text


def _until(pause: Pause) -> str:
    return "" if pause.until is None else f" until {pause.until:%H:%M:%S}Z"


def _aligned(table: Sequence[Sequence[str]], *, numbers_follow: bool) -> list[str]:
    """Columns under each other; with ``numbers_follow`` all but the first end in the same place."""
    rows = [[printable(cell) for cell in row] for row in table]
    widths = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        spaces = [" " * (widths[i] - width(cell)) for i, cell in enumerate(row)]
        cells = [
            s + cell if numbers_follow and i else cell + s for i, (cell, s) in enumerate(zip(row, spaces, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def number(value: float | None) -> str:
    """A rate: two digits at least where it is small."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def span(seconds: float) -> str:
    """A length of time at a glance: 0.2s, 14s, 3m05s, 2h10m, 3d04h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(timedelta(seconds=seconds).total_seconds())
    if whole < 100:
        return f"{whole}s"
    minutes, s = divmod(whole, 60)
    if minutes < 100:
        return f"{minutes}m{s:02}s"
    hours, m = divmod(minutes, 60)
    return f"{hours}h{m:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"
