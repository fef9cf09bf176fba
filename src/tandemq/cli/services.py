"""Verbs that stay: worker, mover, reconcile."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

from tandemq import logs
from tandemq.app import TandemQ
from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core import ids
from tandemq.core.clock import SystemClock
from tandemq.monitoring import Exposition, Installed, Listener, Source, Ticks
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.service import Loop, Service
from tandemq.worker.options import WorkerOptions
from tandemq.worker.starting import run_worker
from tandemq.worker.watching import last_pass


@click.command()
@click.option(
    "-q",
    "--queues",
    multiple=True,
    metavar="A,B",
    callback=flags.queues_of,
    help="Queues, first served first; default: those of the registered tasks, and 'default'.",
)
@click.option("-c", "--slots", type=click.IntRange(1, 10_000), default=8, help="Tasks at a time in each process.")
@click.option("-p", "--processes", type=click.IntRange(1, 512), default=1, help="Processes that run tasks.")
@click.option("--burst", is_flag=True, help="End when nothing is due, running or retrying in the queues.")
@click.option("--fair", is_flag=True, help="Give lower levels one of five tasks, however much higher work comes.")
@click.option("--grace", "grace_s", type=flags.SECONDS, help="Seconds that tasks may run on when stopping.")
@click.option("--name", type=flags.WORKER_NAME, help="Name of this worker; default: the host's.")
@click.option("--max-tasks", type=click.IntRange(min=1), help="Replace a process after this many tasks.")
@click.option("--max-memory", "max_memory_mb", type=click.IntRange(min=1), help="Replace a process over this many MB.")
@click.option("--no-mover", is_flag=True, help="Leave the mover to another process.")
@click.option("--no-reconcile", is_flag=True, help="Leave the reconciler to another process.")
@flags.metrics
@pass_session
def worker(session: Session, /, no_mover: bool, no_reconcile: bool, **options: Any) -> int:
    """Run tasks until TERM or INT (twice: at once), or with --burst until there is nothing to do."""
    spec, app = session.spec, session.app
    app.import_tasks()
    return run_worker(spec, app.settings, WorkerOptions(mover=not no_mover, reconcile=not no_reconcile, **options))


@click.command()
@flags.metrics
@pass_session
def mover(session: Session, /, **metrics: Any) -> int:
    """Move due tasks from the sorted sets to the lists, until TERM or INT. A worker does it too unless --no-mover."""
    app = session.app
    service = Mover(app.store, app.broker, SystemClock(), ids.worker_id("mover"), app.settings)
    return _run(app, service, "mover", app.settings.mover_s, metrics)


@click.command()
@click.option("--once", is_flag=True, help="One pass, then print what it did.")
@flags.metrics
@flags.as_json
@pass_session
def reconcile(session: Session, /, once: bool, as_json: bool, **metrics: Any) -> int:
    """Find lost leases and ids that are missing from Redis, until TERM or INT. A worker does it too."""
    app = session.app
    holder = ids.worker_id("reconciler")
    service = Reconciler(app.store, app.broker, SystemClock(), ids.new_random(), app.settings, holder)
    if not once:
        return _run(app, service, "reconciler", app.settings.reconcile_s, metrics, last_pass(service, SystemClock()))
    report = service.run_once()
    if as_json:
        output.document(report.to_json())
    else:
        output.pairs(report.to_json())
    return exits.FAILED if report.alarms else 0


def _run(app: TandemQ, service: Service, name: str, every_s: float, metrics: dict[str, Any], *more: Source) -> int:
    logs.of_settings(app.settings, name)
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    clock = SystemClock()
    loop = Loop(service, clock, ids.new_random(), name)
    listener = _listener(app, loop, every_s, metrics, more)
    loop.start()
    if listener is not None:
        listener.start()
    logging.getLogger("tandemq.service").info("%s runs", name)
    over.wait()
    if listener is not None:
        listener.stop()
    loop.stop()
    return 0


def _listener(
    app: TandemQ, loop: Loop, every_s: float, metrics: dict[str, Any], more: Sequence[Source]
) -> Listener | None:
    if metrics["metrics_port"] is None:
        return None
    installed = Installed(app.store, app.broker, SystemClock(), alive_s=app.settings.lease_s)
    ticks = Ticks({loop: every_s}, SystemClock(), installed)
    sources: list[Source] = [ticks, *more, *([installed] if metrics["install_metrics"] else [])]
    return Listener(metrics["metrics_host"], metrics["metrics_port"], Exposition(sources), ticks)
