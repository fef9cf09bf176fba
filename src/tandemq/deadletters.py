"""Dead letters as a tool: search, show, replay, purge. Replay is a compare-and-set per row, so twice is harmless."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import NamedTuple

from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, TaskNotFound
from tandemq.core.lifecycle import Status
from tandemq.core.task import Task
from tandemq.links import Links
from tandemq.redeliver import dispatch
from tandemq.store.answers import Filter, Page

PAGE = 500
_ENDED_BADLY = (Status.DEAD, Status.CANCELLED)


class Replayed(NamedTuple):
    """``moved`` are pending again; ``skipped`` were not dead, ended after the wave began, or do not exist."""

    moved: int
    skipped: int


class Purged(NamedTuple):
    """``purged`` are gone; ``kept`` were not dead, do not exist, or hold an idempotency key and ended within 24 h."""

    purged: int
    kept: int


class DeadLetters:
    """The dead (and cancelled) tasks. Each page is one transaction; dying between two pages leaves whole pages done."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def search(self, where: Filter | None = None, *, limit: int = 50, after: int | None = None) -> Page:
        """A page of dead tasks, newest first; ``Filter(state="cancelled")`` for cancelled ones.

        See ``Page``: it may hold fewer than ``limit``, and go on.
        """
        return self._links.store.find(_dead(where), limit=limit, after=after)

    def show(self, task_id: int) -> Task:
        """One dead task with its failed attempts. TaskNotFound if it is not dead."""
        task = self._links.store.get(task_id, attempts=True)
        if task is None or task.status not in _ENDED_BADLY:
            what = "no task has this id" if task is None else f"it is {task.state}"
            raise TaskNotFound(f"task {task_id} is no dead letter: {what}")
        return task

    def replay(self, ids: Iterable[int] | None = None, *, where: Filter | None = None) -> Replayed:
        """Make dead or cancelled tasks pending again, with all their runs ahead of them; their history stays.

        Give ids, or a filter (``Filter()`` is every dead one). The wave takes only what ended before it began, so it
        ends, and two waves at once move each task once. Pages of 500: commit, then push; dying in between leaves
        pending rows to the reconciler.
        """
        # What ended in this very microsecond had ended when the wave began.
        wave = self._links.store.now() + timedelta(microseconds=1)
        moved = seen = 0
        for page in self._pages(ids, where):
            moves = self._links.store.replay(page, ended_before=wave)
            crash_point("replay.after_commit")
            # Pushing is best effort: the rows are pending, and the reconciler pushes what this could not.
            with contextlib.suppress(BrokerUnavailable, ForeignInstall):
                dispatch(self._links.broker, moves)
            crash_point("replay.after_push")
            moved += len(moves)
            seen += len(page)
        return Replayed(moved, seen - moved)

    def purge(self, ids: Iterable[int] | None = None, *, where: Filter | None = None) -> Purged:
        """Delete dead or cancelled tasks and their attempts for good. Give ids, or a filter that narrows something."""
        if ids is None and not any(value is not None for value in asdict(where or Filter()).values()):
            raise InvalidTask("purge deletes for good: give ids, or a filter that narrows something", field="filter")
        purged = seen = 0
        for page in self._pages(ids, where):
            seen += len(page)
            for state in _ENDED_BADLY:
                found, _ = self._links.store.find_ids(Filter(ids=tuple(page), state=state.value), limit=len(page))
                purged += self._links.store.purge(sorted(found))
        return Purged(purged, seen - purged)

    def _pages(self, ids: Iterable[int] | None, where: Filter | None) -> Iterator[list[int]]:
        if (ids is None) == (where is None):
            raise InvalidTask("give ids or a filter, one of the two", field="ids")
        if ids is not None:
            wanted = sorted(set(ids))
            yield from (wanted[at : at + PAGE] for at in range(0, len(wanted), PAGE))
            return
        after: int | None = None
        while True:
            page, after = self._links.store.find_ids(_dead(where), limit=PAGE, after=after)
            if page:
                yield sorted(page)
            if after is None:
                return


def _dead(where: Filter | None) -> Filter:
    where = where or Filter()
    if where.state not in {None, *_ENDED_BADLY}:
        raise InvalidTask(f"dead letters are dead or cancelled, not {where.state!r}", field="state")
    return replace(where, state=where.state or Status.DEAD.value)
