"""Retention: removes tasks that ended long ago, in small transactions that enqueue and claim do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypedDict, Unpack

from tandemq.acting import acting
from tandemq.core import values
from tandemq.core.audit import Deed
from tandemq.core.crash import crash_point
from tandemq.core.errors import InvalidTask
from tandemq.core.lifecycle import FINAL, Status
from tandemq.core.values import Seconds
from tandemq.links import Links
from tandemq.store.answers import PruneCursor, PruneRule

#: Rows that a transaction removes: 10 to 30 ms. A look without locks reads as many.
BATCH = 500
#: Rest after a batch, as a share of the time it took: the database and its disk are free for as long again.
REST = 1.0
LONGEST_REST_S = 0.5
DEFAULT_STATUSES = (Status.SUCCEEDED, Status.CANCELLED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pruned(NamedTuple):
    """``removed``: rows that are gone (or would go). ``kept``: rows that were meant and stay.

    Kept are those that somebody else held just then or had replayed, and keyed ones that ended within 24 h.
    ``before``: what ended before this instant was meant. ``complete`` is False if the limit came first.
    """

    removed: int
    kept: int
    before: datetime
    complete: bool


class PruneOptions(TypedDict, total=False):
    """What else ``prune`` may be told.

    ``statuses``: succeeded and cancelled unless given; dead ones only go if named. ``on_batch`` is called with the
    number removed so far. ``who`` (the user of this process unless said) and ``reason`` go into the audit log.
    """

    statuses: Iterable[Status | str]
    queue: str | None
    task_type: str | None
    limit: int | None
    dry_run: bool
    on_batch: Callable[[int], object] | None
    who: str | None
    reason: str


class Pruning:
    """Each batch is a transaction: killed in between, what was removed is removed, and the next call takes the rest.

    A call is one row of the audit log, whose count grows in the transaction of each batch.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    def prune(self, older_than: Seconds, **options: Unpack[PruneOptions]) -> Pruned:
        """Remove tasks that ended at least ``older_than`` ago, by the database's clock, with their failed attempts.

        Several calls may run at once.
        """
        rule, limit = self._rule(older_than, options), options.get("limit")
        if limit is not None and limit < 1:
            raise InvalidTask(f"limit must be at least 1, not {limit}", field="limit")
        dry_run, on_batch = options.get("dry_run", False), options.get("on_batch")
        deed = acting("prune", options.get("who"), options.get("reason", ""), details=rule.to_json())
        removed = kept = 0
        cursor: PruneCursor | None = None
        while True:
            ids, cursor = self._links.store.prunable(rule, cursor, limit=BATCH)
            meant = ids if limit is None else ids[: limit - removed]
            gone = len(meant) if dry_run else self._remove(meant, rule, deed)
            removed, kept = removed + gone, kept + len(meant) - gone
            if meant and on_batch is not None:
                on_batch(removed)
            is_last = cursor is None and len(meant) == len(ids)
            if is_last or (limit is not None and removed >= limit):
                return Pruned(removed, kept, rule.before, is_last)

    def _rule(self, older_than: Seconds, options: PruneOptions) -> PruneRule:
        age_s, now = values.seconds(older_than, "older_than"), self._links.store.now()
        queue, task_type = options.get("queue"), options.get("task_type")
        return PruneRule(
            now - timedelta(seconds=min(age_s, (now - _EPOCH).total_seconds())),
            _final(options.get("statuses", DEFAULT_STATUSES)),
            None if queue is None else values.queue_name(queue),
            None if task_type is None else values.task_type(task_type),
        )

    def _remove(self, ids: list[int], rule: PruneRule, deed: Deed) -> int:
        if not ids:
            return 0
        clock = self._links.clock
        begun = clock.monotonic()
        removed = self._links.store.prune(ids, rule, deed=deed)
        crash_point("prune.after_commit")
        clock.sleep(min(LONGEST_REST_S, REST * (clock.monotonic() - begun)))
        return removed


def _final(statuses: Iterable[Status | str]) -> tuple[Status, ...]:
    given = {statuses} if isinstance(statuses, str) else set(statuses)
    names = sorted(s.value for s in FINAL)
    if not given or not given <= set(names):
        said = ", ".join(sorted(map(str, given))) or "nothing"
        raise InvalidTask(f"tasks are pruned by a final status ({', '.join(names)}), not {said}", field="status")
    return tuple(Status(s) for s in sorted(given))
