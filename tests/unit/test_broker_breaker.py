from __future__ import annotations

import _thread
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Semaphore

import pytest

from tandemq.broker.breaker import Breaker
from tandemq.core.errors import BrokerUnavailable
from tests.contract.broker_bed import HandClock
from tests.waiting import eventually


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def breaker(clock: HandClock) -> Breaker:
    return Breaker(clock)


def fail(breaker: Breaker) -> None:
    with pytest.raises(BrokerUnavailable, match=r"^down$"), breaker.guard():
        raise BrokerUnavailable("down")


def succeed(breaker: Breaker) -> None:
    with breaker.guard():
        pass


def refused(breaker: Breaker) -> bool:
    try:
        succeed(breaker)
    except BrokerUnavailable:
        return True
    return False


def test_the_pause_doubles_from_1_s_to_10_s_and_no_further(breaker: Breaker, clock: HandClock) -> None:
    for pause_s in (1, 2, 4, 8, 10, 10):
        fail(breaker)
        clock.time += pause_s - 0.01
        with pytest.raises(BrokerUnavailable, match=r"down \(not tried again for 0\.0 s\)"), breaker.guard():
            raise AssertionError("an open breaker lets nobody in")
        clock.time += 0.02


def test_one_success_closes_it_and_the_next_pause_is_short_again(breaker: Breaker, clock: HandClock) -> None:
    for pause_s in (1, 2, 4):
        fail(breaker)
        clock.time += pause_s
    succeed(breaker)

    assert not breaker.is_open
    fail(breaker)
    clock.time += 1
    assert not refused(breaker)


def test_while_one_call_probes_the_others_are_still_refused(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker)
    clock.time += 1

    with breaker.guard():
        assert refused(breaker)

    assert not refused(breaker)


def test_a_probe_that_never_comes_back_does_not_keep_it_open_for_ever(breaker: Breaker, clock: HandClock) -> None:
    fail(breaker)
    clock.time += 1
    with pytest.raises(KeyboardInterrupt), breaker.guard():
        raise KeyboardInterrupt

    assert refused(breaker)
    clock.time += 1
    assert not refused(breaker)


def test_many_calls_that_fail_together_count_as_one_failure(breaker: Breaker, clock: HandClock) -> None:
    all_in = Barrier(20)

    def call() -> None:
        with pytest.raises(BrokerUnavailable), breaker.guard():
            all_in.wait()
            raise BrokerUnavailable("down")

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: call(), range(20)))

    clock.time += 1
    assert not refused(breaker)


def test_other_errors_do_not_open_it(breaker: Breaker) -> None:
    with pytest.raises(ZeroDivisionError), breaker.guard():
        raise ZeroDivisionError

    assert not breaker.is_open


def test_after_a_time_out_no_call_pays_for_the_probe(clock: HandClock) -> None:
    probes: list[str] = []
    answers: list[Exception | None] = [BrokerUnavailable("still down"), None]
    may_answer = Semaphore(0)

    def probe() -> None:
        may_answer.acquire()
        clock.time += 1
        answer = answers.pop(0)
        probes.append("well" if answer is None else "ill")
        if answer is not None:
            raise answer

    breaker = Breaker(clock, probe)
    with pytest.raises(BrokerUnavailable), breaker.guard():
        clock.time += 1
        raise BrokerUnavailable("timed out")

    clock.time += 1
    assert all(refused(breaker) for _ in range(3))  # also the one whose turn it would be, while the probe waits
    may_answer.release()
    eventually(lambda: probes == ["ill"])
    assert refused(breaker)
    clock.time += 2
    assert refused(breaker)
    may_answer.release()
    eventually(lambda: not breaker.is_open)
    assert not refused(breaker)
    assert probes == ["ill", "well"]


def test_after_a_refusal_the_next_call_is_the_probe(clock: HandClock) -> None:
    breaker = Breaker(clock, probe=lambda: pytest.fail("nobody would have had to wait"))
    fail(breaker)
    clock.time += 1
    assert not refused(breaker)


def test_when_no_thread_can_be_had_calls_are_refused_as_before(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    breaker = Breaker(clock, probe=lambda: None)
    breaker.trip("timed out")
    clock.time += 1
    assert refused(breaker)
    monkeypatch.undo()
    clock.time += 1
    assert refused(breaker)
    eventually(lambda: not breaker.is_open)
