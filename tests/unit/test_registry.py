"""Names, signatures, options and handler classes."""

from __future__ import annotations

import functools
import logging
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tandemq.core.errors import (
    ConfigurationError,
    InvalidTask,
    NonRetryable,
    Retry,
    Snooze,
    TandemQError,
    TaskTimeout,
    ValidationFailed,
)
from tandemq.core.failure import failure
from tandemq.core.retry import RetryPolicy
from tandemq.registry import (
    CurrentTask,
    RegisteredTask,
    Registry,
    TaskHandler,
    TaskOptions,
    current_task,
    default_name,
    reset_current,
    set_current,
)


def plain(order_id: int, action: str = "create", **extra: Any) -> tuple[Any, ...]:
    return order_id, action, extra


async def coroutine(order_id: int) -> int:
    return order_id


class Orders(TaskHandler):
    name = "order.process"
    queue = "orders"
    priority = "high"
    retry = RetryPolicy(max_retries=7)
    timeout = 60

    def process(self, payload: dict[str, Any]) -> Any:
        return payload["order_id"]


def of(target: Any, **options: Any) -> RegisteredTask:
    return RegisteredTask.of(target, TaskOptions(**options))


# Names


def test_a_function_is_named_after_its_module_and_qualname() -> None:
    def inner() -> None: ...

    assert default_name(plain) == f"{__name__}.plain"
    assert default_name(inner).endswith(".test_a_function_is_named_after_its_module_and_qualname.inner")
    assert of(Orders).name == "order.process"


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_a_script_names_its_tasks_as_a_worker_would_import_it(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process_order() -> None: ...

    process_order.__module__, process_order.__qualname__ = module, "process_order"
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    main.__spec__, main.__file__ = None, str(tmp_path / "shop.py")
    assert default_name(process_order) == "shop.process_order"
    main.__file__ = str(package / "tasks.py")
    assert default_name(process_order) == "inner.tasks.process_order"
    main.__spec__ = SimpleNamespace(name="shop.tasks")  # type: ignore[assignment]
    assert default_name(process_order) == "shop.tasks.process_order"
    main.__spec__ = SimpleNamespace(name="shop.__main__")  # type: ignore[assignment]
    assert default_name(process_order) == "shop.process_order"
    main.__spec__ = None
    del main.__file__
    assert default_name(process_order) == "__main__.process_order"


def test_what_has_no_name_needs_one() -> None:
    for target in (lambda: None, functools.partial(plain, 1)):
        with pytest.raises(ConfigurationError, match="name="):
            of(target)
        assert of(target, name="given").name == "given"


@pytest.mark.parametrize("name", ["a b", "x" * 101, "é"])
def test_a_name_that_a_row_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name="):
        of(plain, name=name)


def test_the_registry_refuses_two_tasks_of_one_name_but_takes_a_reloaded_one() -> None:
    registry = Registry()
    first = registry.add(of(plain, name="a", queue="q1"))
    again = registry.add(of(plain, name="a", queue="q2"))

    with pytest.raises(ConfigurationError, match=r"'a' is taken by .*\.plain; give .*\.coroutine another name="):
        registry.add(of(coroutine, name="a"))

    assert first is not again
    assert registry.get("a") is again
    assert registry.get("b") is None
    assert registry.names() == {"a"}
    assert registry.queues() == {"q2"}
    assert [task.name for task in registry] == ["a"]
    assert len(registry) == 1


# Signatures


def test_arguments_are_bound_by_name_and_defaults_are_left_out() -> None:
    task = of(plain)

    assert task.bind(1) == {"order_id": 1}
    assert task.bind(1, "update") == {"order_id": 1, "action": "update"}
    assert task.bind(order_id=1, note="x") == {"order_id": 1, "note": "x"}
    assert task.bind(order_id=1, extra="x") == {"order_id": 1, "extra": "x"}


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"order_id": 2})])
def test_arguments_that_do_not_fit_are_a_type_error(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        of(plain).bind(*args, **kwargs)


def _positional_only(order_id: int, /) -> None: ...
def _starred(*orders: int) -> None: ...
def _generator() -> Any:
    yield 1


async def _async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("target", "part"),
    [
        (_positional_only, "positional-only order_id"),
        (_starred, r"\*orders"),
        (_generator, "generator"),
        (_async_generator, "generator"),
        (7, "must be a function"),
        (dict, "must be a function"),
    ],
)
def test_what_could_never_run_is_refused_at_registration(target: Any, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        of(target, name="given")


def test_a_payload_is_checked_before_the_call_and_passed_by_name() -> None:
    task = of(plain)

    task.validate({"order_id": 1, "more": 2})
    assert task.call({"order_id": 1, "more": 2}) == (1, "create", {"more": 2})


@pytest.mark.parametrize("payload", [{}, {"order_id": 1, "x": 2}, [], None, "x", 1])
def test_a_payload_that_does_not_fit_the_signature_is_invalid(payload: Any) -> None:
    with pytest.raises(ValidationFailed):
        of(coroutine).validate(payload)


def test_the_refusal_names_the_argument() -> None:
    with pytest.raises(
        ValidationFailed, match=r"does not fit .*coroutine\(order_id.*missing a required argument: 'order_id'"
    ):
        of(coroutine).validate({})


def test_a_function_without_arguments_takes_an_empty_payload() -> None:
    of(lambda: 1, name="a").validate({})


class _AsyncObject:
    async def __call__(self, n: int) -> int:
        return n


def test_async_handlers_are_noticed() -> None:
    class AsyncOrders(TaskHandler):
        async def process(self, payload: dict[str, Any]) -> Any: ...

    assert of(coroutine).is_async
    assert of(functools.partial(coroutine, 1), name="a").is_async
    assert of(_AsyncObject(), name="a").is_async
    assert of(AsyncOrders).is_async
    assert not of(plain).is_async
    assert not of(Orders).is_async


# Options


def test_the_options_of_a_function() -> None:
    task = of(plain, queue="q", priority="critical", max_retries=0, timeout=timedelta(seconds=1.5))

    assert (task.queue, task.priority, task.max_retries, task.timeout_s) == ("q", 30, 0, 1.5)
    assert (of(plain).queue, of(plain).priority, of(plain).max_retries, of(plain).timeout_s) == (
        "default",
        0,
        None,
        1800,
    )
    assert of(plain, timeout=None).timeout_s is None


def test_max_retries_of_the_task_wins_over_its_policy() -> None:
    policy = RetryPolicy(max_retries=5, backoff=1)

    assert of(plain, retry=policy).max_retries == 5
    assert of(plain, retry=policy, max_retries=2).max_retries == 2
    assert of(plain, retry=policy).policy is policy


def test_the_options_of_a_handler_class_and_what_the_decorator_says_over_them() -> None:
    task = of(Orders)
    other = of(Orders, name="other", queue="q", priority=5, max_retries=1, timeout=None)

    assert (task.queue, task.priority, task.max_retries, task.timeout_s) == ("orders", 20, 7, 60)
    assert (other.name, other.queue, other.priority, other.max_retries, other.timeout_s) == ("other", "q", 5, 1, None)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": True},
        {"timeout": "30"},
        {"priority": "urgent"},
        {"priority": 1.5},
        {"queue": "a b"},
        {"queue": None},
        {"max_retries": -1},
        {"max_retries": True},
        {"max_retries": "3"},
    ],
)
def test_odd_options_are_refused_at_registration(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask, match=next(iter(options))):
        of(plain, **options)


