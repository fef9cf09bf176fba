"""What a worker knows how to run: task names and the functions or handler classes behind them.

A name is what a row carries, so it must be the same in the process that enqueues and in the one that runs, also when
the producer is the ``__main__`` module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tandemq.core import codec, values
from tandemq.core.errors import (
    ConfigurationError,
    InvalidTask,
    InvalidType,
    Retry,
    Retryable,
    Snooze,
    TaskTimeout,
    ValidationFailed,
)
from tandemq.core.failure import describe
from tandemq.core.lifecycle import Failure
from tandemq.core.listening import Listeners
from tandemq.core.retry import RetryPolicy
from tandemq.core.task import DEFAULT_QUEUE, DEFAULT_TIMEOUT_S, UNSET, Unset
from tandemq.core.values import Priority, Seconds
from tandemq.handler import (
    CurrentTask,
    TaskHandler,
    current_task,
    default_name,
    place_of,
    reset_current,
    set_current,
)
from tandemq.signature import TX, Shape, takes_transaction, types_of
from tandemq.typed import Misfit, Types

__all__ = [
    "CurrentTask",
    "RegisteredTask",
    "Registry",
    "TaskHandler",
    "TaskOptions",
    "current_task",
    "default_name",
    "reset_current",
    "set_current",
]

#: Raised by ``validate`` these steer the attempt as they would in the handler; anything else refuses the payload.
_STEERING = (Retry, Retryable, Snooze, TaskTimeout, ValidationFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a registration may set; UNSET leaves it to the handler class, then to the default."""

    name: str | None = None
    queue: str | Unset = UNSET
    priority: Priority | Unset = UNSET
    max_retries: int | Unset | None = UNSET
    retry: RetryPolicy | Unset | None = UNSET
    timeout: Seconds | Unset | None = UNSET
    typed: bool | Unset = UNSET

    def pick(self, option: str, handler: TaskHandler | None, default: Any) -> Any:
        """The value that counts: given here, else the handler class's, else ``default``."""
        given = getattr(self, option)
        return getattr(handler, option, default) if given is UNSET else given


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTask:
    """A name and what runs under it, with its options already checked. Build with ``RegisteredTask.of``."""

    name: str
    fn: Callable[..., Any]
    handler: TaskHandler | None
    is_async: bool
    queue: str
    priority: int
    policy: RetryPolicy
    max_retries: int | None
    timeout_s: float | None
    shape: Shape | None
    takes_tx: bool = False
    typed: bool = True
    types: Types | None = None
    listeners: Listeners = field(default_factory=Listeners, compare=False)

    @classmethod
    def of(cls, target: Any, options: TaskOptions, *, typed: bool = True) -> RegisteredTask:
        """From a function, a TaskHandler subclass or an instance of one; refuses what could never run."""
        if isinstance(target, type) and issubclass(target, TaskHandler):
            target = target()
        handler = target if isinstance(target, TaskHandler) else None
        fn = target if handler is None else handler.process
        name = options.name or (handler.name if handler else "") or default_name(target)
        try:
            values.task_type(name, "task name")
        except InvalidTask as bad:
            raise ConfigurationError(f"{bad}; give one with name=") from None
        _check_callable(fn, handler, name)
        policy = options.pick("retry", handler, None) or RetryPolicy()
        retries = options.pick("max_retries", handler, None)
        shape = None if handler else Shape.of(fn, name)
        typed = options.pick("typed", handler, typed)
        return cls(
            name=name,
            fn=fn,
            handler=handler,
            is_async=_is_async(fn),
            queue=values.queue_name(options.pick("queue", handler, DEFAULT_QUEUE)),
            priority=values.priority(options.pick("priority", handler, 0)),
            policy=policy,
            max_retries=policy.max_retries if retries is None else values.max_retries(retries),
            timeout_s=values.timeout(options.pick("timeout", handler, DEFAULT_TIMEOUT_S)),
            shape=shape,
            takes_tx=takes_transaction(fn),
            typed=typed,
            types=types_of(fn, name, shape) if typed else None,
        )

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The payload for a call with these arguments, by name, defaults left out. TypeError if they do not fit."""
        if self.takes_tx and TX in kwargs:
            raise TypeError(f"tx of {self.name} is the worker's to give, not an enqueue's")
        if self.shape is not None:
            return self.shape.bind(args, kwargs)
        if len(args) != 1 or kwargs or not isinstance(args[0], dict):
            raise TypeError(f"{self.name} is a handler class: enqueue it with one dict, its payload")
        return dict(args[0])

    def lower(self, payload: Any, encoder: codec.Encoder | None) -> Any:
        """The payload with what JSON lacks as texts and objects, where an annotation will make it again."""
        return payload if self.types is None or type(payload) is not dict else self.types.lower(payload, encoder)

    def check(self, plain: dict[str, Any]) -> None:
        """At the enqueue: raise InvalidTask for a payload that ``validate`` would refuse, but for a class's hook."""
        if self.typed:
            try:
                self._lift(plain)
            except Misfit as bad:
                kind = InvalidType if ", got " in str(bad) else InvalidTask
                raise kind(f"{bad} ({self.name})", field=bad.field) from None

    def validate(self, payload: Any) -> Any:
        """What ``call`` is to be given: the payload, with what the annotations name. ValidationFailed (final) if it
        does not fit the signature, or is refused by the handler class.
        """
        if not isinstance(payload, dict):
            raise ValidationFailed(f"the payload must be a JSON object, not {type(payload).__name__}")
        if self.takes_tx and self.shape is not None and TX in payload:
            raise ValidationFailed(f"the payload of {self.name} holds 'tx', which is the worker's to give")
        try:
            lifted = self._lift(payload)
        except Misfit as bad:
            raise ValidationFailed(str(bad)) from None
        if self.handler is not None:
            _ask(self.handler, payload)
        return lifted

    def _lift(self, payload: dict[str, Any]) -> Any:
        if self.shape is not None and not self.shape.fits(payload):
            try:
                self.shape.signature.bind(**payload)
            except TypeError as bad:
                raise Misfit(f"does not fit {self.name}{self.shape.signature}: {bad}", "payload") from None
        return payload if self.types is None else self.types.lift(payload)

    def call(self, payload: Any, tx: Any = None) -> Any:
        """Run the handler with what ``validate`` gave; a coroutine to be awaited when ``is_async``."""
        given = {TX: tx} if self.takes_tx else {}
        return self.fn(payload, **given) if self.handler is not None else self.fn(**payload, **given)

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Failure) -> None:
        """Tell the handler class that its task is dead; functions have no such hook."""
        if self.handler is not None:
            self.handler.on_dead_letter(task_id, payload, error)


