"""What users and operators call: begin a replay, follow it, look at runs, pause them, let them go on, cancel them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack

from tandemq.acting import acting
from tandemq.core import ids as entropy
from tandemq.core.codec import decode
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, ForeignInstall, InvalidTask, StoreRefused, TaskNotFound
from tandemq.core.lifecycle import Status
from tandemq.links import Links
from tandemq.redeliver import dispatch
from tandemq.registry import Registry
from tandemq.replaying.answers import Kind, Replayed, told
from tandemq.replaying.editing import Editing
from tandemq.replaying.locked import REST_S, TRIES
from tandemq.replaying.orders import Orders, ReplayOptions, canonical
from tandemq.replaying.runner import HOLD_S, PAGE, Runner
from tandemq.store.answers import Filter, Moved
from tandemq.store.replaying import LOCKED
from tandemq.store.runs import ACTIVE, OPEN, ReplayRun, Revival, RunItem, RunState

#: Runs that are looked through for one that the same command has begun.
SAME_LOOK = 100


#: Called while a run is followed, with its row.
Progress = Callable[[ReplayRun], object]


class Replays:
    """The replays of one app."""

    def __init__(self, links: Links, registry: Registry) -> None:
        self._links, self._registry = links, registry

    def replay(
        self,
        ids: Iterable[int] | None = None,
        *,
        where: Filter | None = None,
        on_progress: Progress | None = None,
        **options: Unpack[ReplayOptions],
    ) -> Replayed:
        """Make dead or cancelled tasks pending again, with all their runs ahead of them; their history stays.

        Give ids, or a filter. Only what ended before the call belongs to it, and each task is decided by
        compare-and-set, so that any number of replays at once move each task once. Up to 500 ids without a pace, a
        limit, a fuse or ``detach`` are one transaction; all else is a run: a row with an outcome per task, which
        somebody else goes on with if this process dies.
        """
        orders = Orders.of(options)
        if (ids is None) == (where is None):
            raise InvalidTask("give ids or a filter, one of the two", field="ids")
        wanted = None if ids is None else sorted({_task_id(i) for i in ids}, reverse=True)
        if options.get("dry_run"):
            return self._count(wanted, where, orders.limit)
        if options.get("detach") and orders.edit is not None:
            raise InvalidTask(
                "edit and detach exclude each other: only a process that knows the handlers may edit", field="detach"
            )
        is_run = wanted is None or len(wanted) > PAGE or not orders.is_plain or options.get("detach")
        if wanted is not None and not is_run:
            # A row that the database refuses must not stop the others: a run finds out which it is.
            with contextlib.suppress(StoreRefused):
                return self._at_once(wanted[::-1], orders, options)
        run = self._begin(wanted, where, orders, options)
        return self.result(run) if options.get("detach") else self._carry_out(run, run.holder, on_progress)

    def same(
        self,
        ids: Iterable[int] | None = None,
        *,
        where: Filter | None = None,
        **options: Unpack[ReplayOptions],
    ) -> ReplayRun | None:
        """The newest run that is not over and was begun with just these arguments.

        Ages (``ended_before``, ``ended_after``) are not compared: they count from the moment of the command.
        """
        selection = _ageless(_selection(None if ids is None else sorted(set(ids), reverse=True), where))
        orders = canonical(Orders.of(options).to_json())
        for run in self._links.store.runs(limit=SAME_LOOK, states=OPEN):
            if run.orders == orders and _ageless(run.selection) == selection:
                return run
        return None

    def follow(self, run_id: int, *, on_progress: Progress | None = None, take_over: bool = False) -> Replayed:
        """Carry a run out, or watch whoever does, until it is over or paused. ``take_over``: not watch, do it."""
        return self._carry_out(self.show(run_id), _holder(), on_progress, take_over=take_over)

    def _carry_out(
        self, run: ReplayRun, holder: str, on_progress: Progress | None, *, take_over: bool = False
    ) -> Replayed:
        runner = Runner(
            self._links.store,
            self._push,
            self._links.clock,
            run,
            holder,
            registry=self._registry,
            max_payload_bytes=self._links.settings.max_payload_bytes,
            take_over=take_over,
        )
        try:
            while not runner.over:
                pause_s = runner.step()
                if on_progress is not None:
                    on_progress(runner.run)
                if pause_s > 0:
                    self._links.clock.sleep(pause_s)
        except BaseException:
            with contextlib.suppress(Exception):  # it runs out by itself; what went wrong is what counts
                runner.release()
            raise
        return self.result(runner.run)

    def result(self, run: ReplayRun) -> Replayed:
        """What a run has done so far, and why."""
        return Replayed(
            moved=run.moved,
            skipped=run.skipped,
            failed=run.failed,
            left=run.left,
            run_id=run.id,
            state=run.state,
            note=run.note,
            reasons=told(self._links.store.run_notes(run.id)),
        )

    def list(self, *, limit: int = 50, below: int | None = None, is_open: bool = False) -> Sequence[ReplayRun]:
        """Runs, newest first; ``is_open``: only those that are not over."""
        return self._links.store.runs(limit=limit, below=below, states=OPEN if is_open else None)

    def show(self, run_id: int) -> ReplayRun:
        """One run; see ``result`` and ``items`` for its tasks. TaskNotFound."""
        run = self._links.store.run(run_id)
        if run is None:
            raise TaskNotFound(f"no replay run has the id {run_id}")
        return run

    def items(self, run_id: int, outcome: str, *, after: int = 0, limit: int = 100) -> Sequence[RunItem]:
        """Tasks of a run with this outcome (waiting, moved, skipped, failed), by id."""
        return self._links.store.run_items(run_id, outcome=outcome, after=after, limit=limit)

    def pause(self, run_id: int, *, reason: str = "", who: str | None = None) -> ReplayRun:
        """Stop a run where it is; whoever carries it out ends after the chunk in progress. InvalidTask if it is over.

        Paused twice is paused.
        """
        deed = acting("replay_pause", who, reason)
        note = f"paused by {deed.who}" + (f": {reason}" if reason else "")
        return self._turn(run_id, ACTIVE, RunState.PAUSED, deed=deed, note=note)

    def resume(self, run_id: int, *, reason: str = "", who: str | None = None) -> ReplayRun:
        """Let a paused run go on where it was, and the fuse judge anew; ``follow`` it, or leave it to the reconciler.

        Where the fuse stopped the canary, another sample is drawn from what is left. A run that is not paused goes on
        anyway. InvalidTask if it is over.
        """
        orders = Orders.from_text(self.show(run_id).orders)
        deed = acting("replay_continue", who, reason)
        return self._turn(run_id, (RunState.PAUSED,), None, deed=deed, wait_s=orders.canary_wait_s)

    def cancel(self, run_id: int, *, reason: str = "", who: str | None = None) -> ReplayRun:
        """End a run for good; what it has moved stays moved. InvalidTask if it is over, unless it was cancelled."""
        deed = acting("replay_cancel", who, reason)
        note = f"cancelled by {deed.who}" + (f": {reason}" if reason else "")
        return self._turn(run_id, OPEN, RunState.CANCELLED, deed=deed, note=note)

    # pieces

    def _turn(self, run_id: int, sources: Iterable[RunState], target: RunState | None, **how: Any) -> ReplayRun:
        how["deed"].run_id = run_id
        turned = self._links.store.turn_run(run_id, tuple(sources), target, **how)
        run = self.show(run_id)
        if not turned and run.state not in (OPEN if target is None else (target,)):
            raise InvalidTask(f"replay run {run_id} is {run.state}: it cannot be changed any more", field="run_id")
        return run

    def _begin(
        self, ids: Sequence[int] | None, where: Filter | None, orders: Orders, options: ReplayOptions
    ) -> ReplayRun:
        detached = bool(options.get("detach"))
        deed = acting("replay", options.get("who"), options.get("reason", ""))
        return self._links.store.create_run(
            created_by=deed.who,
            reason=deed.reason,
            selection=_selection(ids, where),
            orders=canonical(orders.to_json()),
            holder="" if detached else _holder(),
            hold_s=0.0 if detached else HOLD_S,
        )

    def _count(self, ids: Sequence[int] | None, where: Filter | None, limit: int | None) -> Replayed:
        store, found = self._links.store, Counter[tuple[str, str]]()
        wave = self._wave()
        after: int | None = None
        at = 0
        while limit is None or found.total() < limit:
            room = PAGE if limit is None else min(PAGE, limit - found.total())
            if ids is not None:
                page, at = list(ids[at : at + room]), at + room
                is_last = at >= len(ids)
            else:
                page, after = store.find_ids(_dead(where), limit=room, after=after)
                is_last = after is None
            found.update(store.kinds_of(page, ended_before=wave) if page else {})
            if is_last:
                break
        kinds = [Kind(kind, error, n) for (kind, error), n in found.most_common()]
        return Replayed(left=found.total(), kinds=kinds)

    def _at_once(self, ids: Sequence[int], orders: Orders, options: ReplayOptions) -> Replayed:
        """A few tasks by id in one transaction, which leaves nothing to go on with. Locked ones are tried again."""
        store = self._links.store
        editing = Editing(orders.edit, self._registry, self._links.settings.max_payload_bytes)
        details = {"ids": ids, "orders": orders.to_json()}
        deed = acting("replay", options.get("who"), options.get("reason", ""), details=details)
        deed.task_id = ids[0] if len(ids) == 1 else 0
        reasons, moved, waiting, wave = Counter[tuple[str, str]](), 0, list(ids), self._wave()
        for left in range(TRIES - 1, -1, -1):
            found = store.replayable(waiting, ended_before=wave, payloads=editing.is_wanted)
            payloads, failed = editing.of(found)
            reasons.update(("skipped", one.note) for one in found if one.note)
            reasons.update(("failed", failed[one.id]) for one in found if one.id in failed)
            ripe = [one.id for one in found if not one.note and one.id not in failed]
            revival = Revival(queue=orders.queue, priority=orders.priority, payloads=payloads)
            moves = store.replay(ripe, ended_before=wave, revival=revival, deed=deed)
            if moves:
                crash_point("replay.after_commit")
                self._push(moves)
                crash_point("replay.after_push")
            moved += len(moves)
            waiting = sorted(set(ripe) - {move.id for move in moves})
            if not waiting:
                break
            if left:
                self._links.clock.sleep(REST_S)
        reasons.update(("skipped", LOCKED) for _ in waiting)
        outcomes = Counter[str]()
        for (outcome, _), n in reasons.items():
            outcomes[outcome] += n
        return Replayed(moved=moved, skipped=outcomes["skipped"], failed=outcomes["failed"], reasons=told(reasons))

    def _wave(self) -> datetime:
        """What ended in this very microsecond had ended when the replay began."""
        return self._links.store.now() + timedelta(microseconds=1)

    def _push(self, moved: Sequence[Moved]) -> None:
        # Pushing is best effort: the rows are pending, and the reconciler pushes what this could not.
        with contextlib.suppress(BrokerUnavailable, ForeignInstall):
            dispatch(self._links.broker, moved)


def _selection(ids: Sequence[int] | None, where: Filter | None) -> str:
    return canonical({"where": _dead(where).to_json()} if ids is None else {"ids": ids})


def _dead(where: Filter | None) -> Filter:
    where = where or Filter()
    return replace(where, state=where.state or Status.DEAD.value)


def _ageless(selection: str) -> Any:
    given = decode(selection)
    for name in ("ended_before", "ended_after"):
        given.get("where", {}).pop(name, None)
    return given


def _task_id(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidTask(f"{value!r} is no task id", field="ids")
    return value


def _holder() -> str:
    return entropy.worker_id(f"{socket.gethostname()[:100]}:{os.getpid()}")
