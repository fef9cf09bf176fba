"""From Redis to leases for remote workers: pop ids, claim each under a token of its own, send the others back.

The arrows are a worker's (``tandemq.worker.fetcher``): an id that was popped and is not claimed goes back to the front;
a claim whose answer was lost is given back once the database tells; with Redis away for a while due rows are read from
the database.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

from tandemq import metrics, redeliver
from tandemq.app import TandemQ
from tandemq.core.crash import crash_point
from tandemq.core.errors import InvalidTask, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.ids import IdSource, lease_token, new_random
from tandemq.core.lifecycle import Release, Status
from tandemq.core.task import Lease, Level, Task
from tandemq.core.values import rfc3339
from tandemq.pausing import Flood
from tandemq.remote.lists import Lists
from tandemq.remote.terms import Token, Wanted
from tandemq.service import Throttle
from tandemq.store.answers import Claimed, Settled, Settlement

_log = logging.getLogger("tandemq.remote")
#: A claim goes on for so long over ids that turn out to be no work for it (copies, unknown types).
PATIENCE_S = 1.0
#: With the database away nothing is popped for so long: an outage must not drain the lists.
DATABASE_AWAY_S = 1.0
#: One claim stops at so many characters of payload; what else was popped goes back.
MAX_PAYLOADS: Final = 32 * 1024 * 1024
#: Claims whose answer was lost, to be given back; of more than these the leases run out.
MAX_OWED: Final = 1000


class Claims:
    """One per process; every method may be called by several threads at once, and blocks."""

    def __init__(self, app: TandemQ, *, new_token: IdSource = lease_token, rng: Random | None = None) -> None:
        self.app, self._new_token = app, new_token
        self._say = Throttle(_log, app.clock)
        self.lists = Lists(app, rng or new_random())
        self._database_away_until = float("-inf")
        self._flood: Flood | None = None
        self._owed: deque[tuple[int, int]] = deque(maxlen=MAX_OWED)

    def take(self, wanted: Wanted) -> list[Lease]:
        """Claim what is there now: by priority over all queues, then as named. StoreUnavailable: nothing is held."""
        self.check_database()
        got: list[Lease] = []
        until = self._now() + PATIENCE_S
        try:
            while (room := _room(wanted, got)) and self._now() < until:
                popped = self.lists.popped(wanted.queues, room)
                if popped is None:
                    self._take_due(wanted, got)
                    break
                if popped.level is None:
                    break
                self.claim(popped.level, popped.ids, wanted, got)
        except Exception:
            if not got:
                raise
        return got

    def _take_due(self, wanted: Wanted, got: list[Lease]) -> None:
        def claim(level: Level, ids: list[int]) -> list[int]:
            return self.claim(level, ids, wanted, got)

        # One that asks again and again must not put off the look for all those who wait.
        self.lists.look(lambda: _room(wanted, got), claim, wanted.queues, sets_pace=False)

    def check_database(self) -> None:
        """StoreUnavailable if it was away a moment ago."""
        if self._now() < self._database_away_until:
            raise StoreUnavailable("the database was away a moment ago; nothing is claimed until it is asked again")

    def claim(
        self, level: Level, ids: Sequence[int], wanted: Wanted, got: list[Lease], behind: Sequence[int] = ()
    ) -> list[int]:
        """Claim them one by one and append the leases to ``got``; answers those that are no work for this worker now.

        Those that are left when ``got`` is full go back to Redis. An error sends them back too, and with them what was
        popped ``behind`` them, in order.
        """
        no_work: list[int] = []
        for at, task_id in enumerate(ids):
            if not _room(wanted, got):
                self.lists.put_back(level, ids[at:])
                break
            try:
                lease = self._claim_one(level, task_id, wanted)
            except BaseException:
                self.lists.put_back(level, [*ids[at:], *behind])
                raise
            if lease is None:
                no_work.append(task_id)
            else:
                got.append(lease)
        if ids and len(no_work) == len(ids):
            self._hold_more(level)
        return no_work

    def _hold_more(self, level: Level) -> None:
        if self._flood is None:  # a store is opened when it is first needed
            self._flood = Flood(self.app.store, self.app.clock)

        def put_back(ids: list[int]) -> None:
            self.lists.put_back(level, ids)

        try:
            held = self._flood.hold(lambda n: self.lists.next_of(level, n), self.lists.paused().types, put_back)
            self._send_back(level, Claimed(not_due=tuple(held)))
        except TandemQError as error:  # the next claim finds out what there is to be done about it
            self._say(logging.WARNING, "flood", f"tasks of paused types cannot be held: {error}")

    def _claim_one(self, level: Level, task_id: int, wanted: Wanted) -> Lease | None:
        paused = self.lists.paused()
        token, sent_at = self._new_token(), self._now()
        try:
            claimed = self.app.store.claim(
                [task_id], token=token, worker_id=wanted.worker_id, lease_s=wanted.lease_s, free=1,
                known=wanted.types, queues=paused.open(wanted.queues), unknown_task_s=self.app.settings.unknown_task_s,
                paused=paused.types,
            )  # fmt: skip
        except (StoreRefused, InvalidTask) as refused:
            self._say(logging.ERROR, "refused", f"task {task_id} cannot be claimed and is left as it is: {refused}")
            return None
        except Exception as error:
            if isinstance(error, StoreUnavailable):
                self._database_away_until = self._now() + DATABASE_AWAY_S
            if not isinstance(error, StoreUnavailable) or error.unknown:
                self._owe(token, task_id)  # it may have been committed: never run, never forget
            raise
        self._database_away_until = float("-inf")
        crash_point("claim.after_commit")
        self._send_back(level, claimed)
        if not claimed.leases:
            return None
        (lease,) = claimed.leases
        metrics.claimed({(lease.queue, lease.task_type): 1}, self._now() - sent_at)
        return lease

    def _send_back(self, level: Level, claimed: Claimed) -> None:
        if claimed.dropped and not self.lists.is_away:  # else it was not popped, but seen by several at once
            metrics.dropped(level.queue, len(claimed.dropped))
        first: dict[Level, list[int]] = defaultdict(list)
        for own_level, task_id in claimed.put_back:
            first[own_level].append(task_id)
        later: dict[Level, dict[int, int]] = defaultdict(dict)
        for row in claimed.not_due:
            later[row.level][row.id] = row.due_ms
        self.lists.tell(first, later)
        for ended in claimed.ended:
            metrics.dead({(ended.task_type, ended.reason): 1})

    # After the claim

    def show(self, leases: Sequence[Lease], wanted: Wanted) -> list[dict[str, Any]]:
        """What the worker is told: each task as everybody sees it, its token, and when its lease ends.

        Tasks whose lease has been lost since are left out, and rows that cannot be read: those are left to their
        leases, for given back they would be the next again, for ever. If the database cannot tell all are given back
        once it can.
        """
        unreadable: set[int] = set()
        try:
            tasks = {task.id: task for task in self._readable(leases, unreadable)}
        except BaseException:
            for lease in leases:
                if lease.id not in unreadable:
                    self._owe(lease.token, lease.id)
            raise
        crash_point("claim.after_hand_over")
        found = [(lease, tasks.get(lease.id)) for lease in leases]
        return [
            task.to_json()
            | {
                "lease_token": str(Token(lease.token, wanted.lease_s)),
                "lease_expires_at": rfc3339(task.lease_expires_at),
            }
            for lease, task in found
            if task is not None and task.status is Status.RUNNING and task.fence == lease.fence
        ]

    def _readable(self, leases: Sequence[Lease], unreadable: set[int]) -> Iterable[Task]:
        try:
            return self._read(leases)
        except StoreRefused as refused:
            if len(leases) > 1:
                return [task for lease in leases for task in self._readable([lease], unreadable)]
            unreadable.add(leases[0].id)
            text = f"task {leases[0].id} has been claimed but cannot be read, and is left to its lease: {refused}"
            self._say(logging.ERROR, "unreadable", text)
            return []

    def _read(self, leases: Sequence[Lease]) -> Iterable[Task]:
        if len(leases) == 1:
            task = self.app.store.get(leases[0].id, attempts=leases[0].fence > 1)  # its first claim: no history
            return [] if task is None else [task]
        ids, found = [lease.id for lease in leases], list[Task]()
        while ids:
            some, n = self.app.store.full(ids)
            found += some
            ids = ids[n:]
        return found

    def hand_back(self, leases: Sequence[Lease], worker_id: str) -> None:
        """Nobody will hear of these: their attempts are given back and they are next. Never raises Unavailable."""
        if not leases:
            return
        tokens = [lease.token for lease in leases]
        settlements = [Settlement(lease, Release()) for lease in leases]
        try:
            settled = self.app.store.finish(settlements, closing=tokens, worker_id=worker_id)
        except StoreUnavailable:
            for lease in leases:
                self._owe(lease.token, lease.id)
            return
        for lease in leases:
            if lease.id in settled.locked:
                self._owe(lease.token, lease.id)
        self._follow(settled)

    def _owe(self, token: int, task_id: int) -> None:
        self._owed.append((token, task_id))

    @property
    def owes(self) -> bool:
        """Whether claims are to be given back."""
        return bool(self._owed)

    def settle(self) -> None:
        """Give back what nobody may run: claims whose answer was lost, or whose worker could not be told.

        Waits for rows that others hold, about 15 s each. StoreUnavailable: to be called again, it begins with the next
        claim then. One that cannot be given back for another reason is left to its lease. The ids of claims that were
        not committed are in Redis all the time.
        """
        for _ in range(len(self._owed)):
            token, task_id = self._owed.popleft()
            try:
                settled = self.app.store.give_back(token, [task_id])
            except Exception as error:
                if isinstance(error, StoreUnavailable):
                    self._owe(token, task_id)
                    raise
                text = f"task {task_id} cannot be given back and is left to its lease: {error}"
                self._say(logging.ERROR, "not given back", text, exc=None if isinstance(error, StoreRefused) else error)
            else:
                self._follow(settled)

    def _follow(self, settled: Settled) -> None:
        for move in settled.moved:
            if move.status is Status.PENDING:
                metrics.finished({(move.level.queue, move.task_type, "released"): 1}, 0.0)
        redeliver.dispatch(self.app.broker, settled.moved)

    def _now(self) -> float:
        return self.app.clock.monotonic()


def _room(wanted: Wanted, got: Sequence[Lease]) -> int:
    """How many further tasks the worker may be given."""
    is_full = sum(len(lease.payload) for lease in got) > MAX_PAYLOADS
    return 0 if is_full else wanted.most - len(got)
