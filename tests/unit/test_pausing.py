"""What a process knows of pauses, tasks of paused types by the thousands, and claims of remote workers beside them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from tandemq import TandemQ, pausing
from tandemq.core.errors import BrokerUnavailable, StoreUnavailable
from tandemq.core.ids import lease_token
from tandemq.core.pausing import Paused
from tandemq.core.task import Level
from tandemq.pausing import DRAIN_LAST_LOOK_S, FLOOD_IDS, LOOK_S, Flood, PauseWatch
from tandemq.remote import Failed
from tandemq.testing import FakeClock, run_until_idle
from tandemq.worker.arena import Arena
from tandemq.worker.fetcher import Fetcher, Terms
from tandemq.worker.inbox import Inbox
from tests.unit.remote_bed import LOW, Bed

MAIL = Level("mail", 0)
AWAY = StoreUnavailable("MySQL is away")


@pytest.fixture
def bed(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> Bed:
    return Bed(tandemq_app, tandemq_clock)


def levels_looked_at(bed: Bed) -> list[Level]:
    """Of which levels the oldest due rows are read from here on."""
    looked: list[Level] = []

    def look(level: Level, **_: Any) -> None:
        looked.append(level)

    bed.store.before["oldest_due"] = look
    return looked


def pause(bed: Bed, *queue: str, **given: Any) -> None:
    bed.app.pauses.pause(*queue, **given)
    bed.clock.advance(LOOK_S)


# What is known


def test_before_the_first_answer_nobody_knows_what_may_begin(bed: Bed) -> None:
    pause(bed, "mail")
    watch = PauseWatch(bed.store, bed.clock)
    bed.fails(bed.store, "pauses", AWAY, AWAY)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            watch.now()
    assert watch.now() == Paused(frozenset({"mail"})), "asked again at once, without a moment of anything goes"


def test_while_the_database_is_away_the_last_answer_holds_and_is_not_taken_for_a_new_one(bed: Bed) -> None:
    pause(bed, "mail")
    watch = PauseWatch(bed.store, bed.clock)
    known = watch.now()
    bed.app.pauses.pause(task_type="a")
    bed.clock.advance(LOOK_S)
    bed.fails(bed.store, "pauses", AWAY)
    assert watch.now() == known == Paused(frozenset({"mail"}))
    assert watch.now() == Paused(frozenset({"mail"}), frozenset({"a"})), "the database is back: obeyed at once"


def test_the_answer_is_as_old_as_the_question(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, read = PauseWatch(bed.store, bed.clock), bed.app.store.pauses

    def slowly() -> Any:
        answer = read()
        bed.clock.advance(0.8 * LOOK_S)
        return answer

    monkeypatch.setattr(bed.app.store, "pauses", slowly)
    assert watch.now() == Paused()
    bed.app.pauses.pause("mail")
    bed.clock.advance(0.2 * LOOK_S)
    assert watch.now() == Paused(frozenset({"mail"}))


# A flood


def test_of_a_flood_what_is_paused_is_held_and_all_else_goes_back_in_order(bed: Bed) -> None:
    ids = [bed.enqueue("b" if n in (700, 701) else "a") for n in range(1300)]
    pause(bed, task_type="a")
    assert [lease.id for lease in bed.take()] == [ids[700]]
    assert bed.store.calls.count("claim") == 3, "not one for each"
    assert [bed.state(ids[n]) for n in (0, 1001, 1002)] == [("scheduled", 0), ("scheduled", 0), ("ready", 0)]
    assert bed.listed() == [ids[701], *ids[1002:]]


def test_a_flood_is_not_looked_for_again_at_once_where_there_is_none(bed: Bed) -> None:
    ids, put_back, asked = [bed.enqueue("b") for _ in range(3)], list[int](), list[int]()
    pause(bed, task_type="a")
    flood = Flood(bed.app.store, bed.clock)

    def pop(n: int) -> list[int]:
        asked.append(n)
        return ids

    for _ in range(2):
        assert flood.hold(pop, {"a"}, put_back.extend) == []
    assert (asked, put_back) == ([FLOOD_IDS], ids)
    bed.clock.advance(LOOK_S)
    assert flood.hold(pop, set(), put_back.extend) == []
    bed.fails(bed.store, "hold", AWAY)
    with pytest.raises(StoreUnavailable):
        Flood(bed.store, bed.clock).hold(pop, {"a"}, put_back.extend)
    assert put_back == ids * 2


# A worker


@pytest.fixture
def fetcher(bed: Bed) -> Iterator[Fetcher]:
    """Of a worker for mail and default with two slots, in this process; nobody runs what it claims."""
    arena = Arena.create()
    terms = Terms(
        worker_id="w", queues=("mail", "default"), known=frozenset({"a", "b"}), lease_s=30.0, unknown_task_s=60.0,
        redis_away_s=5.0,
    )  # fmt: skip
    nobody: Any = None
    made = Fetcher(
        bed.store, bed.broker, terms, arena=arena, inbox=Inbox(2, bed.clock), acker=nobody, clock=bed.clock,
        new_token=lease_token, rng=Random(1), pause=bed.clock.advance, on_ended=nobody,
    )  # fmt: skip
    yield made
    arena.close()


def test_a_worker_pops_nothing_before_it_knows_what_is_paused(bed: Bed, fetcher: Fetcher) -> None:
    bed.enqueue(queue="mail")
    pause(bed, "mail")
    bed.fails(bed.store, "pauses", AWAY, AWAY)
    for _ in range(2):
        fetcher.step()
    assert "pop" not in bed.broker.calls
    fetcher.step()
    assert "pop" in bed.broker.calls
    assert "claim" not in bed.store.calls


def test_a_claim_of_a_queue_that_was_paused_since_the_pop_goes_back(bed: Bed, fetcher: Fetcher) -> None:
    ids = [bed.enqueue(queue="mail") for _ in range(2)]
    fetcher._pauses.now()

    def paused(*_: Any, **__: Any) -> None:
        pause(bed, "mail")

    bed.broker.after["pop"] = paused
    fetcher.step()
    assert [bed.state(i) for i in ids] == [("ready", 0)] * 2
    assert bed.listed(MAIL) == ids


def test_without_redis_a_worker_does_not_look_at_a_paused_queue(bed: Bed, fetcher: Fetcher) -> None:
    bed.enqueue(queue="mail")
    held, other = bed.enqueue("b"), bed.enqueue()
    pause(bed, "mail")
    pause(bed, task_type="b")
    looked = levels_looked_at(bed)
    with bed.redis_away():
        while "oldest_due" not in bed.store.calls:
            fetcher.step()
        bed.clock.advance(60.0)
        fetcher.step()
    assert set(looked) == {LOW}
    assert [bed.state(i) for i in (held, other)] == [("scheduled", 0), ("running", 1)]


# Remote workers


def test_a_row_of_a_paused_queue_goes_from_a_wrong_list_to_its_own(bed: Bed) -> None:
    held = bed.enqueue(queue="mail")
    bed.listed(MAIL)
    bed.app.broker.pop([MAIL], limit=1, wait_s=0.0)
    bed.app.broker.push(LOW, [held])
    pause(bed, "mail")
    assert bed.take(queues=("default", "mail")) == []
    assert bed.state(held) == ("ready", 0)
    assert bed.listed(MAIL) == [held]


def test_without_redis_a_paused_queue_stays_paused(bed: Bed) -> None:
    bed.enqueue(queue="mail")
    other = bed.enqueue()
    looked = levels_looked_at(bed)
    pause(bed, "mail")
    bed.fails(bed.broker, "pop", *[BrokerUnavailable("gone")] * 20)
    bed.fails(bed.broker, "check_writable", *[BrokerUnavailable("gone")] * 20)
    assert bed.take(queues=("mail", "default")) == []
    bed.clock.advance(bed.app.settings.redis_away_s + 0.1)
    assert [lease.id for lease in bed.take(5, queues=("mail", "default"))] == [other]
    assert bed.take(queues=("mail",)) == []
    assert set(looked) == {LOW}


def test_that_redis_goes_and_comes_is_seen_where_all_queues_are_paused(bed: Bed) -> None:
    pause(bed, "mail")
    bed.clock.advance(5.0)
    bed.fails(bed.broker, "check_writable", BrokerUnavailable("gone"))
    assert bed.take(queues=("mail",)) == []
    assert bed.claims.lists.is_away
    assert bed.take(queues=("mail",)) == []
    assert not bed.claims.lists.is_away


def test_a_claim_waits_for_the_database_where_nobody_knows_what_is_paused(bed: Bed) -> None:
    task_id = bed.enqueue()
    bed.fails(bed.store, "pauses", AWAY)
    with pytest.raises(StoreUnavailable):
        bed.take()
    assert bed.listed() == [task_id]
    assert [lease.id for lease in bed.take()] == [task_id]


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failure_after_a_cancel_request_ends_it_cancelled_at_the_last_attempt_too(bed: Bed, retryable: bool) -> None:
    task_id, proof = bed.claimed(max_retries=0)
    assert bed.app.cancel(task_id) == "requested"
    stopped = Failed(error="stopped", retryable=retryable)
    for _ in range(2):  # its answer may be lost
        assert bed.work.fail(task_id, proof, stopped).state == "cancelled"
    other, its_proof = bed.claimed(max_retries=0)
    assert bed.work.fail(other, its_proof, stopped).state == "dead"


# Operators


def test_run_until_idle_leaves_what_is_paused(bed: Bed) -> None:
    ran: list[str] = []
    bed.app.task(name="a")(lambda: ran.append("a"))
    bed.app.task(name="b")(lambda: ran.append("b"))
    pause(bed, "mail")
    pause(bed, task_type="a")
    bed.enqueue("a")
    bed.enqueue("b", queue="mail")
    bed.enqueue("b")
    assert run_until_idle(bed.app) == 1
    bed.app.pauses.resume("mail")
    bed.app.pauses.resume(task_type="a")
    assert run_until_idle(bed.app) == 2
    assert (ran[0], sorted(ran)) == ("b", ["a", "b", "b"])


def test_waking_is_bounded_and_ends_where_nothing_moves(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def never_done(limit: int) -> Any:
        calls.append(limit)
        return [], True

    monkeypatch.setattr(pausing, "WAKE_CHUNKS", 7)
    monkeypatch.setattr(bed.store, "release_held", never_done, raising=False)
    pause(bed, task_type="a")
    assert bed.app.pauses.resume(task_type="a")
    assert len(calls) == 7


def test_draining_asks_for_what_runs_less_and_less_often(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id, proof = bed.claimed()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        bed.clock.advance(seconds)
        if len(slept) == 20:
            bed.work.complete(task_id, proof)

    monkeypatch.setattr(bed.clock, "sleep", sleep)
    assert not bed.app.pauses.drain("default", timeout=3)
    assert sum(slept) == pytest.approx(3)
    assert bed.app.pauses.drain("default", timeout=600)
    assert max(slept) == DRAIN_LAST_LOOK_S
    assert bed.store.calls.count("counts") == 1, "all is counted once, at the end"
