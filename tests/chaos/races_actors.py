"""The actors of a race: what a process of tandemq does, driven by hand from whichever thread calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tandemq import TandemQ
from tandemq.core.lifecycle import Verdict
from tandemq.core.settings import Settings
from tandemq.core.task import Lease, Level
from tandemq.mover import Mover
from tandemq.reconciler import Reconciler
from tandemq.reconciler.expiry import Expiry
from tandemq.reconciler.report import Report, Tally
from tandemq.redeliver import dispatch
from tandemq.store.answers import Claimed, Settled, Settlement
from tandemq.worker.arena import Arena
from tandemq.worker.child import Child
from tandemq.worker.inbox import Held
from tandemq.worker.leases import LeaseKeeper
from tandemq.worker.options import WorkerOptions

if TYPE_CHECKING:
    from tests.chaos.races_stage import Stage

LOW = Level("default", 0)
LEASE_S, RECONCILE_S = 3.0, 1.0
#: Nobody is held for longer than this: a machine that is slower than that shows as a failed race, not as a hang.
HELD_S = 30.0


class Hand:
    """The child process of a worker, driven by hand in whichever thread calls: what it does is the product's code."""

    def __init__(self, stage: Stage, side: Side) -> None:
        self.arena, self._stage, self._side = Arena.create(), stage, side
        orders = {
            "slots": 4, "worker_id": side.worker_id, "queues": ["default"], "fair": False, "max_tasks": 0,
            "max_memory_mb": 0,
        }  # fmt: skip
        self.child = Child(
            side.app.registry, side.app.settings, orders,
            store=side.store, broker=side.app.broker, arena=self.arena, clock=stage.clock, encoder=None,
        )  # fmt: skip

    def fetch(self) -> list[Held]:
        """Pop, claim, and take what the inbox was given."""
        self.child.fetcher.step()
        return self.child.inbox.drain()

    def take(self, token: int, *ids: int) -> Held:
        """Claim these under one token, whatever Redis says; the first of them."""
        batch = self.arena.open(token, list(ids), self._stage.clock.monotonic() + LEASE_S)
        claimed = self._side.claim(*ids, token=token)
        assert batch is not None
        assert [lease.id for lease in claimed.leases] == list(ids)
        batch.held(ids)
        self._stage.raw.delete(self._stage.key("ready"))
        return Held(claimed.leases[0], batch)

    def run(self, held: Held) -> None:
        """Begin and run one task as a slot does, then write its verdict."""
        self.child._run(held)
        self._write(held)

    def finish(self, held: Held, verdict: Verdict) -> int:
        """Write a verdict; how many this worker has had refused so far."""
        self.child.acker.add(held, verdict)
        self._write(held)
        return self.child.acker.fenced

    def _write(self, held: Held) -> None:
        self.child.acker.step()
        give_up_at = time.monotonic() + HELD_S
        while held.lease.id in held.batch.unsettled and time.monotonic() < give_up_at:
            self._stage.locked_out.set()
            self._stage.clock.advance(0.2)  # the row was locked: it is tried again after this time
            self.child.acker.step()

    def close(self) -> None:
        self.child.executor.stop()


class Side:
    """One of two processes: an application with connections of its own, and what a process of tandemq does with it."""

    def __init__(self, stage: Stage, settings: Settings, worker_id: str) -> None:
        self.stage, self.worker_id = stage, worker_id
        self.app = TandemQ(
            database_url=settings.database_url, redis_url=settings.redis_url, namespace=settings.namespace,
            clock=stage.clock, lease_s=LEASE_S, reconcile_s=RECONCILE_S, heartbeat_s=1.0,
        )  # fmt: skip
        self.app.task(name="noop")(stage.noop)
        self.store: Any = self.app.store
        plain_claim = self.store.claim

        def claim(ids: Sequence[int], **given: Any) -> Claimed:
            claimed: Claimed = plain_claim(ids, **given)
            stage.starts += claimed.leases
            return claimed

        self.store.claim = claim
        self.store.lead = lambda *_: True  # leadership only saves work
        self.hand = Hand(stage, self)

    def renew(self) -> None:
        """Forget the last race; the connections stay."""
        self.hand.close()
        self.hand = Hand(self.stage, self)
        self.store._may_try_at_once = True
        self.app.broker._registered.clear()  # type: ignore[attr-defined]

    def claim(self, *ids: int, at_once: bool = False, token: int | None = None, **changes: Any) -> Claimed:
        """As a worker does; ``at_once``: in one packet, else a locking read first."""
        named: dict[str, Any] = {"known": frozenset({"noop"}), "queues": frozenset({"default"})}
        given: dict[str, Any] = {
            "token": token or next(self.stage.tokens), "worker_id": self.worker_id, "lease_s": LEASE_S, "free": 10,
            "unknown_task_s": 60.0, **(named if at_once else {"known": None}), **changes,
        }  # fmt: skip
        return self.store.claim(list(ids), **given)  # type: ignore[no-any-return]

    def settle(self, lease: Lease, verdict: Verdict) -> Settled:
        """Finish as an acker does, closing the token; again while somebody holds the row, then tell Redis."""
        settled = Settled(locked=(lease.id,))
        for turn in range(500):
            settled = self.store.finish(
                [Settlement(lease, verdict)], closing={lease.token}, worker_id=self.worker_id, again=turn > 0
            )
            if not settled.locked:
                break
            self.stage.locked_out.set()
            time.sleep(0.01)
        dispatch(self.app.broker, settled.moved)
        return settled

    def beat(self) -> None:
        """What a supervisor does every heartbeat: renew the leases of its child, pass cancel requests on."""
        child = SimpleNamespace(arena=self.hand.arena, ready=False, queues=(), asked_to_stop=lambda *_: None)
        children: Any = lambda: [child]  # noqa: E731
        LeaseKeeper(
            self.store, children, settings=self.app.settings, worker_id=self.worker_id, name="races",
            options=WorkerOptions(slots=4), clock=self.stage.clock, state=lambda: "running",
        ).step()  # fmt: skip

    def expire(self) -> Report:
        """End the leases that have run out, as an armed reconciler does."""
        tally = Tally()
        tally.armed = True
        Expiry(self.store, Random(1)).turn(tally, lambda moved: dispatch(self.app.broker, moved))
        return tally.report()

    def reconciler(self) -> Reconciler:
        """One more."""
        return Reconciler(
            self.store, self.app.broker, clock=self.stage.clock, rng=Random(1), settings=self.app.settings,
            holder=self.worker_id, lead=False,
        )  # fmt: skip

    def mover(self) -> Mover:
        """One more."""
        return Mover(self.store, self.app.broker, self.stage.clock, self.worker_id, self.app.settings)
