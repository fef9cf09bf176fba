"""The whole protocol under a list of choices: what every actor does next, what breaks, what people do.

``Model.do(name, *numbers)`` is one choice. Numbers are taken modulo what there is to choose from, so every list of
commands can be run, shrunk and kept as JSON; the same list does the same again.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tandemq.core.audit import Deed
from tests.model.ledger import FINAL
from tests.model.people import People
from tests.model.stage import LEASE_S, LEVELS, Broken, Command
from tests.model.troubles import Troubles

#: Turns of calm, about a second each, after which everything must be over.
CALM_TURNS = 200
#: What a claim that was given up leaves runs out by itself after an hour.
TOMBSTONE_S = 3700.0


class Model(Troubles, People):
    """One run: commands, then ``calm``. Broken is raised where an invariant does not hold."""

    def calm(self) -> None:
        """The faults stop: everything must end, within bounds."""
        self.commands.append(["calm"])
        self.servers.away.clear()
        self.scene.barriers.clear()
        for actor in self.scene.actors:
            actor.is_held = False
        while self.servers.late:
            self.late(0)
        for actor in [one for one in self.scene.actors if one.process is self._client]:
            self._run(actor)
        for number, tree in enumerate(self._trees):
            self.resume(number)
            if tree.draining:
                self.stop(number)
        self.check()
        for pause in self.world.store.pauses():
            if pause.until is None:  # whoever ended it died: the workers wake what it held
                self.world.store.resume(pause.kind, pause.name, deed=Deed(action="resume", who="calm"))
        self._is_calm = True
        self._bury()
        self.spawn()
        for _ in range(CALM_TURNS):
            if self._is_over():
                break
            self.calm_turn()
            self._bury()
            if all(tree.draining for tree in self._trees):
                self.spawn()
            self.check()
        else:
            raise Broken(f"not over after {CALM_TURNS} turns: {self._left()}")
        self.ledger.seen["calm turns"] += _
        for _ in range(3):
            # What a given-up claim left, and ids of held tasks that were released: they run out by themselves.
            if self.ledger.claims or any(self._lists().values()):
                self.clock.advance(TOMBSTONE_S)
                for _ in range(int(LEASE_S) + 8):
                    self.calm_turn()
        self.check()
        if not self._is_over() or self.ledger.claims or any(self._lists().values()):
            raise Broken(f"something is left at the end: {self._left()} {self.ledger.claims}")
        for promise in self.ledger.promises.values():
            if promise.outcome == "stored" and promise.id not in self.ledger.rows:
                self.ledger.check(promise.id in self.ledger.gone, "I1: lost", promise)
        self.check()

    def _is_over(self) -> bool:
        rows = self.ledger.rows.values()
        live = [claim for claim in self.ledger.claims.values() if claim.worker_id]
        return all(row.status in FINAL for row in rows) and not live and not any(self._lists(later=False).values())

    def _lists(self, *, later: bool = True) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for level in LEVELS:
            if level.priority not in self.world.broker.levels(level.queue):
                continue  # what a stranger put there
            ready: Any = self.world.raw.lrange(self.world.key(level, "ready"), 0, -1)
            delayed: Any = self.world.raw.zrange(self.world.key(level, "delayed"), 0, -1)
            for entry in [*ready, *delayed]:
                self.ledger.check(entry.isdigit() or entry in self._junk, "I7: what is this in Redis?", entry)
            left = {str(row.id).encode() for row in self.ledger.rows.values() if row.status not in FINAL}
            found[f"{level}"] = [*ready, *(entry for entry in delayed if later or entry in left)]
        return found

    def _left(self) -> str:
        rows = [row for row in self.ledger.rows.values() if row.status not in FINAL]
        return f"rows {rows} claims {self.ledger.claims} lists { ({k: v for k, v in self._lists().items() if v}) }"

    def outline(self) -> list[tuple[Any, ...]]:
        """What became of every task, the same whatever the servers are."""
        rows = sorted(self.ledger.rows.values(), key=lambda row: row.id)
        return [(r.n, r.status, r.attempts, r.replays, r.fence, r.dead_reason) for r in rows]


#: Every command, the upper bounds of its numbers, and how often a random walk takes it.
COMMANDS: dict[str, tuple[tuple[int, ...], int]] = {
    "enqueue": ((6, 4, 4, 8, 4, 4), 14),
    "batch": ((6, 4, 4), 5),
    "enqueue_with": ((6, 4, 3, 2), 3),
    "step": ((3, 12, 8), 22),
    "client": ((4,), 4),
    "turn": ((3,), 12),
    "calm_turn": ((), 8),
    "end": ((6, 7), 14),
    "fault": ((12, 3), 10),
    "late": ((4,), 4),
    "die": ((3, 4, 9), 5),
    "pause": ((3, 2), 2),
    "resume": ((3,), 2),
    "outlive": ((3, 4, 36), 6),
    "barrier": ((26,), 5),
    "let_go": ((4,), 5),
    "redis": ((2,), 2),
    "mysql": ((2,), 2),
    "flush": ((), 2),
    "snapshot": ((), 1),
    "restore": ((), 1),
    "lose": ((6, 8), 3),
    "stale": ((6, 20, 2), 3),
    "junk": ((6, 5), 1),
    "jump": ((3, 2), 1),
    "database_jump": ((), 1),
    "advance": ((7,), 8),
    "cancel": ((20, 3), 4),
    "kill": ((20, 3), 3),
    "hold": ((4, 3, 3), 3),
    "unhold": ((4, 3), 4),
    "replay": ((8, 3), 5),
    "purge": ((8, 3), 2),
    "prune": ((3,), 2),
    "drain": ((3, 3), 3),
    "stop": ((3,), 2),
    "spawn": ((), 3),
}


def walk(seed: int, length: int) -> list[Command]:
    """A random list of commands."""
    rng = Random(seed)
    names = list(COMMANDS)
    weights = [COMMANDS[name][1] for name in names]
    return [
        [name, *(rng.randrange(bound) for bound in COMMANDS[name][0])] for name in rng.choices(names, weights, k=length)
    ]
