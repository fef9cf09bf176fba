"""Pop ids, claim their rows, put the leases into the inbox; never more than can start soon."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tandemq import metrics
from tandemq.broker.protocol import Broker, Popped
from tandemq.core.clock import Clock
from tandemq.core.crash import crash_point
from tandemq.core.errors import BrokerUnavailable, StoreRefused, StoreUnavailable, TandemQError
from tandemq.core.ids import IdSource
from tandemq.core.lifecycle import Release
from tandemq.core.task import Level
from tandemq.pausing import Flood, PauseWatch
from tandemq.service import Throttle
from tandemq.store.answers import Claimed, Ended
from tandemq.store.protocol import Store
from tandemq.worker.acker import Acker
from tandemq.worker.arena import Arena, Batch, begin_within_s
from tandemq.worker.direct import WithoutRedis
from tandemq.worker.fair import FairTurns
from tandemq.worker.inbox import Held, Inbox, Room

_log = logging.getLogger("tandemq.worker")
#: Longest BRPOP, so also how often the levels are read again and how late a stop is noticed.
BLOCK_S = 0.5
#: While something waits in the inbox it must be looked after, so BRPOP blocks shorter.
SHORT_BLOCK_S = 0.05
LEVELS_S = 0.9
#: How often an idle worker asks whether Redis still takes ids: one at maxmemory lets lists be emptied but not filled.
CHECK_S = 2.0
LONGEST_BACKOFF_S = 2.0
#: The kind of a log line.
WITHOUT_REDIS = "without Redis"
#: Entries that are no ids are each named in the log, so many of them; further ones are only counted.
NAMED_JUNK = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under what a worker claims."""

    worker_id: str
    queues: tuple[str, ...]
    known: frozenset[str]
    lease_s: float
    unknown_task_s: float
    redis_away_s: float
    fair: bool = False


