"""Inside a child process: inbox, fetcher, slots and acker, their threads and the order in which they stop."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tandemq.broker.protocol import Broker
from tandemq.core import codec, crash, ids
from tandemq.core.clock import Clock
from tandemq.core.failure import describe, failure
from tandemq.core.lifecycle import Bury, Failure, Interrupted, Recorded, Release, Returned
from tandemq.core.listening import Listeners
from tandemq.core.settings import Settings
from tandemq.core.task import DEFAULT_QUEUE
from tandemq.registry import Registry
from tandemq.service import Throttle
from tandemq.store.answers import Ended
from tandemq.store.protocol import Store
from tandemq.worker.acker import Acker
from tandemq.worker.arena import Arena
from tandemq.worker.executor import Executor
from tandemq.worker.fetcher import Fetcher, Terms
from tandemq.worker.inbox import Held, Inbox
from tandemq.worker.telling import Failed, about, exception_of, of_lease, of_row

_log = logging.getLogger("tandemq.worker")
FLUSH_S = 5.0
#: When so many calls wait for the thread of the hooks, listeners miss the next ones: they would fill the memory.
MAX_HOOKS = 10_000


class Child:
    """Composes inbox, fetcher, slots and acker; owns their threads and the order in which they stop."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        orders: dict[str, Any],
        *,
        store: Store,
        broker: Broker,
        arena: Arena,
        clock: Clock,
        encoder: codec.Encoder | None,
    ) -> None:
        self._clock, self._orders, self._store, self._arena = clock, orders, store, arena
        self._say = Throttle(_log, clock)
        self.exit_code = 0
        self.executor = Executor(
            registry,
            clock=clock,
            rng=ids.new_random(),
            max_result_bytes=settings.max_result_bytes,
            transaction=store.transaction,
            encoder=encoder,
            secrets=settings.secrets(),
        )
        self.inbox = Inbox(orders["slots"], clock)
        self._hooks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._hooks_done = threading.Event()
        self._wake = threading.Event()
        self._over = threading.Event()
        self.acker = Acker(
            store, broker, worker_id=orders["worker_id"], clock=clock, on_dead=self._on_dead,
            on_answer=arena.note_flush, on_retry=self._on_retry,
        )  # fmt: skip
        self.terms = Terms(
            worker_id=orders["worker_id"],
            queues=tuple(orders["queues"] or sorted(registry.queues() | {DEFAULT_QUEUE})),
            known=registry.names(),
            lease_s=settings.lease_s,
            unknown_task_s=settings.unknown_task_s,
            redis_away_s=settings.redis_away_s,
            fair=orders["fair"],
        )
        self.fetcher = Fetcher(
            store,
            broker,
            self.terms,
            arena=arena,
            inbox=self.inbox,
            acker=self.acker,
            clock=clock,
            new_token=ids.lease_token,
            rng=ids.new_random(),
            pause=self._wake.wait,
            on_ended=self._on_ended,
        )
        self._fetching = threading.Thread(target=self._fetch, name="tandemq-fetch", daemon=True)
        self._acking = threading.Thread(target=self._ack, name="tandemq-ack", daemon=True)
        self._slots = [
            threading.Thread(target=self._slot, args=(i,), name=f"tandemq-slot-{i}", daemon=True)
            for i in range(orders["slots"])
        ]

    def start(self) -> None:
        """Start from the end of the pipe to its beginning."""
        threading.Thread(target=self._run_hooks, name="tandemq-hooks", daemon=True).start()
        for thread in [self._acking, *self._slots, self._fetching]:
            thread.start()

    # threads

    def _fetch(self) -> None:
        while not self.fetcher.stopping:
            try:
                self.fetcher.step()
            except Exception:  # the loop outlives any fault of a step
                _log.exception("fetching failed, trying again")
                self._wake.wait(1.0)
            if self._is_used_up():
                self.drain()

    def _slot(self, slot: int) -> None:
        while (held := self.inbox.take(slot)) is not None:
            try:
                self._run(held)
            except BaseException:
                # A slot that is gone would leave its task begun and renewed for ever: the process must go instead.
                self._break(f"task {held.lease.id} broke its slot")
                raise
            finally:
                self.inbox.done(slot)

    def _ack(self) -> None:
        try:
            self.acker.run()
        except BaseException:
            self._break("verdicts cannot be written any more")
            raise

    def _break(self, what: str) -> None:
        """Called while an exception is handled that this process cannot go on after; its supervisor judges the rest."""
        _log.exception("%s, the process is replaced", what)
        self.exit_code = 1
        self._over.set()

    def _run(self, held: Held) -> None:
        lease, batch = held.lease, held.batch
        limit_s = self.executor.limit_s(lease)
        crash.crash_point("run.before_begin")
        began = self._clock.monotonic()
        if not batch.begin(lease.id, began, limit_s):
            self.acker.add(held, Release())
            return

        def is_cancelled() -> bool:
            return batch.lost or batch.cancel_asked(lease.id)

        outcome = self.executor.run(lease, is_cancelled, limit_s, lambda: batch.cancel_asked(lease.id))
        ended = self._clock.monotonic()
        batch.end(lease.id, ended)
        crash.crash_point("run.after_end")
        verdict = self.executor.verdict(lease, outcome)
        self.acker.add(Failed.of(held, outcome) if Listeners.anybody else held, verdict, began, ended)
        if Listeners.anybody and isinstance(outcome, Returned | Recorded):
            # Last of all: a listener that hangs can cost this slot, not the success.
            self.executor.telling.tell("on_success", of_lease(lease), lease.options)

    def _run_hooks(self) -> None:
        while (hook := self._hooks.get()) is not None:
            try:
                hook()
            except BaseException as exc:  # user code; best effort by contract
                _log.warning("on_dead_letter raised %s: %s", type(exc).__name__, describe(exc).message)
        self._hooks_done.set()

    # retries and dead letters

    def _on_retry(self, held: Held) -> None:
        lease, exc, telling = held.lease, exception_of(held), self.executor.telling
        if telling.listens(lease.task_type, "on_retry"):
            self._tell(lambda: telling.tell("on_retry", of_lease(lease), lease.options, exc))

    def _tell(self, call: Callable[[], None]) -> None:
        if self._hooks.qsize() < MAX_HOOKS:
            self._hooks.put(call)
        else:
            self._say(logging.WARNING, "hooks", "the listeners are too slow, they are not told of everything")

    def _on_dead(self, held: Held, verdict: Bury) -> None:
        lease = held.lease
        _log.warning(
            "task %s (%s, queue %s) is dead after attempt %s: %s: %s",
            lease.id, lease.task_type, lease.queue, lease.attempt, verdict.reason, verdict.failure.message,
            extra=about(lease),
        )  # fmt: skip
        self._hook(lease.task_type, lease.id, lease.payload, verdict.failure)
        if Listeners.anybody:
            exc, telling = exception_of(held), self.executor.telling
            self._tell(lambda: telling.buried(of_lease(lease), lease.options, verdict.reason, exc))

    def _on_ended(self, ended: Sequence[Ended]) -> None:
        for row in ended:
            about_row = {"task_id": row.id, "task_type": row.task_type}
            _log.warning("task %s (%s) is dead without a run: %s", row.id, row.task_type, row.reason, extra=about_row)
        self.tell_dead([row.id for row in ended])

    def tell_dead(self, task_ids: Sequence[int]) -> None:
        """Run the hooks of tasks that were buried elsewhere (a lost lease), where their type is known here, and tell
        the listeners, those of the application whatever the type.
        """

        def look_up(task_id: int) -> None:
            task = self._store.get(task_id)
            if task is None:
                return
            if Listeners.anybody:
                self.executor.telling.buried(of_row(task), task.options, task.dead_reason or "")
            if task.task_type in self.terms.known:
                error = Failure(task.error_type or "", task.last_error or "")
                self.executor.on_dead_letter(task.task_type, task.id, task.payload, error)

        for task_id in task_ids:
            self._hooks.put(lambda task_id=task_id: look_up(task_id))  # type: ignore[misc]  # bound per turn

    def _hook(self, task_type: str, task_id: int, payload: str, error: Failure) -> None:
        self._hooks.put(lambda: self.executor.on_dead_letter(task_type, task_id, payload, error))

    # stopping

    def drain(self) -> None:
        """Fetch nothing more, hand back what waits, let run what has begun; ``over`` when nothing is left."""
        if self.fetcher.stopping:
            return
        self.fetcher.stopping = True
        self._wake.set()
        threading.Thread(target=self._finish, name="tandemq-finish", daemon=True).start()

    def _finish(self) -> None:
        try:
            self._end()
        except BaseException:
            # It fetches nothing more, and after its last task nothing would ever end it.
            self._break("the process cannot drain")
            raise

    def _end(self) -> None:
        crash.crash_point("shutdown.before_release")
        self._hand_back()  # at once: the fetcher may be in a claim that takes its time
        self._fetching.join()
        self._hand_back()
        crash.crash_point("shutdown.after_release")
        self.inbox.close()
        for slot in self._slots:
            slot.join()
        # However long the database takes: results in hand are not thrown away. The supervisor ends it after the grace.
        self.acker.wait_empty(None)
        self._end_hooks()
        self._over.set()

    def _hand_back(self) -> None:
        released = Interrupted(False, failure("Interrupted", "the worker stopped"))
        for held in self.inbox.drain():
            self.acker.add(held, self.executor.verdict(held.lease, released))

    def stop(self) -> None:
        """Write what is finished and end, whatever still runs: the supervisor answers for that."""
        self.fetcher.stopping = True
        self.acker.wait_empty(FLUSH_S)
        self._end_hooks()
        self._over.set()

    def _end_hooks(self) -> None:
        self._hooks.put(None)
        self._hooks_done.wait(FLUSH_S)

    def leases_stand_s(self) -> float:
        """Seconds until the first of the leases held here may end, as far as this process knows."""
        held = [s.deadline for s in self._arena.snapshots() if any(s.open_records())]
        return max(0.0, min(held, default=0.0) - self._clock.monotonic())

    def wait_over(self, timeout_s: float | None) -> bool:
        """Wait for the end of a drain or stop."""
        return self._over.wait(timeout_s)

    def _is_used_up(self) -> bool:
        most_tasks, most_mb = self._orders["max_tasks"], self._orders["max_memory_mb"]
        if most_tasks and self.inbox.runs >= most_tasks:
            return True
        return bool(most_mb) and resident_mb() > most_mb


def resident_mb() -> float:
    """Resident memory of this process in MiB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * os.sysconf("SC_PAGESIZE") / 1048576
