"""Starts a worker in this process: the first contact with both servers, then the supervisor until it is stopped."""

from __future__ import annotations

import contextlib
import logging

from tandemq import broker as brokers
from tandemq import logs, metrics
from tandemq import store as stores
from tandemq.broker.protocol import Broker
from tandemq.core import crash, ids
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import ForeignInstall, Unavailable
from tandemq.core.settings import Settings
from tandemq.doctor import unsafe
from tandemq.store import rights
from tandemq.store.protocol import Store
from tandemq.worker.options import WorkerOptions
from tandemq.worker.supervisor import Supervisor

_log = logging.getLogger("tandemq.worker")


def check_install(store: Store, broker: Broker) -> None:
    """Refuse a Redis namespace that belongs to another database; mark an unmarked one. ForeignInstall names both."""
    mine = store.install_id()
    theirs = broker.install() or broker.mark_install(mine)
    if theirs != mine:
        raise ForeignInstall(
            f"the Redis namespace belongs to install {theirs}, this database is install {mine}:"
            " use another TANDEMQ_NAMESPACE, or remove the key <namespace>:generation to adopt it"
        )


def run_worker(app_spec: str, settings: Settings, options: WorkerOptions) -> int:
    """Run a worker in this process until it is stopped; its exit code.

    Raises Unavailable when a server does not answer at the start, ForeignInstall and NotMigrated when it must not run.
    """
    logs.of_settings(settings, "worker")
    crash.arm(settings.crash, settings.crash_dir)
    clock = SystemClock()
    store, broker = stores.connect(settings), brokers.connect(settings, clock)
    try:
        _first_contact(store, broker, clock, settings)
        for finding in unsafe(store, broker):
            _log.warning("%s: %s (see: tandemq doctor)", finding.name, finding.sentence)
        with metrics.shared_folder() if options.metrics_port is not None else contextlib.nullcontext():
            supervisor = Supervisor(
                app_spec, settings, options, store=store, broker=broker, clock=clock, rng=ids.new_random()
            )
            logs.name_worker(supervisor.worker_id)
            return supervisor.run()
    finally:
        broker.close()
        store.close()


def _first_contact(store: Store, broker: Broker, clock: Clock, settings: Settings, tries: int = 5) -> None:
    for left in range(tries, 0, -1):
        try:
            store.check_schema()
            rights.demand(settings)
            check_install(store, broker)
            return
        except Unavailable as away:
            if left == 1:
                raise
            if left == tries:
                _log.warning("cannot start yet, trying %d times more: %s", tries - 1, away)
            clock.sleep(1.0)
