"""Verbs that stay: worker, mover, reconcile."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

import click

from tandemq.cli import exits, flags, output
from tandemq.cli.session import Session, pass_session
from tandemq.core import ids
from tandemq.core.clock import SystemClock
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.service import Loop, Service
from tandemq.worker.options import WorkerOptions
from tandemq.worker.supervisor import run_worker


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
@click.option("--grace", "grace_s", type=flags.SECONDS, help="Seconds that tasks may run on when stopping.")
@click.option("--name", type=flags.WORKER_NAME, help="Name of this worker; default: the host's.")
@click.option("--max-tasks", type=click.IntRange(min=1), help="Replace a process after this many tasks.")
@click.option("--max-memory", "max_memory_mb", type=click.IntRange(min=1), help="Replace a process over this many MB.")
@click.option("--no-mover", is_flag=True, help="Leave the mover to another process.")
@click.option("--no-reconcile", is_flag=True, help="Leave the reconciler to another process.")
@pass_session
def worker(session: Session, /, no_mover: bool, no_reconcile: bool, **options: Any) -> int:
    """Run tasks until TERM or INT (twice: at once), or with --burst until there is nothing to do."""
    spec, app = session.spec, session.app
    app.import_tasks()
    return run_worker(spec, app.settings, WorkerOptions(mover=not no_mover, reconcile=not no_reconcile, **options))


@click.command()
@pass_session
def mover(session: Session, /) -> int:
    """Move due tasks from the sorted sets to the lists, until TERM or INT. A worker does it too unless --no-mover."""
    app = session.app
    service = Mover(app.store, app.broker, SystemClock(), ids.worker_id("mover"), app.settings)
    return _run(service, "mover")


@click.command()
@click.option("--once", is_flag=True, help="One pass, then print what it did.")
@flags.as_json
@pass_session
def reconcile(session: Session, /, once: bool, as_json: bool) -> int:
    """Find lost leases and ids that are missing from Redis, until TERM or INT. A worker does it too."""
    app = session.app
    holder = ids.worker_id("reconciler")
    service = Reconciler(app.store, app.broker, SystemClock(), ids.new_random(), app.settings, holder)
    if not once:
        return _run(service, "reconciler")
    report = service.run_once()
    if as_json:
        output.document(report.to_json())
    else:
        output.pairs(report.to_json())
    return exits.FAILED if report.alarms else 0


def _run(service: Service, name: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    loop = Loop(service, SystemClock(), ids.new_random(), name)
    loop.start()
    logging.getLogger("tandemq.service").info("%s runs", name)
    over.wait()
    loop.stop()
    return 0
