"""Runs due tasks in the calling thread, step by step and without a supervisor: for tests of applications."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from tandemq.broker.protocol import Broker
from tandemq.core import codec, ids
from tandemq.core.clock import Clock
from tandemq.core.lifecycle import Bury, Event, Outcome, Recorded, RetryIn, Returned, Verdict
from tandemq.core.pausing import Paused
from tandemq.core.settings import Settings
from tandemq.core.task import DEFAULT_QUEUE, Lease, Level
from tandemq.producer import Producer
from tandemq.redeliver import dispatch
from tandemq.registry import Registry
from tandemq.store.answers import Settled, Settlement
from tandemq.store.protocol import Store
from tandemq.worker.executor import Executor
from tandemq.worker.telling import of_lease, of_row, raised_by

INLINE_WORKER = "inline"
_BATCH = 50
FLUSH_S = 5.0


class Application(Protocol):
    """What is needed of a TandemQ."""

    @property
    def registry(self) -> Registry:
        """The registered tasks."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings."""
        ...

    @property
    def store(self) -> Store:
        """The store."""
        ...

    @property
    def broker(self) -> Broker:
        """The broker."""
        ...

    @property
    def producer(self) -> Producer:
        """What pushes."""
        ...

    @property
    def encoder(self) -> codec.Encoder | None:
        """The codec hook."""
        ...


def run_until_idle(app: Application, clock: Clock, limit: int = 10_000) -> int:
    """Run everything that is due by the database's clock, and what it enqueues, until nothing is; how many runs.

    Retries and delayed tasks run when the clock has been moved on to them; what is paused stays where it is. Raises
    RuntimeError after ``limit`` runs: tasks that enqueue each other for ever would never be idle.
    """
    executor = Executor(
        app.registry,
        clock=clock,
        rng=ids.new_random(),
        max_result_bytes=app.settings.max_result_bytes,
        transaction=app.store.transaction,
        encoder=app.encoder,
        secrets=app.settings.secrets(),
    )
    runs = 0
    try:
        while (ran := _turn(app, executor)) is not None:
            runs += ran
            if runs > limit:
                raise RuntimeError(f"still busy after {limit} runs")
    finally:
        executor.stop()
    return runs


def _turn(app: Application, executor: Executor) -> int | None:
    """Promote, pop, claim, run, finish; None when there was nothing to pop."""
    app.producer.flush(FLUSH_S)  # what a handler enqueued in its own transaction
    paused = Paused.of(app.store.pauses())
    queues = (app.broker.queues() | {DEFAULT_QUEUE}) - paused.queues
    levels = sorted(
        (Level(queue, p) for queue in sorted(queues) for p in app.broker.levels(queue)), key=lambda x: -x.priority
    )
    now_ms = (app.store.now() - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    for level in levels:
        app.broker.promote(level, now_ms=int(now_ms), limit=1000)
    popped = app.broker.pop(levels, limit=_BATCH, wait_s=0)
    if not popped.ids:
        return None
    claimed = app.store.claim(
        list(popped.ids),
        token=ids.lease_token(),
        worker_id=INLINE_WORKER,
        lease_s=app.settings.lease_s,
        free=_BATCH,
        known=app.registry.names(),
        unknown_task_s=app.settings.unknown_task_s,
        queues=queues,
        paused=paused.types,
    )
    for own_level, task_id in reversed(claimed.put_back):
        app.broker.push_next(own_level, [task_id])
    for row in claimed.not_due:
        app.broker.delay(row.level, {row.id: row.due_ms})
    for lease in claimed.leases:
        outcome = executor.run(lease, lambda: False, executor.limit_s(lease))
        verdict = executor.verdict(lease, outcome)
        last = lease is claimed.leases[-1]
        settled = app.store.finish(
            [Settlement(lease, verdict)],
            closing=[lease.token] if last else [],
            worker_id=INLINE_WORKER,
        )
        dispatch(app.broker, settled.moved)
        _tell(executor, lease, outcome, verdict, settled)
    for ended in claimed.ended:
        task = app.store.get(ended.id)
        if task is not None:
            executor.telling.buried(of_row(task), task.options, ended.reason)
    return len(claimed.leases)


def _tell(executor: Executor, lease: Lease, outcome: Outcome, verdict: Verdict, settled: Settled) -> None:
    about, exc, telling = of_lease(lease), raised_by(outcome), executor.telling
    if isinstance(outcome, Returned | Recorded):
        telling.tell("on_success", about, lease.options)
    for move in settled.moved:
        if move.event is Event.RETRY and isinstance(verdict, RetryIn):
            telling.tell("on_retry", about, lease.options, exc)
        elif move.event is Event.BURY and isinstance(verdict, Bury | RetryIn):
            telling.buried(about, lease.options, move.dead_reason, exc)
            executor.on_dead_letter(lease.task_type, lease.id, lease.payload, verdict.failure)
