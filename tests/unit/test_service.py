"""The loop, turn by turn; the threads only where the thread itself is the subject."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from random import Random

import pytest

from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.service import Loop, Throttle
from tandemq.testing import FakeClock
from tests.waiting import eventually

LOG = logging.getLogger("test.service")


class Scripted:
    """A service whose steps answer, or raise, what the test says; the last entry repeats."""

    def __init__(self, *answers: float | Exception) -> None:
        self.answers = list(answers)
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loop_of(clock: FakeClock) -> Callable[..., Loop]:
    return lambda service: Loop(service, clock, Random(1), "thing", LOG)


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_a_good_turn_gives_the_services_own_pause_and_is_remembered(
    clock: FakeClock, loop_of: Callable[..., Loop]
) -> None:
    loop = loop_of(Scripted(0.2, -1.0))
    assert loop.last_ok_at is None

    assert loop.turn() == 0.2
    assert loop.last_ok_at == clock.monotonic()
    assert loop.turn() == 0.0


def test_failed_turns_wait_longer_and_longer_up_to_five_seconds_until_one_succeeds(
    loop_of: Callable[..., Loop],
) -> None:
    errors = [BrokerUnavailable("away")] * 6
    loop = loop_of(Scripted(*errors, 0.1, BrokerUnavailable("away")))

    pauses = [loop.turn() for _ in range(6)]

    for pause, base in zip(pauses, [0.5, 1.0, 2.0, 4.0, 5.0, 5.0], strict=True):
        assert base * 0.8 <= pause <= base * 1.2
    assert len({pause / base for pause, base in zip(pauses, [0.5, 1, 2, 4, 5, 5], strict=True)}) > 3, "no jitter"
    assert loop.turn() == 0.1
    assert 0.4 <= loop.turn() <= 0.6


def test_a_failure_does_not_count_as_a_sign_of_life(clock: FakeClock, loop_of: Callable[..., Loop]) -> None:
    loop = loop_of(Scripted(0.1, ValueError("x")))
    loop.turn()
    ok_at = loop.last_ok_at
    clock.advance(60)

    loop.turn()

    assert loop.last_ok_at == ok_at


def test_an_error_is_logged_once_per_kind_then_every_30_s_with_a_count(
    clock: FakeClock, loop_of: Callable[..., Loop], caplog: pytest.LogCaptureFixture
) -> None:
    loop = loop_of(Scripted(BrokerUnavailable("away"), ValueError("bug"), BrokerUnavailable("away")))

    for _ in range(20):
        loop.turn()
        clock.advance(1)
    assert [m.split(":")[0] for m in messages(caplog)] == ["thing", "thing"]
    clock.advance(15)
    loop.turn()

    assert messages(caplog)[0] == "thing: away"
    assert "bug" in messages(caplog)[1]
    assert messages(caplog)[2] == "thing: away (and 18 more of this kind since)"
    by_level = {record.levelno: record.exc_info for record in caplog.records}
    assert by_level[logging.WARNING] is None, "a server that is away needs no traceback"
    assert by_level[logging.ERROR] is not None, "a bug does"


def test_recovery_is_told_once(loop_of: Callable[..., Loop], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = loop_of(Scripted(BrokerUnavailable("away"), BrokerUnavailable("away"), 1.0))

    for _ in range(4):
        loop.turn()

    assert messages(caplog, logging.INFO)[1:] == ["thing works again after 2 failed turns"]


def test_the_thread_steps_until_stop_which_wakes_it_from_a_long_pause() -> None:
    service = Scripted(3600.0)
    loop = Loop(service, SystemClock(), Random(1), "thing", LOG)
    loop.start()
    eventually(lambda: service.steps == 1)

    assert loop.stop(timeout_s=10)

    assert not loop.alive
    assert service.steps == 1


def test_wake_asks_for_the_next_turn_now_also_during_a_turn() -> None:
    loop: Loop
    entered, go_on = threading.Event(), threading.Event()

    class Slow:
        steps = 0

        def step(self) -> float:
            self.steps += 1
            entered.set()
            go_on.wait(10)
            return 3600.0

    service = Slow()
    loop = Loop(service, SystemClock(), Random(1), "thing", LOG)
    loop.start()
    entered.wait(10)
    loop.wake()
    go_on.set()

    eventually(lambda: service.steps == 2)
    loop.wake()
    eventually(lambda: service.steps == 3)
    assert loop.stop(timeout_s=10)


def test_the_thread_outlives_errors() -> None:
    service = Scripted(ValueError("bug"), 0.0)
    loop = Loop(service, SystemClock(), Random(1), "thing", LOG)
    loop.start()

    eventually(lambda: service.steps > 3)

    assert loop.alive
    assert loop.stop(timeout_s=10)


def test_stop_may_come_before_start_twice_and_from_the_service_itself() -> None:
    service = Scripted(0.0)
    early = Loop(service, SystemClock(), Random(1), "early", LOG)
    assert early.stop()
    early.start()
    assert early.stop(timeout_s=10)
    assert early.stop(timeout_s=10)
    assert service.steps == 0

    class Suicidal:
        def step(self) -> float:
            own.stop()
            return 0.0

    own = Loop(Suicidal(), SystemClock(), Random(1), "own", LOG)
    own.start()
    eventually(lambda: not own.alive)


def test_a_loop_runs_once() -> None:
    loop = Loop(Scripted(3600.0), SystemClock(), Random(1), "thing", LOG)
    loop.start()
    with pytest.raises(RuntimeError, match="started before"):
        loop.start()
    loop.stop(timeout_s=10)


def test_throttle_forgets_the_oldest_kind_and_what_it_is_told_to_forget(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = Throttle(LOG, clock)

    assert throttle(logging.WARNING, "a", "a")
    assert not throttle(logging.WARNING, "a", "a")
    throttle.forget("a")
    assert throttle(logging.WARNING, "a", "a")
    for n in range(500):
        throttle(logging.WARNING, f"kind {n}", "x")
    assert throttle(logging.WARNING, "a", "a")
