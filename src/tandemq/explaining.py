"""``why``: one sentence about a task that is true, and says what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from tandemq.core.audit import AuditRecord
from tandemq.core.errors import BrokerUnavailable, ForeignInstall
from tandemq.core.lifecycle import Status
from tandemq.core.pausing import Pause, PauseKind
from tandemq.core.task import Level, Task
from tandemq.core.values import rfc3339
from tandemq.links import Links
from tandemq.store.answers import WorkerRecord

#: Tasks ahead that are counted, and entries of a list that are looked through.
AHEAD = 10_000
#: error_type of a row that waits for a worker that knows its type (written by the claim).
UNKNOWN = "UnknownTask"
_SINCE = "; waiting since "
#: Rows of the audit log that are looked at for one task.
_NEWEST = 50
#: What a worker's record says while it takes no more tasks.
_NOT_SERVING = {"draining", "stopped"}
#: And what it says while a part of it hangs, or fails again and again: others may go on.
_UNWELL = {"stuck", "late"}


class Explanation:
    """Reads one row and as little else as its case needs; pushes the id of a due task that Redis does not have."""

    def __init__(self, links: Links, workers: Callable[[], Sequence[WorkerRecord]]) -> None:
        self._links, self._workers = links, workers

    def of(self, task_id: int) -> str:
        """The sentence."""
        task = self._links.store.get(task_id)
        if task is None:
            return f"Task {task_id} does not exist: {self._gone(task_id)}."
        tell = {Status.PENDING: self._pending, Status.RUNNING: self._running}.get(task.status, self._ended)
        return f"Task {task_id} {tell(task)}."

    # ended

    def _ended(self, task: Task) -> str:
        at = rfc3339(task.completed_at)
        if task.status is Status.SUCCEEDED:
            return f"succeeded at {at}, in run {task.attempts}"
        if task.status is Status.CANCELLED:
            return f"was cancelled at {at}{self._by(task.id, 'cancel')}"
        return f"is dead ({task.dead_reason}) since {at}, after {_runs(task)}{_error(task)}"

    # not there

    def _gone(self, task_id: int) -> str:
        record = self._newest(task_id, "purge")
        if record is not None:
            return f"it was purged at {rfc3339(record.at)} by {record.who}{_because(record)}"
        pruned = [r for r in self._links.store.audit(limit=_NEWEST).items if r.action == "prune"]
        text = "it was never stored, was rolled back, or was purged"
        if pruned:
            last = pruned[0]
            text = (
                f"it was never stored, was rolled back, or was removed by retention (which last removed {last.n} tasks"
                f" at {rfc3339(last.at)})"
            )
        return text

    def _newest(self, task_id: int, action: str) -> AuditRecord | None:
        records = self._links.store.audit(task_id=task_id, limit=_NEWEST).items
        return next((record for record in records if record.action == action), None)

    def _by(self, task_id: int, action: str) -> str:
        record = self._newest(task_id, action)
        return "" if record is None else f" by {record.who}{_because(record)}"

    # pending

    def _pending(self, task: Task) -> str:
        now = self._links.store.now()
        if task.expires_at is not None and task.expires_at <= now:
            return f"was to start before {rfc3339(task.expires_at)}, did not, and is about to be dead (expired)"
        if task.error_type == UNKNOWN and _SINCE in (task.last_error or ""):  # else a replay of what was buried for it
            since = (task.last_error or "").partition(_SINCE)[2]
            look = f"next look at {rfc3339(task.run_at)}" if task.run_at > now else "it is about to be looked at again"
            return f"waits since {since} for a worker that knows its type {task.task_type!r}, {look}"
        pause = self._pause(task)
        if pause is not None and (task.run_at <= now or pause.kind is PauseKind.TYPE):
            what = f"queue {task.queue!r}" if pause.kind is PauseKind.QUEUE else f"type {task.task_type!r}"
            end = f" until {rfc3339(pause.until)}" if pause.until else ""
            why = f" ({pause.reason})" if pause.reason else ""
            return f"waits because its {what} is paused since {rfc3339(pause.since)} by {pause.who}{end}{why}"
        if task.run_at > now:
            if task.attempts:
                again = f"retry {task.attempts} of {task.max_retries}"
                return f"failed and waits for {again}, due at {rfc3339(task.run_at)}{_error(task)}"
            return f"is not due before {rfc3339(task.run_at)}"
        since = f"is ready since {rfc3339(task.run_at)}"
        if task.attempts:
            since += f" for retry {task.attempts} of {task.max_retries}"
        records = [w for w in self._workers() if task.queue in {name.strip() for name in w.queues.split(",")}]
        serving = [w for w in records if w.alive and w.state not in _NOT_SERVING]
        if not serving:
            return f"{since}, but no live worker serves the queue {task.queue!r}; {_last_seen(records)}"
        try:
            return f"{since} {self._place(task, len(serving))}{_unwell(serving)}"
        except (BrokerUnavailable, ForeignInstall) as away:
            text = str(away).rstrip(".")
            return f"{since}, and its id waits for Redis, which is away or not ours, to be pushed or popped ({text})"

    def _pause(self, task: Task) -> Pause | None:
        names = {PauseKind.QUEUE: task.queue, PauseKind.TYPE: task.task_type}
        return next((pause for pause in self._links.store.pauses() if names[pause.kind] == pause.name), None)

    def _place(self, task: Task, workers: int) -> str:
        broker, level, entry = self._links.broker, Level(task.queue, task.priority), str(task.id).encode()
        higher = sum(broker.depth(Level(task.queue, p)) for p in broker.levels(task.queue) if p > task.priority)
        sample = broker.ready_sample(level, AHEAD)
        turn = f"in the queue {task.queue!r}, which {workers} live worker{'s serve' if workers > 1 else ' serves'}"
        if entry in sample.entries:
            ahead = higher + sample.entries.index(entry)
            if ahead > AHEAD:
                return f"and waits its turn: more than {AHEAD:,} tasks are ahead of it {turn}"
            tasks = "no task is" if ahead == 0 else "1 task is" if ahead == 1 else f"{ahead:,} tasks are"
            return f"and waits its turn: {tasks} ahead of it {turn}"
        if sample.length > AHEAD and self._links.store.count_due_before(level, task.run_at, limit=AHEAD + 1) > AHEAD:
            return f"and waits its turn: more than {AHEAD:,} tasks are ahead of it {turn}"
        was = "was not in Redis"
        if entry in broker.delayed_sample(level, AHEAD).entries:
            was = "was still among the delayed ones, which the mover empties,"
        now = self._links.store.get(task.id)
        if now is None or now.status is not Status.PENDING or now.run_at != task.run_at:
            return "and has just been taken"
        broker.push_next(level, [task.id])
        return f"and its id {was} and has been pushed now"

    # running

    def _running(self, task: Task) -> str:
        text = f"is running since {rfc3339(task.started_at)} on worker {task.worker_id}, begun {_runs(task)}"
        if task.cancel_requested_at is not None:
            text += f"; it was asked to stop at {rfc3339(task.cancel_requested_at)}{self._by(task.id, 'cancel')}"
        return text + _lease(task.lease_expires_at, self._links.store.now())


def _lease(ends_at: datetime | None, now: datetime) -> str:
    if ends_at is None:
        return "; it has no lease any more, so the reconciler will end this run"
    if ends_at <= now:
        return f"; its lease ran out at {rfc3339(ends_at)}, so the reconciler will end this run"
    return f"; its lease ends at {rfc3339(ends_at)} unless renewed"


def _unwell(serving: Sequence[WorkerRecord]) -> str:
    if any(worker.state not in _UNWELL for worker in serving):
        return ""
    return f"; but {', '.join(f'{worker.id} is {worker.state}' for worker in serving[:3])}, see tandemq health"


def _last_seen(records: Sequence[WorkerRecord]) -> str:
    if not records:
        return "none that did was seen in the last hour"
    last = max(records, key=lambda worker: worker.heartbeat_at)
    return f"the last one that did, {last.name}, was seen at {rfc3339(last.heartbeat_at)}"


def _runs(task: Task) -> str:
    return f"{task.attempts} of {task.max_retries + 1} runs"


def _error(task: Task) -> str:
    line = next(iter((task.last_error or "").splitlines()), "").strip()[:200].rstrip(". ")
    return f": {task.error_type or 'error'}: {line}" if line else ""


def _because(record: AuditRecord) -> str:
    reason = " ".join(record.reason.split())[:200].rstrip(". ")
    return f" ({reason})" if reason else ""
