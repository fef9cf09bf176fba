from __future__ import annotations

from tandemq.core.task import Lease
from tandemq.worker.arena import MAX_BATCHES, Arena, Phase, State
from tandemq.worker.inbox import MAX_AHEAD, Held, Inbox, Room
from tandemq.worker.process import FLUSH_STUCK_S, ChildProcess


class StepClock:
    def __init__(self) -> None:
        self.t = 100.0

    def monotonic(self) -> float:
        return self.t


def held(clock: StepClock, n: int) -> list[Held]:
    lease = Lease(1, "q", 0, "t", "{}", "", 1, 3, 0, 1, 5)
    return [Held(lease, None) for _ in range(n)]  # type: ignore[arg-type]


def box(slots: int = 4) -> tuple[Inbox, StepClock]:
    clock = StepClock()
    return Inbox(slots, clock), clock


def test_before_anything_is_known_only_free_slots_are_filled():
    inbox, clock = box()
    assert inbox.room() == Room(4, 4)
    inbox.put(held(clock, 4))
    assert inbox.room().pop == 0


def run(inbox: Inbox, clock: StepClock, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        inbox.put(held(clock, 1))
        inbox.take(0)
        clock.t += seconds
        inbox.done(0)


def test_short_tasks_are_fetched_ahead_by_hundreds():
    inbox, clock = box()
    run(inbox, clock, 0.00001, 20)
    assert inbox.room() == Room(4 + MAX_AHEAD, 4)


def test_tasks_of_50_ms_are_fetched_ahead_by_a_few():
    inbox, clock = box()
    run(inbox, clock, 0.05, 50)
    assert inbox.room() == Room(4 + 8, 4)


def test_slow_tasks_only_fill_free_slots():
    inbox, clock = box()
    run(inbox, clock, 5.0, 5)
    assert inbox.room() == Room(4, 4)


def test_nothing_is_fetched_ahead_while_every_slot_is_busy_with_something_slow():
    inbox, clock = box(2)
    run(inbox, clock, 0.00001, 50)
    inbox.put(held(clock, 2))
    inbox.take(0), inbox.take(1)
    assert inbox.room().pop > 0  # a task ended just now
    clock.t += 0.2
    assert inbox.room().pop == 0


def test_what_waits_behind_busy_slots_for_too_long_is_given_back():
    inbox, clock = box(1)
    inbox.put(held(clock, 3))
    inbox.take(0)
    clock.t += 0.05
    assert inbox.stale() == []
    clock.t += 0.06
    assert len(inbox.stale()) == 2
    assert inbox.waiting == 0


def test_nothing_is_given_back_while_a_slot_is_free():
    inbox, clock = box(2)
    inbox.put(held(clock, 3))
    inbox.take(0)
    clock.t += 5
    assert inbox.stale() == []


def test_the_arena_shows_the_supervisor_what_the_child_holds():
    arena = Arena.create()
    batch = arena.open(77, [1, 2, 3], deadline=10.0)
    assert batch is not None
    (before,) = arena.snapshots()
    assert before.phase is Phase.CLAIMING
    batch.held([1, 2])
    assert batch.begin(1, now=5.0, limit_s=0.5)
    (seen,) = arena.snapshots()
    assert (seen.token, seen.phase) == (77, Phase.HELD)
    assert [(r.id, r.state, r.limit_s) for r in seen.records] == [
        (1, State.BEGUN, 0.5), (2, State.WAITING, 0.0), (3, State.SETTLED, 0.0),
    ]  # fmt: skip
    batch.settle([1, 2])
    batch.close()
    assert arena.snapshots() == []
    arena.close()


def test_nothing_begins_after_the_deadline_when_lost_or_when_a_cancel_is_known():
    arena = Arena.create()
    batch = arena.open(7, [1, 2], deadline=10.0)
    assert batch is not None
    batch.held([1, 2])
    assert not batch.begin(1, now=10.0, limit_s=None)
    arena.set_deadline(0, 7, 20.0)
    arena.set_cancel(0, 7, {2})
    assert not batch.begin(2, now=10.0, limit_s=None)
    arena.set_lost(0, 7)
    assert not batch.begin(1, now=10.0, limit_s=None)
    arena.close()


def test_the_supervisor_cannot_touch_a_batch_that_was_reused():
    arena = Arena.create()
    first = arena.open(7, [1], deadline=10.0)
    assert first is not None
    first.close()
    second = arena.open(8, [1], deadline=10.0)
    assert second is not None
    arena.set_lost(0, 7)
    assert not second.lost
    arena.close()


def test_a_full_arena_says_so():
    arena = Arena.create()
    assert all(arena.open(i + 1, [i], 1.0) for i in range(MAX_BATCHES))
    assert arena.open(999, [1], 1.0) is None
    arena.close()


def test_a_process_is_not_blamed_for_an_outage_of_the_database() -> None:
    """Results from before the outage are written by its flusher a moment after the supervisor's first good beat."""
    arena = Arena.create()
    child = ChildProcess(arena, None, -1, 0.0)  # type: ignore[arg-type]
    batch = arena.open(7, [1], deadline=1000.0)
    assert batch is not None
    batch.held([1])
    batch.begin(1, now=100.0, limit_s=None)
    batch.end(1, 101.0)
    assert child.overdue(141.0, answering_since=None) == set()
    assert child.overdue(141.1, answering_since=141.0) == set()
    assert child.overdue(141.0 + FLUSH_STUCK_S + 1, answering_since=141.0) == {1}
    arena.note_flush(150.0)
    assert child.overdue(141.0 + FLUSH_STUCK_S + 1, answering_since=141.0) == set()
    arena.close()
