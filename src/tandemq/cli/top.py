"""``tandemq top``: a live view in the terminal, with keys to pause, resume and replay."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from tandemq.cli import exits
from tandemq.cli.session import Session, pass_session
from tandemq.core.printable import printable
from tandemq.top.drawing import Frame, heading, rows_of
from tandemq.top.model import View
from tandemq.top.picture import Painter

_HINT = "use: tandemq stats --watch (or tandemq top --once)"


@click.command()
@click.option("--interval", "interval_s", type=click.FloatRange(0.2, 60.0), default=1.0, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Print everything once, after one interval, and end.")
@pass_session
def top(session: Session, /, interval_s: float, once: bool) -> int:
    """Queues, rates, workers and dead letters as they are now; ? shows the keys. Needs a terminal unless --once."""
    if once:
        _print_once(session, interval_s)
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"this is no terminal; {_HINT}")
    try:
        import curses

        from tandemq.top import screen
    except ImportError:
        raise click.UsageError(f"this Python has no curses; {_HINT}") from None

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)  # else the terminal would be left as it is
    try:
        screen.run(session.app, interval_s, exits.line_of, colours=not os.environ.get("NO_COLOR"))
    except curses.error as bad:
        raise click.UsageError(
            f"this terminal (TERM={os.environ.get('TERM', '')}) is too simple: {bad}; {_HINT}"
        ) from None
    return 0


def _print_once(session: Session, interval_s: float) -> None:
    painter = Painter(session.app)
    painter.paint()
    session.app.clock.sleep(interval_s)
    picture = painter.paint(dead=True)
    settings = session.app.settings
    lines = heading(picture, Frame("embedded" if settings.is_embedded else settings.namespace))
    for view in (View.QUEUES, View.WORKERS, View.DEAD):
        lines += rows_of(view, picture)
    for line in lines:
        click.echo(printable(line.text))