class Fetcher:
    """One per process; ``step`` is called in a loop by its thread."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        terms: Terms,
        *,
        arena: Arena,
        inbox: Inbox,
        acker: Acker,
        clock: Clock,
        new_token: IdSource,
        rng: Random,
        pause: Callable[[float], object],
        on_ended: Callable[[Sequence[Ended]], None],
    ) -> None:
        self._store, self._broker, self._terms = store, broker, terms
        self._arena, self._inbox, self._acker = arena, inbox, acker
        self._clock, self._new_token, self._pause, self._on_ended = clock, new_token, pause, on_ended
        self._levels: list[Level] = []
        self._levels_at = float("-inf")
        self._levels_of: tuple[str, ...] = ()
        self._say = Throttle(_log, clock)
        self._backoff_s = 0.0
        self._junk: set[bytes] = set()
        self._only_free = False
        self._checked_at = clock.monotonic()
        self._pauses, self._flood = PauseWatch(store, clock), Flood(store, clock)
        self._fair = FairTurns() if terms.fair else None
        self._direct = WithoutRedis(
            store, self._open_queues, after_s=terms.redis_away_s, clock=clock, rng=rng, fair=self._fair
        )
        self.stopping = False
        #: Popped ids that were no longer pending (running, ended, gone): harmless copies.
        self.dropped = 0

    def step(self) -> None:
        """One turn: hand back what waits too long, fetch what there is room for."""
        for held in self._inbox.stale():
            self._acker.add(held, Release())
        room = self._room()
        if room.pop <= 0:
            self._inbox.wait_for_room(SHORT_BLOCK_S, free=self._only_free)
            self._arena.note_fetch(self._clock.monotonic())
            return
        if not self._direct.is_time_for_redis:
            self._work_without_redis()
            return
        crash_point("pop.before")
        try:
            popped = self._pop(room.pop)
        except BrokerUnavailable as away:
            self._redis_failed(away)
            return
        except StoreUnavailable as unknown:  # what is paused, since this worker began
            self._wait_for("the database", unknown)
            return
        self._backoff_s = 0.0
        self._arena.note_fetch(self._clock.monotonic())
        if self._direct.is_back():
            self._say.forget(WITHOUT_REDIS)
            _log.info("Redis is back, ids are popped again")
        for junk in popped.junk:
            self._name_junk(popped.level, junk)
        if not popped.ids or popped.level is None:
            return
        crash_point("pop.after")
        ids = list(dict.fromkeys(popped.ids))
        if self.stopping:
            self._put_back(popped.level, ids)
        else:
            self._claim(popped.level, ids, room)

    def _room(self) -> Room:
        room = self._inbox.room()
        return Room(min(room.pop, room.free), room.free) if self._only_free else room

    def _open_queues(self) -> tuple[str, ...]:
        """The queues that are not paused."""
        return self._pauses.now().open(self._terms.queues)

    def _pop(self, limit: int) -> Popped:
        if self._direct.is_away:
            self._broker.check_writable()  # first: it waits less long for a Redis that is frozen
        wait_s = SHORT_BLOCK_S if self._inbox.waiting else BLOCK_S
        levels: Sequence[Level] = self._watched()
        if not levels:  # all of its queues are paused
            self._pause(wait_s)
        if self._fair is not None:
            levels, limit = self._fair.order(levels, limit)
        popped = self._broker.pop(levels, limit=limit, wait_s=wait_s)
        if self._fair is not None and popped.level is not None:
            self._fair.took(popped.level, len(popped.ids))
        now = self._clock.monotonic()
        if popped.level is None and now - self._checked_at > CHECK_S:
            self._checked_at = now
            self._broker.check_writable()
        return popped

    def _redis_failed(self, away: BrokerUnavailable) -> None:
        self._direct.failed()
        if (begins_in_s := self._direct.begins_in_s) > 0:
            self._wait_for("Redis", away, at_most_s=begins_in_s)
        else:
            self._say(
                logging.WARNING, WITHOUT_REDIS, f"Redis stays away, due tasks are taken from the database: {away}"
            )

    def _work_without_redis(self) -> None:
        if (wait_s := self._direct.next_look_s) > 0:
            self._pause(min(wait_s, BLOCK_S / 5))  # what waits behind a slow task is handed back in time
            return
        try:
            self._direct.look(
                lambda: 0 if self.stopping else self._room().pop,
                lambda level, ids: self._claim(level, ids, self._room()),
            )
            self._arena.note_fetch(self._clock.monotonic())
        except StoreUnavailable as also_away:
            self._wait_for("the database", also_away)

    def _name_junk(self, level: Level | None, entry: bytes) -> None:
        if len(self._junk) < NAMED_JUNK:
            self._junk.add(entry)
        kind = f"junk {entry!r}" if entry in self._junk else "junk"
        self._say(logging.WARNING, kind, f"an entry of {level} is no task id and was dropped: {entry!r}")

    def _watched(self) -> Sequence[Level]:
        now, queues = self._clock.monotonic(), self._open_queues()
        if now - self._levels_at > LEVELS_S or queues != self._levels_of:
            levels = [Level(queue, p) for queue in queues for p in self._broker.levels(queue)]
            self._levels = sorted(levels, key=lambda level: -level.priority)  # stable: equal priority by order of -q
            self._levels_at, self._levels_of = now, queues
        return self._levels

    def _claim(self, level: Level, ids: list[int], room: Room) -> Collection[int]:
        """Claim them and send each where it belongs; answers those that are no work for this worker now.

        A row of a queue that has been paused since, or of another one's list, goes back to its own list.
        """
        now = self._pauses.now()
        queues, paused = now.open(self._terms.queues), now.types
        token = self._new_token()
        batch = self._arena.open(token, ids, self._clock.monotonic() + begin_within_s(self._terms.lease_s))
        if batch is None:
            self._put_back(level, ids)
            self._pause(SHORT_BLOCK_S)
            return ()
        batch.sent_at = sent_at = self._clock.monotonic()
        try:
            claimed = self._store.claim(
                ids,
                token=token,
                worker_id=self._terms.worker_id,
                lease_s=self._terms.lease_s,
                free=room.free,
                known=self._terms.known,
                queues=queues,
                unknown_task_s=self._terms.unknown_task_s,
                paused=paused,
            )
        except StoreRefused as refused:
            return self._isolate(batch, level, ids, refused)
        except Exception as unknown:  # whatever it was, the claim may have been committed
            self._recover(batch, level, ids, unknown)
            return ()
        took_s = self._clock.monotonic() - sent_at
        crash_point("claim.after_commit")
        batch.held([lease.id for lease in claimed.leases])
        if not claimed.leases:
            batch.close()
        # Rows on their last attempt are not claimed ahead: until there are none, pop no more than there are free slots,
        # or they would be popped, locked and put back in a loop.
        self._only_free = bool(claimed.put_back)
        held = [Held(lease, batch) for lease in claimed.leases]
        if self.stopping:
            for one in held:
                self._acker.add(one, Release())
        else:
            self._inbox.put(held)
        crash_point("claim.after_hand_over")
        if claimed.leases:  # counted when the tasks can start
            metrics.claimed(Counter([(lease.queue, lease.task_type) for lease in claimed.leases]), took_s)
        self._drop(claimed, level)
        self._send_back(claimed)
        if paused and claimed.not_due and not claimed.leases and not claimed.put_back and not self.stopping:
            self._hold_more(level, paused)
        return [*claimed.dropped, *(row.id for row in claimed.not_due), *(row.id for row in claimed.ended)]

    def _hold_more(self, level: Level, paused: Collection[str]) -> None:
        def pop(n: int) -> Sequence[int]:
            if self._direct.is_away:
                return self._store.oldest_due(level, limit=n, older_than_s=0.0)
            return self._broker.pop([level], limit=n, wait_s=0).ids

        try:
            held = self._flood.hold(pop, paused, lambda ids: self._put_back(level, ids))
            self._send_back(Claimed(not_due=tuple(held)))
        except TandemQError as error:  # the next claim finds out what there is to be done about it
            self._say(logging.WARNING, "flood", f"tasks of paused types cannot be held: {error}")

    def _drop(self, claimed: Claimed, level: Level) -> None:
        if claimed.dropped and not self._direct.is_away:  # not popped, but seen in MySQL by several workers at once
            metrics.dropped(level.queue, len(claimed.dropped))
            self.dropped += len(claimed.dropped)
            self._say(
                logging.DEBUG, "dropped", f"{self.dropped} popped ids were no longer pending, e.g. {claimed.dropped[0]}"
            )

    def _recover(self, batch: Batch, level: Level, ids: list[int], away: Exception) -> None:
        """The claim's answer is unknown: never run, never forget, ask the database what carries the token."""
        self._put_back(level, ids)  # an outage must not drain the lists
        while not self.stopping:
            self._wait_for("the database", away)
            try:
                self._store.give_back(batch.token, ids)
            except Exception as still_away:
                away = still_away
                continue
            batch.settle(ids)
            batch.close()
            self._put_back(level, ids)
            return

    def _isolate(self, batch: Batch, level: Level, ids: list[int], refused: StoreRefused) -> Collection[int]:
        """Nothing is claimed. One row that the database refuses must not hold up the others of its batch."""
        batch.settle(ids)
        batch.close()
        if len(ids) == 1:
            self._say(logging.ERROR, "refused", f"task {ids[0]} cannot be claimed and is left as it is: {refused}")
            return ids
        middle = len(ids) // 2
        return [i for some in (ids[:middle], ids[middle:]) for i in self._claim(level, some, self._inbox.room())]

    def _send_back(self, claimed: Claimed) -> None:
        put_back: dict[Level, list[int]] = defaultdict(list)
        for level, task_id in claimed.put_back:
            put_back[level].append(task_id)
        later: dict[Level, dict[int, int]] = defaultdict(dict)
        for row in claimed.not_due:
            later[row.level][row.id] = row.due_ms
        self._tell_redis(put_back, later)
        if claimed.ended:
            metrics.dead(Counter([(row.task_type, row.reason) for row in claimed.ended]))
            self._on_ended(claimed.ended)

    def _put_back(self, level: Level, ids: list[int]) -> None:
        self._tell_redis({level: ids}, {})

    def _tell_redis(self, first: Mapping[Level, list[int]], later: Mapping[Level, dict[int, int]]) -> None:
        if self._direct.is_away:
            return  # these ids came from MySQL
        try:
            for level, ids in first.items():
                self._broker.push_next(level, ids)
            for level, due in later.items():
                self._broker.delay(level, due)
        except BrokerUnavailable as away:
            self._say(logging.WARNING, "redis", f"Redis is away, the reconciler will push these ids later: {away}")

    def _wait_for(self, what: str, error: Exception, *, at_most_s: float = LONGEST_BACKOFF_S) -> None:
        self._say(logging.WARNING, what, f"{what} is away, waiting: {error}")
        self._backoff_s = min(LONGEST_BACKOFF_S, max(0.1, self._backoff_s * 2))
        self._pause(min(self._backoff_s, at_most_s))
