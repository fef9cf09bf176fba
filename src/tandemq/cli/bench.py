"""``tandemq bench``: measure the servers that the settings name."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

import click

from tandemq.bench.run import Plan, run
from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings, mask


@click.command()
@click.option("--tasks", type=click.IntRange(100, 10_000_000), default=20_000, help="Tasks to enqueue in bulk.")
@click.option("-p", "--processes", type=click.IntRange(1, 512), default=2, help="Processes of the measured worker.")
@click.option("-c", "--slots", type=click.IntRange(1, 10_000), default=8, help="Tasks at a time in each of them.")
@click.option("--yes", is_flag=True, help="Do not ask before putting load on the servers.")
@flags.as_json
@pass_session
def bench(session: Session, /, tasks: int, processes: int, slots: int, yes: bool, as_json: bool) -> int:
    """Measure the configured database and Redis, in tables and keys of its own that are removed again.

    Round trips, commits, enqueueing, draining by a real worker, latency: about 20 seconds of load. Tasks that are
    there are not touched, but whoever uses the same servers will notice.
    """
    settings = session.app.settings
    if not yes and not settings.is_embedded:
        _ask(settings)
    logging.getLogger("tandemq").setLevel(logging.ERROR)
    asked = _Stop()
    sys.unraisablehook = asked.dropped
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, asked)

    def say(message: str) -> None:
        asked.check()
        if sys.stderr.isatty():
            output.warn(message)

    report = run(settings, Plan(tasks, processes, slots), os.environ, SystemClock(), say, output.warn)
    asked.check()
    if as_json:
        output.document(report.to_json())
        return 0
    output.table(("WHAT", "FIGURE"), report.rows(), empty="")
    click.echo()
    for sentence in report.says():
        click.echo(sentence)
    return 0


def _ask(settings: Settings) -> None:
    where = f"{mask(settings.database_url)} and {mask(settings.redis_url)}"
    if not sys.stdin.isatty():
        raise click.UsageError(f"bench puts load on {where}: say --yes")
    if not click.confirm(f"Put load on {where} for about 20 s?", err=True):
        raise exits.Failed("nothing was measured")


class _Stop:
    """A signal handler that remembers: Python drops what is raised while it runs a finalizer or a weak reference's."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def dropped(self, what: sys.UnraisableHookArgs) -> None:
        """``sys.unraisablehook``: its own exception is remembered, and no news; everything else is told."""
        if not (self._asked and issubclass(what.exc_type, KeyboardInterrupt)):
            sys.__unraisablehook__(what)

    def check(self) -> None:
        """Stop now if the signal's own exception was dropped."""
        if self._asked:
            raise KeyboardInterrupt
