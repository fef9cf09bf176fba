"""What is looked at, and what a key does about it: no terminal, no servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from tandemq.top.picture import DeadRow, Picture, QueueRow

Row = TypeVar("Row")
DOWN, UP, PAGE_DOWN, PAGE_UP, FIRST, LAST, ESCAPE = "down", "up", "pgdn", "pgup", "home", "end", "esc"
PAGE = 10


class View(StrEnum):
    """What the rows are."""

    QUEUES = "queues"
    WORKERS = "workers"
    DEAD = "dead letters"
    HELP = "help"


@dataclass(frozen=True, slots=True)
class Quit:
    """Leave."""


@dataclass(frozen=True, slots=True)
class SetPause:
    """Pause a queue, or let it go on."""

    queue: str
    paused: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay these dead letters; ``what`` they are, for people."""

    ids: tuple[int, ...]
    what: str


Order = Quit | SetPause | Replay


@dataclass(frozen=True, slots=True)
class State:
    """What the person at the keys has chosen. Selections are by name: rows come, go and change places."""

    view: View = View.QUEUES
    selected: dict[View, object] = field(default_factory=dict)
    asking: Replay | None = None
    message: str = ""


def keys_of(view: View, picture: Picture | None) -> list[object]:
    """What the rows of a view are selected by."""
    if picture is None:
        return []
    match view:
        case View.QUEUES:
            return [row.name for row in picture.queues]
        case View.WORKERS:
            return [worker.id for worker in picture.workers]
        case View.DEAD:
            return [row.key for row in picture.dead]
        case View.HELP:
            return []


def place(state: State, picture: Picture | None) -> int:
    """Which row is selected; the first if the chosen one is gone."""
    keys = keys_of(state.view, picture)
    chosen = state.selected.get(state.view)
    return keys.index(chosen) if chosen in keys else 0


def press(state: State, key: str, picture: Picture | None) -> tuple[State, Order | None]:
    """What a key makes of it, and what is to be done."""
    if state.asking is not None:
        asked, state = state.asking, replace(state, asking=None, message="")
        return (state, asked) if key in {"y", "Y"} else (replace(state, message="nothing was replayed"), None)
    state = replace(state, message="")
    if key in _VIEWS:
        # The same key again leads back.
        view = View.QUEUES if state.view is _VIEWS[key] else _VIEWS[key]
        return replace(state, view=view), None
    if key in _MOVES:
        return _moved(state, picture, _MOVES[key]), None
    match key:
        case "q" | "Q":
            return state, Quit()
        case "p" | "r":
            return _pausing(state, picture, paused=key == "p")
        case "R":
            return _replaying(state, picture), None
        case _:
            return state, None


_VIEWS = {
    "w": View.WORKERS, "d": View.DEAD, "?": View.HELP, "h": View.HELP, ESCAPE: View.QUEUES, "u": View.QUEUES,
}  # fmt: skip
_FAR = 10**9
_MOVES = {
    DOWN: 1, "j": 1, UP: -1, "k": -1, PAGE_DOWN: PAGE, PAGE_UP: -PAGE, FIRST: -_FAR, LAST: _FAR, "g": -_FAR, "G": _FAR,
}  # fmt: skip


def _moved(state: State, picture: Picture | None, by: int) -> State:
    keys = keys_of(state.view, picture)
    if not keys:
        return state
    chosen = keys[min(len(keys) - 1, max(0, place(state, picture) + by))]
    return replace(state, selected=state.selected | {state.view: chosen})


def _pausing(state: State, picture: Picture | None, *, paused: bool) -> tuple[State, Order | None]:
    row = chosen_queue(state, picture)
    if row is None:
        return replace(state, message="select a queue to pause or resume it (u shows the queues)"), None
    if paused == (row.pause is not None):
        return replace(state, message=f"queue {row.name} is {'' if paused else 'not '}paused"), None
    # Named, so that a row that moves in between cannot change who is meant.
    return replace(state, selected=state.selected | {state.view: row.name}), SetPause(row.name, paused)


def _replaying(state: State, picture: Picture | None) -> State:
    row = chosen_dead(state, picture)
    if row is None:
        return replace(state, message="select a kind of dead letters to replay it (d shows them)")
    what = f"{row.task_type} {row.error_type}".strip()
    return replace(state, selected=state.selected | {state.view: row.key}, asking=Replay(row.ids, what))


def chosen_queue(state: State, picture: Picture | None) -> QueueRow | None:
    """The selected row of the view of queues."""
    return _chosen(picture.queues if picture and state.view is View.QUEUES else (), place(state, picture))


def chosen_dead(state: State, picture: Picture | None) -> DeadRow | None:
    """The selected row of the view of dead letters."""
    return _chosen(picture.dead if picture and state.view is View.DEAD else (), place(state, picture))


def _chosen(rows: Sequence[Row], at: int) -> Row | None:
    return rows[at] if at < len(rows) else None