# Handler classes


def test_a_handler_class_gets_the_whole_payload() -> None:
    task = of(Orders)

    assert task.bind({"order_id": 3}) == {"order_id": 3}
    assert task.call({"order_id": 3}) == 3
    for args, kwargs in ((), {}), ((1,), {}), (({}, {}), {}), ((), {"order_id": 3}):
        with pytest.raises(TypeError, match="one dict"):
            task.bind(*args, **kwargs)


def test_by_default_an_empty_payload_is_refused() -> None:
    of(Orders).validate({"order_id": 1})
    with pytest.raises(ValidationFailed, match="empty"):
        of(Orders).validate({})


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def handler_that(answer: Any) -> RegisteredTask:
    class Handler(TaskHandler):
        def validate(self, payload: dict[str, Any]) -> bool | None:
            if isinstance(answer, BaseException):
                raise answer
            return answer  # type: ignore[no-any-return]

        def process(self, payload: dict[str, Any]) -> Any: ...

    return of(Handler)


@pytest.mark.parametrize(
    "answer",
    [False, ValueError("no"), NonRetryable("no"), ValidationFailed("no"), KeyError(), _Unprintable()],
    ids=lambda v: type(v).__name__,
)
def test_returning_false_or_raising_refuses_the_payload(answer: Any) -> None:
    with pytest.raises(ValidationFailed):
        handler_that(answer).validate({"a": 1})


