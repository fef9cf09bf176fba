"""Listeners: how they are added, what they are told and when, and that they change nothing."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from tandemq import (
    NonRetryable,
    Retry,
    RetryPolicy,
    Snooze,
    TandemQ,
    TaskHandler,
    TaskTimeout,
    ValidationFailed,
    current_task,
)
from tandemq.core.listening import EVENTS, Listeners
from tandemq.retrying import RetryExecutor
from tandemq.service import Throttle
from tandemq.testing import FakeClock, run_until_idle
from tandemq.worker.child import MAX_HOOKS, Child

QUICK = RetryPolicy(max_retries=2, backoff=[1, 2], jitter=0)


def told(app: TandemQ, only: Any = None) -> list[tuple[Any, ...]]:
    """What listeners to all events hear: event, task, attempt, retries allowed, exception."""
    heard: list[tuple[Any, ...]] = []

    def hear(event: str, attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
        task = current_task()
        assert (task.attempt, task.max_retries) == (attempt, policy.max_retries)
        heard.append((event, task.task_type, attempt, policy.max_retries, exc and type(exc)))

    for event in EVENTS:
        (only or app).add_listener(event, functools.partial(hear, event))
    return heard


def run(app: TandemQ, clock: FakeClock, turns: int = 3) -> None:
    for _ in range(turns):
        run_until_idle(app)
        clock.advance(100)


# Adding


def test_an_event_that_does_not_exist_is_refused_with_those_that_do(tandemq_app: TandemQ) -> None:
    @tandemq_app.task(name="t")
    def task() -> None: ...

    for add in (tandemq_app.add_listener, task.add_listener, Listeners().add):
        with pytest.raises(ValueError, match="'on_sucess' is unknown; use one of before_attempt, on_success, on_retry"):
            add("on_sucess", print)


@pytest.mark.parametrize("callback", [lambda: None, lambda a, b: None, lambda a, b, c, d: None, 5, lambda *, x: None])
def test_what_cannot_take_three_arguments_is_refused(callback: Any, tandemq_app: TandemQ) -> None:
    with pytest.raises(TypeError, match=r"must take \(attempt, policy, exc\)"):
        tandemq_app.add_listener("on_retry", callback)


def test_coroutines_are_refused_since_nobody_would_await_them(tandemq_app: TandemQ) -> None:
    async def listen(attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None: ...

    class Listening:
        async def __call__(self, attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None: ...

    for callback in (listen, Listening()):
        with pytest.raises(TypeError, match="must be a plain function"):
            tandemq_app.add_listener("on_retry", callback)


@pytest.mark.parametrize("callback", [lambda *all: None, lambda a, b, c, d=1: None, print, dict])
def test_whatever_can_take_three_is_taken(callback: Callable[..., Any], tandemq_app: TandemQ) -> None:
    tandemq_app.add_listener("on_retry", callback)


# Telling


def test_every_attempt_and_its_end_are_told(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    heard = told(tandemq_app)

    @tandemq_app.task(name="t", retry=QUICK)
    def task(fails: int) -> None:
        if current_task().attempt <= fails:
            raise OSError("no")

    task.enqueue(1)
    run(tandemq_app, tandemq_clock)
    assert heard == [
        ("before_attempt", "t", 1, 2, None),
        ("on_retry", "t", 1, 2, OSError),
        ("before_attempt", "t", 2, 2, None),
        ("on_success", "t", 2, 2, None),
    ]
    heard.clear()
    task.enqueue(9)
    run(tandemq_app, tandemq_clock, 4)
    assert heard[-4:] == [
        ("on_retry", "t", 2, 2, OSError),
        ("before_attempt", "t", 3, 2, None),
        ("on_failure", "t", 3, 2, OSError),
        ("on_dead_letter", "t", 3, 2, OSError),
    ]


def test_the_exception_is_the_one_that_was_raised(tandemq_app: TandemQ) -> None:
    seen: list[Any] = []
    mine = NonRetryable("mine")
    tandemq_app.add_listener("on_failure", lambda attempt, policy, exc: seen.append(exc))

    @tandemq_app.task(name="t")
    def task() -> None:
        raise mine

    task.enqueue()
    run_until_idle(tandemq_app)
    assert seen == [mine]


@pytest.mark.parametrize(
    ("raised", "events"),
    [
        (NonRetryable("x"), [("on_failure", NonRetryable), ("on_dead_letter", NonRetryable)]),
        (ValidationFailed("x"), [("on_failure", ValidationFailed), ("on_dead_letter", ValidationFailed)]),
        (TaskTimeout("x"), [("on_retry", TaskTimeout)]),
        (SystemExit(1), [("on_retry", SystemExit)]),
        (Retry(5), [("on_retry", Retry)]),
        (Snooze(500), []),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_ends_an_attempt_decides_what_is_told(
    tandemq_app: TandemQ, raised: BaseException, events: list[tuple[str, type]]
) -> None:
    heard = told(tandemq_app)

    @tandemq_app.task(name="t", retry=RetryPolicy(backoff=1000))
    def task() -> None:
        raise raised

    task.enqueue()
    run_until_idle(tandemq_app)
    assert [(event, exc) for event, _, _, _, exc in heard] == [("before_attempt", None), *events]


def test_a_task_that_never_ran_is_a_dead_letter_but_no_failure(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    heard = told(tandemq_app)

    @tandemq_app.task(name="t")
    def task() -> None: ...

    task.using(expires=5).enqueue()
    tandemq_app.enqueue("unknown", {})
    run_until_idle(tandemq_app)
    heard.clear()
    task.using(expires=5).enqueue()
    tandemq_clock.advance(tandemq_app.settings.unknown_task_s + 100)
    run_until_idle(tandemq_app)
    assert sorted(heard) == [("on_dead_letter", "t", 0, 3, None), ("on_dead_letter", "unknown", 0, 3, None)]


def test_a_retry_too_old_for_its_task_is_a_failure_and_no_retry(tandemq_app: TandemQ) -> None:
    heard = told(tandemq_app)

    @tandemq_app.task(name="t", retry=RetryPolicy(backoff=60, jitter=0, max_age=30))
    def task() -> None:
        raise OSError("no")

    handle = task.enqueue()
    run_until_idle(tandemq_app)
    assert [h[0] for h in heard] == ["before_attempt", "on_failure", "on_dead_letter"]
    assert heard[1][-1] is OSError
    assert handle.status == "dead"


def test_the_listeners_of_the_application_hear_of_all_tasks_before_those_of_the_task(
    tandemq_app: TandemQ,
) -> None:
    heard: list[str] = []

    @tandemq_app.task(name="one")
    def one() -> None: ...

    @tandemq_app.task(name="two")
    def two() -> None: ...

    one.using(priority=5).add_listener("on_success", lambda *_: heard.append("one"))  # the same task
    tandemq_app.add_listener("on_success", lambda *_: heard.append("app"))
    one.enqueue()
    run_until_idle(tandemq_app)
    two.enqueue()
    run_until_idle(tandemq_app)
    assert heard == ["app", "one", "app"]


def test_the_policy_is_that_of_the_row(tandemq_app: TandemQ) -> None:
    seen: list[RetryPolicy] = []
    tandemq_app.add_listener("before_attempt", lambda attempt, policy, exc: seen.append(policy))

    @tandemq_app.task(name="t", retry=RetryPolicy(max_retries=9, backoff=3, give_up_on=(KeyError,)))
    def task() -> None: ...

    task.using(max_retries=4, backoff=[7]).enqueue()
    run_until_idle(tandemq_app)
    assert seen[0].max_retries == 4
    assert seen[0].delay(1) == pytest.approx(7, rel=0.21)
    assert seen[0].give_up_on == (KeyError,)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_raises_changes_nothing_and_is_logged_now_and_then(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    def broken(attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
        raise error("mine")

    for event in EVENTS:
        tandemq_app.add_listener(event, broken)
    heard = told(tandemq_app)  # behind the broken ones

    @tandemq_app.task(name="t", retry=QUICK)
    def task(n: int) -> int:
        if n == 2 or (n == 1 and current_task().attempt == 1):
            raise OSError("no")
        return n

    handles = [task.enqueue(n) for n in (0, 0, 0, 1, 2)]
    run(tandemq_app, tandemq_clock, 4)
    assert [h.status for h in handles] == ["succeeded"] * 4 + ["dead"]
    assert {h[0] for h in heard} == set(EVENTS)
    for event in EVENTS:
        said = [r for r in caplog.records if r.name == "tandemq.listeners" and f"broken of {event} raised" in r.message]
        assert said[0].exc_info is not None
        assert type(said[0].exc_info[1]) is error
    caplog.clear()
    for _ in range(20):
        task.enqueue(0)
    run_until_idle(tandemq_app)
    assert sum("broken of on_success raised" in r.message for r in caplog.records) == 1


def test_a_handler_class_hears_of_its_death_in_tests_too(tandemq_app: TandemQ) -> None:
    died: list[Any] = []

    @tandemq_app.task
    class Order(TaskHandler):
        name = "order"

        def process(self, payload: dict[str, Any]) -> None:
            raise NonRetryable("no stock")

        def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Any) -> None:
            died.append((task_id, payload, error.message))

    handle = tandemq_app.enqueue("order", {"n": 1})
    run_until_idle(tandemq_app)
    assert died == [(handle.id, {"n": 1}, "no stock")]


def test_who_has_no_listener_pays_for_one_look_at_an_attribute() -> None:
    """Nothing else of listeners is touched: their lists are put out of reach, and tasks run all the same."""
    program = """
