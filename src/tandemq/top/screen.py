"""The terminal, by curses: puts lines on it and turns what is typed into keys of the model."""

from __future__ import annotations

import contextlib
import curses
import locale
import logging
import os
import sys
from collections.abc import Callable

from tandemq import links
from tandemq.app import TandemQ
from tandemq.top import drawing, model
from tandemq.top.drawing import Line, Style
from tandemq.top.model import Quit, State, View
from tandemq.top.watcher import Watcher

#: How long a key is waited for before the view is drawn anew.
TURN_MS = 200
#: How long Escape alone may be the beginning of an arrow key.
ESCAPE_MS = 50
_KEYS = {
    curses.KEY_DOWN: model.DOWN, curses.KEY_UP: model.UP, curses.KEY_NPAGE: model.PAGE_DOWN,
    curses.KEY_PPAGE: model.PAGE_UP, curses.KEY_HOME: model.FIRST, curses.KEY_END: model.LAST, 27: model.ESCAPE,
}  # fmt: skip
_RED, _CYAN = 1, 2


def run(app: TandemQ, interval_s: float, say: Callable[[BaseException], str], *, colours: bool) -> None:
    """Until ``q`` or Ctrl-C. ``say`` makes a line of an error. curses.error where the terminal cannot do it."""
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    with contextlib.suppress(AttributeError):  # not in every curses
        curses.set_escdelay(ESCAPE_MS)
    curses.setupterm()
    _silence()
    watcher = Watcher(app, interval_s, say)
    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        with contextlib.suppress(curses.error):  # a terminal that cannot hide it
            curses.curs_set(0)
        watcher.start()
        _Screen(window, watcher, _styles(colours)).loop()
    except KeyboardInterrupt:
        pass
    finally:
        with contextlib.suppress(curses.error):
            window.keypad(False)
            curses.nocbreak()
            curses.echo()
        curses.endwin()
        watcher.close()


def _silence() -> None:
    """What is logged or warned of would be written into the picture; all that matters is in it."""
    links.do_not_warn()
    log = logging.getLogger("tandemq")
    log.addHandler(logging.NullHandler())
    log.propagate = False


def _styles(colours: bool) -> dict[Style, int]:
    styles = {
        Style.PLAIN: curses.A_NORMAL, Style.TITLE: curses.A_BOLD, Style.SELECTED: curses.A_REVERSE,
        Style.ALARM: curses.A_BOLD, Style.HINT: curses.A_DIM,
    }  # fmt: skip
    if colours and curses.has_colors():
        curses.start_color()
        with contextlib.suppress(curses.error):
            curses.use_default_colors()
            curses.init_pair(_RED, curses.COLOR_RED, -1)
            curses.init_pair(_CYAN, curses.COLOR_CYAN, -1)
            styles |= {Style.ALARM: curses.color_pair(_RED) | curses.A_BOLD, Style.TITLE: curses.color_pair(_CYAN)}
    return styles


class _Screen:
    def __init__(self, window: curses.window, watcher: Watcher, styles: dict[Style, int]) -> None:
        self._window, self._watcher, self._styles = window, watcher, styles
        self._state = State()
        window.timeout(TURN_MS)

    def loop(self) -> None:
        while True:
            self._draw()
            key = self._key()
            if key is None:
                continue
            self._state, order = model.press(self._state, key, self._watcher.picture)
            if isinstance(order, Quit):
                return
            if order is not None:
                self._watcher.give(order)
            if (wants_dead := self._state.view is View.DEAD) != self._watcher.wants_dead:
                self._watcher.wants_dead = wants_dead
                self._watcher.look_now()

    def _key(self) -> str | None:
        code = self._window.getch()
        if code == curses.KEY_RESIZE:
            curses.update_lines_cols()
            self._window.clear()
            return None
        return _KEYS.get(code) or (chr(code) if 32 <= code < 127 else None)

    def _follow_size(self) -> None:
        """The signal that tells of a new size may not come through: blocked by who started us, or lost."""
        with contextlib.suppress(OSError, curses.error):
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
            if columns and lines and (lines, columns) != self._window.getmaxyx():
                curses.resizeterm(lines, columns)
                self._window.clear()

    def _draw(self) -> None:
        self._follow_size()
        if (news := self._watcher.take_news()) is not None:
            self._state = State(self._state.view, self._state.selected, self._state.asking, news)
        height, columns = self._window.getmaxyx()
        lines = drawing.screen(self._state, self._watcher.picture, self._watcher.frame, columns, height)
        self._window.erase()
        for y, line in enumerate(lines[:height]):
            self._put(y, line, columns, is_last=y == height - 1)
        self._window.refresh()

    def _put(self, y: int, line: Line, columns: int, *, is_last: bool) -> None:
        # The last cell of the last line cannot be written: the cursor would have to leave the screen.
        text = line.text[: columns - 1] if is_last else line.text
        text = text.encode(self._window.encoding, "replace").decode(self._window.encoding)
        with contextlib.suppress(curses.error):  # it became smaller meanwhile
            self._window.addstr(y, 0, text, self._styles[line.style])