class Registry:
    """The registered tasks by name. Filled at import time, read by any thread afterwards."""

    def __init__(self) -> None:
        self._tasks: dict[str, RegisteredTask] = {}
        #: Those of the application, who hear of every task.
        self.listeners = Listeners()

    def add(self, task: RegisteredTask) -> RegisteredTask:
        """Register; the same function again (a reloaded module) replaces, another one under the name is refused."""
        known = self._tasks.get(task.name)
        if known is not None and _origin(known) != _origin(task):
            taken, other = ".".join(_origin(known)), ".".join(_origin(task))
            raise ConfigurationError(f"the task name {task.name!r} is taken by {taken}; give {other} another name=")
        self._tasks[task.name] = task
        return task

    def get(self, name: str) -> RegisteredTask | None:
        """The task of this name, or None."""
        return self._tasks.get(name)

    def names(self) -> frozenset[str]:
        """All names: the types this process can run."""
        return frozenset(self._tasks)

    def queues(self) -> set[str]:
        """The queues the registered tasks go to by default."""
        return {task.queue for task in self._tasks.values()}

    def __iter__(self) -> Iterator[RegisteredTask]:
        return iter(list(self._tasks.values()))

    def __len__(self) -> int:
        return len(self._tasks)


def _origin(task: RegisteredTask) -> tuple[str, str]:
    module, qualname = place_of(task.fn if task.handler is None else task.handler)
    return module, qualname or repr(task.fn)


def _is_async(fn: Callable[..., Any]) -> bool:
    # The second test is for an object with an ``async def __call__``.
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _check_callable(fn: Any, handler: TaskHandler | None, name: str) -> None:
    if not callable(fn) or isinstance(fn, type):
        raise ConfigurationError(f"task {name!r} must be a function or a TaskHandler subclass, not {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"task {name!r} is a generator function: calling it would run nothing")
    if _is_async(fn) and takes_transaction(fn):
        raise ConfigurationError(
            f"task {name!r} is async and takes tx: its SQL would hold up the event loop, so make it a plain def"
        )
    for hook in ("validate", "on_dead_letter") if handler is not None else ():
        if inspect.iscoroutinefunction(getattr(handler, hook)):
            raise ConfigurationError(f"{hook} of task {name!r} must be a plain def; only process may be async")


def _ask(handler: TaskHandler, payload: dict[str, Any]) -> None:
    try:
        answer = handler.validate(payload)
    except _STEERING:
        raise
    except Exception as refused:
        raise ValidationFailed(_sentence(refused)) from refused
    if answer is False:
        raise ValidationFailed("validate refused the payload" if payload else "validate refused the empty payload")


def _sentence(refused: Exception) -> str:
    told = describe(refused)
    return f"validate raised {told.error_type}: {told.message}"