from tandemq import RetryPolicy, TandemQ
from tandemq.core.listening import Listeners
from tandemq.testing import FakeClock, run_until_idle
from tandemq.worker.executor import Executor
clock = FakeClock()
app = TandemQ(clock=clock)
@app.task(name="t")
def t() -> int: return 1
def reached(self, *a): raise AssertionError("reached")
assert not Listeners.anybody
Executor.telling = property(reached, lambda self, value: None)
from tandemq.core import ids
from tandemq.core.task import Lease
executor = Executor(app.registry, clock=clock, rng=ids.new_random(), max_result_bytes=9, transaction=None)
print(executor.run(Lease(1, "default", 0, "t", "{}", "", 1, 3, 0, 1, 99), lambda: False, None))
app.add_listener("on_success", print)
assert Listeners.anybody
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Returned(result='1'" in done.stdout, done.stderr


def test_a_snooze_is_no_retry_without_a_queue_either() -> None:
    heard: list[str] = []
    executor = RetryExecutor(RetryPolicy(backoff=0), clock=FakeClock())
    for event in ("before_attempt", "on_retry", "on_success"):
        executor.add_listener(event, lambda *_, event=event: heard.append(event))
    raised = [OSError("no"), Snooze(5)]

    def fn() -> None:
        if raised:
            raise raised.pop()

    executor.execute(fn)
    assert heard == ["before_attempt", "before_attempt", "on_retry", "before_attempt", "on_success"]


def test_listeners_that_are_too_slow_miss_events_instead_of_filling_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = object.__new__(Child)
    child._hooks, child._say = SimpleQueue(), Throttle(logging.getLogger("tandemq.worker"), FakeClock())
    for _ in range(MAX_HOOKS + 50):
        child._tell(lambda: None)
    assert child._hooks.qsize() == MAX_HOOKS
    assert caplog.messages == ["the listeners are too slow, they are not told of everything"]
