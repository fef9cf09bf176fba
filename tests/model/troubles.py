"""What breaks in the model: calls that are lost or late, processes that die or stand still, servers, lists, clocks."""

from __future__ import annotations

from tandemq.core.errors import TandemQError
from tests.model.coop import Call
from tests.model.ledger import WRITES
from tests.model.stage import LEASE_S, LEVELS, Stage

ADVANCES = (0.1, 0.5, 2.0, 2.0, LEASE_S + 1, 30.0, 90.0)
FATES = ("before", "after", "late")
JUNK = (b"junk", b"", b"-5", b"007", b"9" * 30)
#: Where somebody may be held; some places are more dangerous than others.
BARRIERS = (
    *("end_lease", "renew", "claim", "finish", "end_lease", "claim", "finish", "give_back", "end_lease", "push_next"),
    *("pop", "delay", "push", "replay", "promote", "insert", "cancel", "purge", "prune", "rebuild_chunk"),
    *("advance_generation", "oldest_due", "window", "begin_rebuild", "release_held", "kills"),
)
#: A call that was given up may still arrive for so long.
LATE_S = 600.0


class Troubles(Stage):
    """Every method is a command."""

    def fault(self, pick: int, fate: int) -> None:
        """The call at which somebody stands is not made, or made and not answered, or made some time."""
        held = [one for one in self.scene.actors if one.call is not None and one.is_held and one.process.alive]
        standing = [one for one in self.scene.actors if one.call is not None and one.can_go_on]
        weighty = [one for one in standing if one.call is not None and _matters(one.call)]
        if standing := (held if pick % 2 else []) or weighty or standing:
            one = standing[pick // 2 % len(standing)]
            one.is_held = False
            self.ledger.seen[f"lost {one.call}"] += 1
            one.resume(FATES[fate % len(FATES)])
            self.ledger.seen["faults"] += 1

    def late(self, pick: int) -> None:
        """A call that was given up arrives."""
        now = self.clock.monotonic()
        self.servers.late = [(at, call) for at, call in self.servers.late if now - at < LATE_S]
        possible = [one for one in self.servers.late if one[1].kind not in self.servers.away]
        if possible:
            one = possible[pick % len(possible)]
            self.servers.late.remove(one)
            self.ledger.seen[f"late {one[1]}"] += 1
            try:
                self.servers.perform(one[1])
            except TandemQError:
                self.ledger.seen["late and refused"] += 1

    def die(self, tree: int, what: int, doing: int) -> None:
        """A child, a supervisor or both are killed; the call of one actor may just have been made."""
        if not self._trees:
            return
        one = self._trees[tree % len(self._trees)]
        children = [child for child in one.children if child.process.alive]
        dying = [child.process for child in children] if what % 4 != 1 else []
        dying += [one.process] if what % 4 in {1, 2} else []
        calls = [a.call for a in one.actors() if a.process in dying and a.call and a.can_go_on]
        if doing % 3 and calls:
            call = calls[doing % len(calls)]
            if call.kind not in self.servers.away:
                self.servers.perform(call)
        for child in children if what % 4 == 3 else ():
            child.culprits = set(sorted(child.begun())[:1])
        if what % 4 != 1:
            for child in children:
                child.die()
        if what % 4 in {1, 2}:
            one.die()
        self.ledger.seen["deaths"] += len(dying)
        self._bury()

    def pause(self, tree: int, child: int) -> None:
        """SIGSTOP of a child or of a supervisor."""
        if self._trees:
            self._trees[tree % len(self._trees)].pause(True, child=bool(child % 2))

    def resume(self, tree: int) -> None:
        """SIGCONT."""
        if self._trees:
            for child in (False, True):
                self._trees[tree % len(self._trees)].pause(False, child=child)

    def outlive(self, tree: int, what: int, barrier: int) -> None:
        """A worker, or a part of it, stands still until its leases are lost and others have its tasks; then goes on."""
        if not self._trees:
            return
        one = self._trees[tree % len(self._trees)]
        if len(self._trees) == 1:
            self.spawn()
        if barrier < len(BARRIERS):
            self.barrier(barrier)
        starved = [a for a in one.actors() if what % 4 == 3 and a.name.startswith("slot")]
        for actor in starved:
            actor.is_held = True
        for child in (False, True):
            one.pause(what % 4 in {0, 1 + child}, child=child)
        for turn in range(10):
            if turn == 2 and what % 4 == 3:
                # Renewed once: what waits may begin until then and no longer.
                starved += [a for a in one.actors() if a.name == "heartbeat"]
                for actor in starved:
                    actor.is_held = True
            for other in self._trees:
                self._settle(other)
            self.clock.advance(2.0)
        for actor in starved:
            actor.is_held = False
        for child in (False, True):
            one.pause(False, child=child)
        self.ledger.seen["outlived"] += 1

    def barrier(self, method: int) -> None:
        """The next one who is about to make a certain call is held there."""
        self.scene.barriers.add(BARRIERS[method % len(BARRIERS)])

    def let_go(self, pick: int) -> None:
        """One who is held goes on."""
        if held := [actor for actor in self.scene.actors if actor.is_held]:
            held[pick % len(held)].is_held = False
            self.ledger.seen["let go"] += 1

    def redis(self, away: int) -> None:
        """Redis goes, or comes back."""
        self._away("broker", away)

    def mysql(self, away: int) -> None:
        """MySQL goes, or comes back."""
        self._away("store", away)

    def _away(self, kind: str, away: int) -> None:
        (self.servers.away.add if away % 2 else self.servers.away.discard)(kind)

    def flush(self) -> None:
        """FLUSHALL."""
        self.world.flush()

    def snapshot(self) -> None:
        """Remember all of Redis."""
        self._snapshot = self.world.snapshot()

    def restore(self) -> None:
        """Put it back."""
        if self._snapshot is not None:
            self._snapshot()

    def lose(self, level: int, pick: int) -> None:
        """An id is gone from a list."""
        key = self.world.key(LEVELS[level % len(LEVELS)], "ready")
        if length := self.world.raw.llen(key):
            entry = self.world.raw.lindex(key, pick % length)
            self.world.raw.lrem(key, 1, entry)

    def stale(self, level: int, pick: int, front: int) -> None:
        """An id that is a copy, of the wrong level, of a final row, or of none."""
        ids = [*self.ledger.rows, 10**12]
        key = self.world.key(LEVELS[level % len(LEVELS)], "ready")
        push = self.world.raw.rpush if front % 2 else self.world.raw.lpush
        push(key, ids[pick % len(ids)])

    def junk(self, level: int, pick: int) -> None:
        """Something that is no id."""
        entry = JUNK[pick % len(JUNK)]
        self._junk.add(entry)
        self.world.raw.rpush(self.world.key(LEVELS[level % len(LEVELS)], "ready"), entry)

    def jump(self, tree: int, back: int) -> None:
        """A process's wall clock jumps by an hour."""
        if self._trees:
            self._trees[tree % len(self._trees)].clock.jumped_s += -3600.0 if back % 2 else 3600.0

    def database_jump(self) -> None:
        """The database's clock jumps ahead, past every lease; not in the middle of a pass, which could not notice."""
        passes = [a for tree in self._trees for a in tree.actors() if a.name == "reconciler" and a.call is not None]
        if not passes:
            self.clock.jumped_s += LEASE_S + 5

    def advance(self, by: int) -> None:
        """Time passes."""
        self.clock.advance(ADVANCES[by % len(ADVANCES)])


def _matters(call: Call) -> bool:
    return call.method in WRITES - {"lead", "worker_beat", "worker_started"} or call.method in {
        "pop", "push", "push_next", "delay", "promote", "begin_rebuild", "rebuild_chunk", "advance_generation",
    }  # fmt: skip
