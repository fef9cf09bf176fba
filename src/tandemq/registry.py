"""What a worker knows how to run: task names and the functions or handler classes behind them.

A name is what a row carries, so it must be the same in the process that enqueues and in the one that runs, also when
the producer is the ``__main__`` module.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tandemq.core import values
from tandemq.core.errors import (
    ConfigurationError,
    InvalidTask,
    Retry,
    Retryable,
    Snooze,
    TaskTimeout,
    ValidationFailed,
)
from tandemq.core.failure import describe
from tandemq.core.lifecycle import Failure
from tandemq.core.retry import RetryPolicy
from tandemq.core.task import DEFAULT_QUEUE, DEFAULT_TIMEOUT_S, UNSET, Unset
from tandemq.core.values import Priority, Seconds
from tandemq.handler import (
    IN_TRANSACTION,
    CurrentTask,
    TaskHandler,
    current_task,
    default_name,
    place_of,
    reset_current,
    set_current,
)

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

#: The parameter that gets the transaction in which the success is recorded.
_TX = "tx"
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

    def pick(self, option: str, handler: TaskHandler | None, default: Any) -> Any:
        """The value that counts: given here, else the handler class's, else ``default``."""
        given = getattr(self, option)
        return getattr(handler, option, default) if given is UNSET else given


@dataclass(frozen=True, slots=True)
class _Shape:
    """A signature reduced to what binding JSON by name needs; compared with sets, since every run checks it."""

    signature: inspect.Signature
    required: frozenset[str]
    allowed: frozenset[str] | None
    extra: str | None

    @classmethod
    def of(cls, fn: Callable[..., Any], name: str) -> _Shape:
        signature = _signature(fn)
        if _transaction_parameter(signature):
            # The worker gives it: to an enqueue it does not exist.
            signature = signature.replace(parameters=[p for n, p in signature.parameters.items() if n != _TX])
        required, allowed, extra = set(), set(), None
        for p in signature.parameters.values():
            if p.kind in {p.POSITIONAL_ONLY, p.VAR_POSITIONAL}:
                star = "*" if p.kind is p.VAR_POSITIONAL else "positional-only "
                raise ConfigurationError(
                    f"task {name!r} has the parameter {star}{p.name}; arguments travel in a JSON object, by name"
                )
            if p.kind is p.VAR_KEYWORD:
                extra = p.name
                continue
            allowed.add(p.name)
            if p.default is p.empty:
                required.add(p.name)
        return cls(signature, frozenset(required), None if extra else frozenset(allowed), extra)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not args and self.fits(kwargs):
            return kwargs  # all by name: what binding would answer, for a twentieth of its time
        arguments = self.signature.bind(*args, **kwargs).arguments
        if self.extra is not None:
            arguments.update(arguments.pop(self.extra, {}))
        return dict(arguments)

    def fits(self, payload: Mapping[str, Any]) -> bool:
        keys = payload.keys()
        return self.required <= keys and (self.allowed is None or keys <= self.allowed)


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
    shape: _Shape | None
    takes_tx: bool = False

    @classmethod
    def of(cls, target: Any, options: TaskOptions) -> RegisteredTask:
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
            shape=None if handler else _Shape.of(fn, name),
            takes_tx=_transaction_parameter(_signature(fn)),
        )

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The payload for a call with these arguments, by name, defaults left out. TypeError if they do not fit."""
        if self.takes_tx and _TX in kwargs:
            raise TypeError(f"tx of {self.name} is the worker's to give, not an enqueue's")
        if self.shape is not None:
            return self.shape.bind(args, kwargs)
        if len(args) != 1 or kwargs or not isinstance(args[0], dict):
            raise TypeError(f"{self.name} is a handler class: enqueue it with one dict, its payload")
        return dict(args[0])

    def validate(self, payload: Any) -> None:
        """Raise ValidationFailed (final) unless the handler takes this payload."""
        if not isinstance(payload, dict):
            raise ValidationFailed(f"the payload must be a JSON object, not {type(payload).__name__}")
        if self.takes_tx and self.shape is not None and _TX in payload:
            raise ValidationFailed(f"the payload of {self.name} holds 'tx', which is the worker's to give")
        if self.handler is not None:
            _ask(self.handler, payload)
        elif self.shape is not None and not self.shape.fits(payload):
            try:
                self.shape.signature.bind(**payload)
            except TypeError as bad:
                raise ValidationFailed(f"the payload does not fit {self.name}{self.shape.signature}: {bad}") from None

    def call(self, payload: dict[str, Any], tx: Any = None) -> Any:
        """Run the handler with a validated payload; a coroutine to be awaited when ``is_async``."""
        given = {_TX: tx} if self.takes_tx else {}
        return self.fn(payload, **given) if self.handler is not None else self.fn(**payload, **given)

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Failure) -> None:
        """Tell the handler class that its task is dead; functions have no such hook."""
        if self.handler is not None:
            self.handler.on_dead_letter(task_id, payload, error)


class Registry:
    """The registered tasks by name. Filled at import time, read by any thread afterwards."""

    def __init__(self) -> None:
        self._tasks: dict[str, RegisteredTask] = {}

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


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations are evaluated late there, and may name what only type checkers import
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def _transaction_parameter(signature: inspect.Signature) -> bool:
    """Whether there is a ``tx`` that is the transaction; annotated as something else it is payload."""
    parameter = signature.parameters.get(_TX)
    if parameter is None or parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        return False
    if parameter.default is IN_TRANSACTION or parameter.annotation is parameter.empty:
        return True
    said = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
    text = said if isinstance(said, str) else inspect.formatannotation(said)
    return re.search(r"\bConnection\b", text) is not None or text.rpartition(".")[2] == "Any"


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
    if _is_async(fn) and _transaction_parameter(_signature(fn)):
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
