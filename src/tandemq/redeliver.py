"""What follows a move in MySQL: the ids go to Redis. Shared by all who end a lease (worker, supervisor, reconciler).

The arrow is: MySQL commits, the process may die, Redis is told. Nothing is lost in the gap: the row is pending and due
(or will be), and the reconciler's window finds ids that are nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from tandemq import metrics
from tandemq.broker.protocol import Broker
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.failure import failure
from tandemq.core.lifecycle import Attempt, Event, Lost, Status, Verdict, decide
from tandemq.core.retry import policy_of
from tandemq.core.task import Lease, Level
from tandemq.store.answers import Moved
from tandemq.store.protocol import Judge


def dispatch(broker: Broker, moved: Iterable[Moved]) -> bool:
    """Put the ids of rows that became pending where they belong; only after the commit that moved them.

    Due later: the sorted set. Handed back: the end of the list that is popped next, first given first. Replayed: the
    other end. Rows that ended need nothing. False: Redis was away and some ids wait for the reconciler, which is all
    that a caller can do about it. Sent twice, or for rows that have moved on, it is harmless.
    """
    later: dict[Level, dict[int, int]] = {}
    first: dict[Level, list[int]] = {}
    last: dict[Level, list[int]] = {}
    for move in moved:
        if move.status is not Status.PENDING:
            continue
        if move.due_ms is not None:
            later.setdefault(move.level, {})[move.id] = move.due_ms
        elif move.event is Event.RELEASE:
            first.setdefault(move.level, []).append(move.id)
        else:
            last.setdefault(move.level, []).append(move.id)
    try:
        for level, ids in first.items():
            broker.push_next(level, ids)
        for level, ids in last.items():
            broker.push(level, ids)
        for level, due in later.items():
            broker.delay(level, due)
    except BrokerUnavailable:
        return False
    return True


def count(moved: Iterable[Moved], *, lost: bool) -> None:
    """Tell the metrics of tasks that somebody else's end of a lease buried or sent back to be tried again.

    ``lost``: nobody has ended their process on purpose.
    """
    dead, retried, n_lost = Counter[tuple[str, str]](), Counter[tuple[str, int]](), 0
    for move in moved:
        n_lost += lost and move.event in {Event.BURY, Event.RETRY}
        if move.status is Status.DEAD:
            dead[move.task_type, move.dead_reason] += 1
        elif move.event is Event.RETRY:
            retried[move.task_type, move.attempt] += 1
    if dead:
        metrics.dead(dead)
    if retried:
        metrics.retried(retried)
    if n_lost:
        metrics.leases_lost(n_lost)


def lost_judge(rng: Random, message: str, error_type: str = "LeaseLost") -> Judge:
    """Judges rows whose process or lease was lost, by ``decide`` and the row alone: no handler code is needed.

    The row's own backoff counts (its options), not the task's: a backoff that is a callable lives only in the worker.
    """

    def judge(lease: Lease) -> Verdict:
        attempt = Attempt(lease.attempt, lease.max_retries)
        return decide(attempt, Lost(failure(error_type, message)), policy_of(lease.options), rng)

    return judge