@pytest.mark.parametrize("answer", [None, True])
def test_returning_nothing_or_true_accepts_it(answer: Any) -> None:
    handler_that(answer).validate({})


@pytest.mark.parametrize("steer", [Retry(5), Snooze(5), TaskTimeout(), SystemExit(1)], ids=lambda v: type(v).__name__)
def test_what_steers_an_attempt_passes_through_validate(steer: BaseException) -> None:
    with pytest.raises(type(steer)):
        handler_that(steer).validate({"a": 1})


def test_a_handler_may_be_an_instance_with_parts_of_its_own() -> None:
    class Mailer(TaskHandler):
        name = "email.send"

        def __init__(self, server: str) -> None:
            self.server = server

        def process(self, payload: dict[str, Any]) -> Any:
            return f"{payload['to']} via {self.server}"

    assert of(Mailer("mx")).call({"to": "a"}) == "a via mx"


def test_async_hooks_would_never_be_awaited_and_are_refused() -> None:
    class Handler(TaskHandler):
        async def validate(self, payload: dict[str, Any]) -> bool | None:  # type: ignore[override]
            return True

        def process(self, payload: dict[str, Any]) -> Any: ...

    with pytest.raises(ConfigurationError, match="validate of task"):
        of(Handler)


def test_on_dead_letter_is_logged_unless_overridden(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    class Tells(Orders):
        def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Any) -> None:
            told.append((task_id, payload, error.message))

    with caplog.at_level(logging.ERROR, "tandemq.task"):
        of(Orders).on_dead_letter(1, {"order_id": 1}, failure("OSError", "gone"))
    of(Tells).on_dead_letter(2, {"order_id": 2}, failure("OSError", "gone"))
    of(plain).on_dead_letter(3, {}, failure("OSError", "gone"))

    assert "task 1 is dead: OSError: gone" in caplog.text
    assert told == [(2, {"order_id": 2}, "gone")]


def test_a_handler_without_process_cannot_be_registered() -> None:
    class Idle(TaskHandler): ...

    with pytest.raises(TypeError, match="process"):
        of(Idle)


# current_task


def test_there_is_no_current_task_outside_a_handler() -> None:
    with pytest.raises(TandemQError, match="no task is running"):
        current_task()


def test_current_task_knows_its_cancel_request_and_logs_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    asked = [False]
    token = set_current(CurrentTask(7, "q", "order.process", 2, 3, fence=9, is_cancelled=lambda: asked[0]))
    try:
        task = current_task()
        assert (task.id, task.queue, task.attempt, task.fence, task.cancelled) == (7, "q", 2, 9, False)
        asked[0] = True
        assert task.cancelled
        with caplog.at_level(logging.INFO, "tandemq.task"):
            task.log.info("packed %d", 3, extra={"box": 1})
    finally:
        reset_current(token)

    (record,) = caplog.records
    assert record.getMessage() == "[order.process 7 attempt 2] packed 3"
    assert (record.task_id, record.queue, record.attempt, record.box) == (7, "q", 2, 1)  # type: ignore[attr-defined]
