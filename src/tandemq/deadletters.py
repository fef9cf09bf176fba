"""Dead letters as a tool: search, show, group, replay, export, import, purge.

Replay is a compare-and-set per row, so twice is harmless; what deletes says who did it and why, in the audit log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from tandemq.acting import acting
from tandemq.archive import Archive
from tandemq.core import exported
from tandemq.core.audit import Deed
from tandemq.core.crash import crash_point
from tandemq.core.errors import InvalidTask, TaskNotFound
from tandemq.core.kinds import BYS, Grouping, Groups, error_kind
from tandemq.core.lifecycle import Status
from tandemq.core.task import NewTask, Task
from tandemq.links import Links
from tandemq.replaying import Progress, Replayed, ReplayOptions, Replays
from tandemq.store.answers import DeadKind, Filter, Page, PruneCursor

PAGE = 500
#: Tasks that are looked at for groups unless told otherwise, and in one call.
GROUP_ROWS, GROUP_PAGE = 200_000, 2_000
#: Enqueues tasks, all or none of a thousand; for each whether it was created.
Enqueue = Callable[[list[NewTask]], list[bool]]
_ENDED_BADLY = (Status.DEAD, Status.CANCELLED)


class Purged(NamedTuple):
    """``purged`` are gone; ``kept`` were not dead, do not exist, or hold an idempotency key and ended within 24 h."""

    purged: int
    kept: int


class Imported(NamedTuple):
    """``stored`` were enqueued anew; ``existing`` had been, or their key belongs to a task that is there."""

    stored: int
    existing: int


class DeadLetters:
    """The dead (and cancelled) tasks. Each page is one transaction; dying between two pages leaves whole pages done."""

    def __init__(self, links: Links, enqueue: Enqueue, replays: Replays) -> None:
        self._links, self._enqueue, self._replays = links, enqueue, replays

    @property
    def replays(self) -> Replays:
        """The replay runs: list, show, follow, pause, resume, cancel."""
        return self._replays

    def search(
        self,
        where: Filter | None = None,
        *,
        limit: int = 50,
        after: int | None = None,
        max_bytes: int | None = None,
    ) -> Page:
        """A page of dead tasks, newest first; ``Filter(state="cancelled")`` for cancelled ones.

        See ``Page``: it may hold fewer than ``limit``, and go on. ``max_bytes`` as of ``Admin.find``.
        """
        return self._links.store.find(_dead(where), limit=limit, after=after, max_bytes=max_bytes)

    def show(self, task_id: int) -> Task:
        """One dead task with its failed attempts. TaskNotFound if it is not dead."""
        task = self._links.store.get(task_id, attempts=True)
        if task is None or task.status not in _ENDED_BADLY:
            what = "no task has this id" if task is None else f"it is {task.state}"
            raise TaskNotFound(f"task {task_id} is no dead letter: {what}")
        return task

    def replay(
        self,
        ids: Iterable[int] | None = None,
        *,
        where: Filter | None = None,
        on_progress: Progress | None = None,
        **options: Unpack[ReplayOptions],
    ) -> Replayed:
        """Make dead or cancelled tasks pending again: those with the ids, or those that a filter matches.

        ``Filter()`` is every dead one. See ``Replays.replay``, and ``ReplayOptions`` for how it goes about it.
        """
        where = None if where is None else _dead(where)
        return self._replays.replay(ids, where=where, on_progress=on_progress, **options)

    def group(self, where: Filter | None = None, *, by: str = "error", max_rows: int = GROUP_ROWS) -> Groups:
        """How many there are of which kind: by ``error`` (type and folded text), type, queue, reason or worker.

        At most ``max_rows`` are looked at (their order is that of the index, not of time), at most 1,000 kinds are
        kept; ``capped`` says when that was not all.
        """
        if by not in BYS:
            raise InvalidTask(f"dead letters are grouped by {', '.join(BYS)}, not by {by!r}", field="by")
        grouping, looked, is_whole = Grouping(by), 0, True
        for page in self._kinds(_dead(where)):
            is_whole = looked < max_rows
            if not is_whole:
                break
            for one in page:
                grouping.add(one.id, *_kind(one, by), one.ended_at)
            looked += GROUP_PAGE
        return grouping.groups(capped=not is_whole)

    def export(self, where: Filter | None = None, *, ids: Iterable[int] | None = None) -> Iterator[Task]:
        """All that fit, with their failed attempts, in bounded memory; in no order of time. None and None: all."""
        for page in self._chosen(ids, where or (Filter() if ids is None else None)):
            yield from self._full(page)

    def import_tasks(
        self, shapes: Iterable[Mapping[str, Any]], *, reason: str = "", who: str | None = None
    ) -> Imported:
        """Enqueue exported tasks (``Task.to_json``) anew, a thousand at a time; importing twice makes no second task.

        See ``core.exported.new_task`` for what keeps it from that. InvalidTask ends it; whole thousands before are
        stored. Dying right after a commit costs the line in the audit log.
        """
        deed, stored, seen, batch = self.importing(reason=reason, who=who), 0, 0, list[NewTask]()
        for shape in shapes:
            batch.append(exported.new_task(shape))
            if len(batch) == 1000:
                stored, seen, batch = stored + sum(self.import_batch(batch, deed)), seen + len(batch), []
        if batch:
            stored, seen = stored + sum(self.import_batch(batch, deed)), seen + len(batch)
        return Imported(stored, seen - stored)

    def importing(
        self, *, reason: str = "", who: str | None = None, details: Mapping[str, object] | None = None
    ) -> Deed:
        """The deed of one import, for ``import_batch``."""
        return acting("import", who, reason, details=details)

    def import_batch(self, news: list[NewTask], deed: Deed) -> list[bool]:
        """Enqueue some, all or none, and add them to the deed: for each whether it was created."""
        created = self._enqueue(news)
        self._links.store.record(deed, sum(created))
        return created

    def purge(
        self,
        ids: Iterable[int] | None = None,
        *,
        where: Filter | None = None,
        reason: str = "",
        who: str | None = None,
        archive: str | Path | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Delete dead or cancelled tasks and their attempts for good. Give ids, or a filter that narrows something.

        Only what ended before it began. With ``archive`` each page is written to that file as JSON lines, and is on
        the disk, before its rows are deleted (OSError); killed in between, a task may be in both, or twice in the file.
        ``dry_run``: only says how many would go.
        """
        if ids is None and not (where or Filter()).narrows:
            raise InvalidTask("purge deletes for good: give ids, or a filter that narrows something", field="filter")
        if ids is not None:
            ids = tuple(ids)
        deed = acting("purge", who, reason, details={} if where is None else {"filter": where.to_json()})
        # What ended in this very microsecond had ended when the purge began.
        wave = self._links.store.now() + timedelta(microseconds=1)
        purged, seen = 0, 0 if ids is None else len(set(ids))
        with contextlib.ExitStack() as opened:
            file = None if archive is None or dry_run else opened.enter_context(Archive(archive))
            for page in self._chosen(ids, where):
                seen += len(page) if ids is None else 0
                meant = self._links.store.purgeable(page)
                if file is not None and meant:
                    file.write(self._full(meant))
                    file.sync()
                    crash_point("purge.after_archive")
                purged += len(meant if dry_run else self._links.store.purge(meant, ended_before=wave, deed=deed))
        return Purged(purged, seen - purged)

    def _full(self, ids: list[int]) -> Iterator[Task]:
        while ids:
            tasks, read = self._links.store.full(ids)
            yield from tasks
            ids = ids[read:]

    def _chosen(self, ids: Iterable[int] | None, where: Filter | None) -> Iterator[list[int]]:
        """Ids of dead (or cancelled) tasks, each once, in pages: of those given, or of all that a filter matches."""
        store = self._links.store
        if ids is not None or where is None or where.ids is not None or where.key is not None:
            for page in self._pages(ids, where):
                states = _ENDED_BADLY if where is None else ()
                found = [store.find_ids(Filter(ids=tuple(page), state=s), limit=len(page))[0] for s in states]
                yield sorted(i for some in found for i in some) if states else page
            return
        cursor: PruneCursor | None = None
        while True:
            page, cursor = store.ended_ids(_dead(where), cursor, limit=PAGE)
            if page:
                yield page
            if cursor is None:
                return

    def _kinds(self, where: Filter) -> Iterator[list[DeadKind]]:
        if where.ids is not None or where.key is not None:
            for page in self._pages(None, where):
                yield [_kind_of(task) for task in self._full(page)]
            return
        cursor: PruneCursor | None = None
        while True:
            kinds, cursor = self._links.store.ended_kinds(where, cursor, limit=GROUP_PAGE)
            yield kinds
            if cursor is None:
                return

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


def _kind(one: DeadKind, by: str) -> tuple[str, str | None]:
    match by:
        case "error":
            return error_kind(one.error), one.error_type
        case "type":
            return one.task_type, None
        case "queue":
            return one.queue, None
        case "reason":
            return one.reason, None
        case _:
            return one.worker_id, None


def _kind_of(task: Task) -> DeadKind:
    return DeadKind(
        task.id,
        task.queue,
        task.task_type,
        task.error_type or "",
        task.last_error or "",
        task.dead_reason or "",
        task.worker_id or "",
        task.completed_at or task.updated_at,
    )


def _dead(where: Filter | None) -> Filter:
    where = where or Filter()
    if where.state not in {None, *_ENDED_BADLY}:
        raise InvalidTask(f"dead letters are dead or cancelled, not {where.state!r}", field="state")
    return replace(where, state=where.state or Status.DEAD.value)
