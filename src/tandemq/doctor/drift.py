"""Compares what lies in Redis with the rows, as the reconciler does, and puts right what is safe to put right.

Bounded at any size: of each list the ``TAIL`` entries that are popped next, of each sorted set the ``FRONT`` that are
due first, of each level the ``ROWS`` oldest due rows, and at most ``MAX_LEVELS`` levels. Everything is looked at twice,
a moment apart, because an id that is just being claimed looks like a lost one, and one that was just finished like
junk; only what both looks show is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from tandemq.broker.keys import parse_id
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock
from tandemq.core.lifecycle import Status
from tandemq.core.settings import Settings
from tandemq.core.task import Level, epoch_ms
from tandemq.doctor.finding import Finding, Grade
from tandemq.doctor.looks import LATE_S, Agreed, Look, agreed
from tandemq.reconciler.generation import CHECKING, Mark
from tandemq.store.protocol import Store

TAIL, FRONT, ROWS, MAX_LEVELS = 4000, 1000, 1000, 200
#: A row that became due just now is on its way; two looks are so far apart.
DUE_FOR_S, APART_S = 2.0, 0.3
SHOWN = 5
_HEALS = "a worker's reconciler does it within seconds; by hand: tandemq doctor --fix"


class Drift:
    """One examination. ``fix``: push what is missing, take out what is proven dead, name and mark what has no name."""

    def __init__(self, store: Store, broker: Broker, clock: Clock, settings: Settings, *, fix: bool) -> None:
        self._store, self._broker, self._clock, self._settings, self._fix = store, broker, clock, settings, fix

    def examine(self) -> Iterator[Finding]:
        """Every finding; Unavailable when a server goes away meanwhile."""
        install = self._install()
        yield install
        if install.level is Grade.FAULT:
            return  # somebody else's lists
        open_levels = self._store.open_levels()
        queues = sorted({level.queue for level in open_levels} | self._broker.queues())
        named = [Level(queue, priority) for queue in queues for priority in sorted(self._broker.levels(queue))]
        every = sorted({*open_levels, *named})
        levels = every[:MAX_LEVELS]
        if len(every) > MAX_LEVELS:
            says = f"there are {len(every)} levels (queue and priority); only {MAX_LEVELS} are looked at"
            yield Finding("queues.sampled", Grade.INFO, says)
        yield from self._types(levels)
        yield self._names(open_levels)
        yield from self._generations([q for q in queues if any(level.queue == q for level in levels)])
        seen = self._look_twice(levels)
        yield from self._missing(seen)
        yield from self._strays(seen)
        yield self._copies(seen)
        yield self._late(seen)
        yield self._leases()
        yield from self._workers(open_levels)

    # what has a name

    def _install(self) -> Finding:
        name, own, marked = "redis.install", self._store.install_id(), self._broker.install()
        if marked is None and self._fix:
            marked = self._broker.mark_install(own)
            if marked == own:
                return Finding(name, Grade.INFO, "the namespace was not marked", fixed=f"marked as install {own}")
        if marked is None:
            says = f"the namespace is not marked yet, wanted the mark of install {own}"
            return Finding(name, Grade.INFO, says, "the first worker marks it; by hand: tandemq doctor --fix")
        if marked != own:
            says = f"the namespace belongs to install {marked}, this database is install {own}: nothing may be pushed"
            remedy = f"another TANDEMQ_NAMESPACE; or to take it over: redis-cli SET {self._mark_key} {own}"
            return Finding(name, Grade.FAULT, says, remedy)
        return Finding(name, Grade.OK, f"the namespace belongs to this database (install {own})")

    @property
    def _mark_key(self) -> str:
        return f"{self._settings.namespace}:generation"

    def _types(self, levels: Sequence[Level]) -> Iterator[Finding]:
        wrong = self._broker.wrong_types(levels)
        for key, kind in sorted(wrong.items()):
            says = f"the key {key} is a {kind} that tandemq did not make: nothing can be pushed there or popped"
            yield Finding("redis.key_types", Grade.FAULT, says, f"redis-cli DEL '{key}'", key)
        if not wrong:
            yield Finding("redis.key_types", Grade.OK, "every key of tandemq's holds what it should")

    def _names(self, open_levels: Sequence[Level]) -> Finding:
        name, queues = "queues.names", self._broker.queues()
        levels = {level.queue: self._broker.levels(level.queue) for level in open_levels[:MAX_LEVELS]}
        unnamed = [
            level for level in open_levels[:MAX_LEVELS]
            if level.queue not in queues or level.priority not in levels[level.queue]
        ]  # fmt: skip
        if not unnamed:
            return Finding(name, Grade.OK, "every queue and priority with tasks has its name in Redis")
        says = f"{_some(map(_called, unnamed))} have tasks and no name in Redis, wanted one: delayed ones are not moved"
        if not self._fix:
            return Finding(name, Grade.WARNING, says, _HEALS)
        self._broker.register(unnamed)
        return Finding(name, Grade.INFO, says, fixed=f"named {len(unnamed)}")

    def _generations(self, queues: Iterable[str]) -> Iterator[Finding]:
        name, install, sound = "queues.generation", self._store.install_id(), 0
        for queue in queues:
            # The keys move on with every pass, after the epoch: read in this order a key is at most one behind.
            epoch, text = self._store.epoch(), self._broker.generation(queue)
            mark = Mark.parse(text)
            if text is None:
                says = f"queue {queue} has no generation: Redis was emptied, or no reconciler has met the queue"
                yield Finding(name, Grade.INFO, says, "start a worker, or tandemq reconcile --once", queue)
            elif mark is None or mark.install != install:
                says = (
                    f"the generation of queue {queue} is {text[:100]!r}, wanted one of install {install}: it is rebuilt"
                )
                yield Finding(name, Grade.WARNING, says, "start a worker, or tandemq reconcile --once", queue)
            elif mark.epoch < epoch - 1:
                says = (
                    f"the generation of queue {queue} is {mark.epoch}, wanted {epoch - 1} or newer: Redis was set back"
                )
                yield Finding(name, Grade.WARNING, says, "start a worker, or tandemq reconcile --once", queue)
            elif mark.cursor is not None:
                doing = "compared with the rows" if mark.cursor == CHECKING else "filled from the rows"
                says = f"queue {queue} is being {doing}"
                yield Finding(name, Grade.INFO, says, "a worker's reconciler goes on with it", queue)
            else:
                sound += 1
        if sound:
            yield Finding(name, Grade.OK, f"{sound} queues are of the right generation")

    # what lies in the lists

    def _look_twice(self, levels: Sequence[Level]) -> list[Agreed]:
        first = {level: self._look(level) for level in levels}
        busy = {level: look for level, look in first.items() if look.ready.length or look.delayed.length or look.due}
        if busy:
            self._clock.sleep(APART_S)
        now_ms = epoch_ms(self._store.now())
        return [agreed(level, look, self._look(level), now_ms) for level, look in busy.items()]

    def _look(self, level: Level) -> Look:
        """The lists first, then the rows: what is claimed in between is then in the first and not in the second."""
        ready, delayed = self._broker.ready_sample(level, TAIL), self._broker.delayed_sample(level, FRONT)
        due = self._store.oldest_due(level, limit=ROWS, older_than_s=DUE_FOR_S)
        ids = {i for i in map(parse_id, (*ready.entries, *delayed.entries)) if i is not None}
        return Look(ready, delayed, due, self._store.entries(sorted(ids | set(due))))

    def _missing(self, seen: Sequence[Agreed]) -> Iterator[Finding]:
        name, now = "queues.missing", self._store.now()
        lost = [level for level in seen if level.lost]
        for found in lost:
            age_s = (now - found.oldest).total_seconds() if found.oldest else 0.0
            many = f"{len(found.lost)}{' or more' if len(found.lost) == ROWS else ''}"
            beyond = f"not among the next {TAIL} of {found.length}" if found.length > TAIL else "not in Redis"
            says = f"{_called(found.level)}: {many} due tasks are {beyond}, wanted none (oldest due for {age_s:.0f} s)"
            if self._fix:
                self._broker.push_next(found.level, found.lost)
                fixed = f"pushed {len(found.lost)}"
                fixed += "; once they have been taken the next ones are looked at" if len(found.lost) == ROWS else ""
                yield Finding(name, Grade.INFO, says, subject=found.level.queue, fixed=fixed)
            else:
                yield Finding(name, Grade.WARNING, says, _HEALS, found.level.queue)
        if not lost:
            yield Finding(name, Grade.OK, f"no due task is missing{_bounds(seen)}")

    def _strays(self, seen: Sequence[Agreed]) -> Iterator[Finding]:
        name = "queues.strays"
        found = [level for level in seen if level.ready or level.delayed]
        for level in found:
            entries = [*level.ready, *level.delayed]
            shown = _some(entry[:40].decode("utf-8", "replace") for entry in entries)
            says = f"{_called(level.level)}: {len(entries)} entries are no id, or of tasks that have ended ({shown})"
            says += _bounds([level])
            if not self._fix:
                remedy = "workers drop them; by hand: tandemq doctor --fix"
                yield Finding(name, Grade.INFO, f"{says}, wanted none", remedy, level.level.queue)
            else:
                gone = self._remove(level)
                yield Finding(name, Grade.INFO, says, subject=level.level.queue, fixed=f"removed {gone}")
        if not found:
            yield Finding(name, Grade.OK, f"every entry in Redis is the id of an open task{_bounds(seen)}")

    def _remove(self, found: Agreed) -> int:
        gone = self._broker.remove(found.level, ready=found.ready, delayed=found.delayed, within=2 * TAIL)
        # A dead task that was replayed in this moment has its only id taken away: look again, and push it.
        ids = [i for i in map(parse_id, (*found.ready, *found.delayed)) if i is not None]
        pending = sorted(i for i, row in self._store.entries(ids).items() if row.status is Status.PENDING and row.due)
        if pending:
            self._broker.push_next(found.level, pending)
        return gone

    def _copies(self, seen: Sequence[Agreed]) -> Finding:
        copies = sum(level.copies for level in seen)
        if not copies:
            return Finding("queues.copies", Grade.OK, f"no id is there twice{_bounds(seen)}")
        says = f"{copies} entries are copies of others, or of tasks that run: each costs a worker one look-up, no more"
        return Finding("queues.copies", Grade.INFO, says)

    def _late(self, seen: Sequence[Agreed]) -> Finding:
        late = [level for level in seen if level.late]
        if not late:
            return Finding("queues.delayed", Grade.OK, "no delayed task is past its time")
        worst_s = max(level.latest_s for level in late)
        says = f"{sum(level.late for level in late)} delayed tasks are past their time, the oldest for {worst_s:.0f} s"
        remedy = "start a worker (without --no-mover), or tandemq mover"
        return Finding("queues.delayed", Grade.WARNING, f"{says}, wanted none: no mover runs", remedy)

    # who works

    def _leases(self) -> Finding:
        claims, now = self._store.expired_claims(ROWS), self._store.now()
        old = [claim for claim in claims if (now - claim.expires_at).total_seconds() > self._settings.lease_s + LATE_S]
        if not old:
            return Finding("leases.expired", Grade.OK, "no lease is past its end and forgotten")
        says = (
            f"{len(old)} leases ended long ago ({sum(len(c.ids) for c in old)} tasks), wanted none: no reconciler runs"
        )
        remedy = "start a worker (without --no-reconcile), or tandemq reconcile"
        return Finding("leases.expired", Grade.WARNING, says, remedy)

    def _workers(self, open_levels: Sequence[Level]) -> Iterator[Finding]:
        alive = [worker for worker in self._store.workers(alive_s=self._settings.lease_s) if worker.alive]
        served = {name.strip() for worker in alive for name in worker.queues.split(",")}
        slots = sum(worker.slots * worker.processes for worker in alive)
        text = f"{len(alive)} workers with {slots} slots are alive"
        yield Finding("workers.alive", Grade.OK if alive else Grade.INFO, text)
        now, waits = self._store.now(), dict[str, float]()
        for level in open_levels[:MAX_LEVELS]:
            for task_id in self._store.oldest_due(level, limit=1, older_than_s=0.0):
                with suppress(KeyError):  # it was purged in between
                    run_at = self._store.entries([task_id])[task_id].run_at
                    waits[level.queue] = max(waits.get(level.queue, 0.0), (now - run_at).total_seconds())
        unserved = {queue: age_s for queue, age_s in waits.items() if queue not in served}
        for queue, age_s in sorted(unserved.items()):
            says = f"queue {queue} has due tasks, the oldest for {age_s:.0f} s, and no live worker serves it"
            yield Finding("workers.serving", Grade.WARNING, says, f"tandemq -A module:app worker -q {queue}", queue)
        if not unserved:
            yield Finding("workers.serving", Grade.OK, "every queue with due tasks has a live worker")
        if waits:
            queue, age_s = max(waits.items(), key=lambda pair: pair[1])
            yield Finding("queues.oldest", Grade.INFO, f"the oldest due task waits for {age_s:.0f} s, in queue {queue}")


def _called(level: Level) -> str:
    return f"queue {level.queue}, priority {level.priority}"


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:SHOWN]) + (f" and {len(every) - SHOWN} more" if len(every) > SHOWN else "")


def _bounds(seen: Sequence[Agreed]) -> str:
    """How much was looked at, where that is not all."""
    return f" (of each long list only the next {TAIL} were looked at)" if any(s.length > TAIL for s in seen) else ""
