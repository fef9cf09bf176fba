"""The store contract: what monitoring reads."""

from __future__ import annotations

import pytest

from tandemq.core.audit import Deed
from tandemq.core.pausing import PauseKind
from tandemq.store import SqlStore
from tandemq.store.answers import WorkerRecord
from tandemq.testing import FakeClock
from tests.contract.store_contract import StoreContract, bury, claim, insert, lease, settle, succeed


def record(store: SqlStore, worker_id: str, clock: FakeClock, **changes: object) -> None:
    given = {
        "id": worker_id, "name": worker_id, "host": "h", "pid": 1, "queues": "default", "slots": 4, "processes": 2,
        "state": "running", "started_at": clock.now(), "heartbeat_at": clock.now(), "alive": True,
    }  # fmt: skip
    store.worker_started(WorkerRecord(**(given | changes)))  # type: ignore[arg-type]


class GaugingContract(StoreContract):
    def test_levels_are_counted_by_state_and_the_oldest_ready_one_is_timed(
        self, timed: SqlStore, clock: FakeClock
    ) -> None:
        running = insert(timed)
        claim(timed, running)
        clock.advance(100)
        insert(timed, 2, queue="mail")
        insert(timed, 3, queue="mail", priority=20, delay_s=60.0)
        clock.advance(30)
        insert(timed)
        levels = timed.levels_now(alive_s=30)

        assert levels.queues["mail"]["ready"] == 2
        assert levels.queues["mail"]["priorities"]["20"]["scheduled"] == 3
        assert levels.queues["default"]["running"] == 1
        # What runs does not wait, however old it is.
        assert levels.oldest_s == {"default": pytest.approx(0, abs=0.01), "mail": pytest.approx(30, abs=0.01)}
        assert abs((levels.now - clock.now()).total_seconds()) < 0.01

    def test_the_dead_are_counted_and_outcomes_add_up_over_hours(self, timed: SqlStore, clock: FakeClock) -> None:
        settle(timed, (lease(timed), bury()))
        settle(timed, (lease(timed), succeed()))
        clock.advance(7200)
        settle(timed, (lease(timed, queue="mail"), succeed()), (lease(timed), succeed()))

        assert timed.levels_now(alive_s=30).dead == 1
        default, mail = ("default", "shop.pay"), ("mail", "shop.pay")
        assert timed.outcomes(100) == [(*default, "dead", 1), (*default, "succeeded", 2), (*mail, "succeeded", 1)]
        assert len(timed.outcomes(2)) == 2

    def test_workers_count_while_they_are_heard_of_and_roles_while_they_are_led(
        self, timed: SqlStore, clock: FakeClock
    ) -> None:
        record(timed, "silent", clock)
        assert timed.lead("mover", "silent", 3.0)
        clock.advance(60)
        record(timed, "a", clock)
        record(timed, "b", clock, slots=1, processes=1, state="draining")
        record(timed, "c", clock, state="stopped")
        assert timed.lead("reconciler", "a", 3.0)
        levels = timed.levels_now(alive_s=30)

        assert levels.workers == {"running": 1, "draining": 1}
        assert levels.slots == {"running": 8, "draining": 1}
        assert levels.unled_s == {"mover": pytest.approx(57, abs=0.01), "reconciler": 0}

    def test_a_paused_queue_is_told_until_the_pause_is_over(self, timed: SqlStore, clock: FakeClock) -> None:
        deed = Deed(action="pause", who="ada", reason="")
        timed.pause(PauseKind.QUEUE, "mail", 60.0, deed=deed)
        timed.pause(PauseKind.TYPE, "shop.pay", None, deed=deed)
        assert timed.levels_now(alive_s=30).paused == {"mail"}
        clock.advance(61)
        assert timed.levels_now(alive_s=30).paused == frozenset()

    def test_an_empty_install_has_levels_too(self, store: SqlStore) -> None:
        levels = store.levels_now(alive_s=30)
        assert (levels.queues, levels.dead, levels.workers, levels.oldest_s) == ({}, 0, {}, {})
        assert store.outcomes(10) == []

    def test_a_lease_says_for_how_long_its_task_had_been_due(self, timed: SqlStore, clock: FakeClock) -> None:
        ids = [*insert(timed), *insert(timed, delay_s=20.0)]
        clock.advance(30)
        waited = [one.waited_us / 1e6 for one in claim(timed, ids).leases]
        assert waited == [pytest.approx(30, abs=0.01), pytest.approx(10, abs=0.01)]
        (alone,) = claim(timed, insert(timed)).leases  # by the other way: all at once
        assert alone.waited_us / 1e6 == pytest.approx(0, abs=0.01)
