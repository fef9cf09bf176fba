"""What the author of a handler sees: the task that is running, and the base class for tasks written as a class."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from tandemq.core.errors import ConfigurationError, TandemQError
from tandemq.core.lifecycle import Failure
from tandemq.core.retry import RetryPolicy
from tandemq.core.task import DEFAULT_QUEUE, DEFAULT_TIMEOUT_S
from tandemq.core.values import Priority, Seconds

_log = logging.getLogger("tandemq.task")
_MAIN = ("__main__", "__mp_main__")


class _TaskLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the task's id, type, queue and attempt to every record (as ``extra`` and in the text)."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        about = dict(self.extra or {})
        kwargs["extra"] = {**about, **(kwargs.get("extra") or {})}
        return f"[{about['task_type']} {about['task_id']} attempt {about['attempt']}] {msg}", kwargs


class _InTransaction:
    """The default of a parameter ``tx``: a call outside a worker has to pass a connection of its own."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"tx.{name}: the worker gives tx; a call of your own must pass tx=connection")

    def __repr__(self) -> str:
        return "IN_TRANSACTION"


#: ``def pay(order_id: int, tx: Connection = IN_TRANSACTION)``: run in a transaction that also records the success.
IN_TRANSACTION: Any = _InTransaction()


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The attempt that is running here. ``id`` is 0 where a task is called inline, without a queue.

    ``fence`` rises with every claim of the task: send it along with effects outside MySQL and let the receiver refuse
    a lower one. ``deadline`` (aware UTC) is where the time limit ends the attempt, None without a limit.
    """

    id: int
    queue: str
    task_type: str
    attempt: int
    max_retries: int
    fence: int = 0
    lease_token: int = 0
    deadline: datetime | None = None
    is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)

    @property
    def cancelled(self) -> bool:
        """Someone asked to cancel this task, or its lease is lost: stop early, the result will not count."""
        return self.is_cancelled()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the task in every record."""
        about = {"task_id": self.id, "task_type": self.task_type, "queue": self.queue, "attempt": self.attempt}
        return _TaskLogger(_log, about)


#: A function makes it when it is first asked for: most handlers never do.
_current: ContextVar[CurrentTask | Callable[[], CurrentTask] | None] = ContextVar("tandemq_current_task", default=None)


def current_task() -> CurrentTask:
    """The task whose handler is running in this thread or coroutine. Raises TandemQError outside of one."""
    task = _current.get()
    if isinstance(task, CurrentTask):
        return task
    if task is None:
        raise TandemQError("current_task() was called where no task is running")
    made = task()
    _current.set(made)
    return made


def running_task() -> CurrentTask | None:
    """As ``current_task``, but None where none is running."""
    return current_task() if _current.get() is not None else None


def set_current(
    task: CurrentTask | Callable[[], CurrentTask] | None,
) -> Token[CurrentTask | Callable[[], CurrentTask] | None]:
    """Make ``task`` the current one in this context; give the token to ``reset_current`` afterwards."""
    return _current.set(task)


def reset_current(token: Token[CurrentTask | Callable[[], CurrentTask] | None]) -> None:
    """Undo ``set_current``."""
    _current.reset(token)


class TaskHandler(ABC):
    """A task as a class: override ``process``, and ``validate`` or ``on_dead_letter`` where needed.

    One instance serves all attempts, from several threads at once when the worker has several slots. Options are
    class attributes; arguments of the decorator win over them.
    """

    name: ClassVar[str] = ""
    queue: ClassVar[str] = DEFAULT_QUEUE
    priority: ClassVar[Priority] = 0
    max_retries: ClassVar[int | None] = None
    retry: ClassVar[RetryPolicy | None] = None
    timeout: ClassVar[Seconds | None] = DEFAULT_TIMEOUT_S

    def validate(self, payload: dict[str, Any]) -> bool | None:
        """Refuse a payload by returning False or raising: the task is dead at once (``validation``), never retried.

        By default an empty payload is refused.
        """
        return bool(payload)

    @abstractmethod
    def process(self, payload: dict[str, Any]) -> Any:
        """Do the work; may be ``async def``. What it returns must be JSON and is kept as the result."""

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Failure) -> None:
        """Called once after the task was recorded as dead; best effort: not called if the process dies right then."""
        _log.error("task %s is dead: %s: %s", task_id, error.error_type, error.message)


def default_name(target: Any) -> str:
    """``module.qualname``; a ``__main__`` module counts under the name by which a worker imports the same file."""
    module, qualname = place_of(target)
    if not qualname or "<lambda>" in qualname:
        raise ConfigurationError(f"{target!r} has no name of its own; give one with name=")
    return f"{module}.{qualname.replace('<locals>.', '')}"


def place_of(target: Any) -> tuple[str, str]:
    """Module and qualified name of a handler, as a worker would import it."""
    named = type(target) if isinstance(target, TaskHandler) else target
    module = getattr(named, "__module__", "")
    return (_main_name() if module in _MAIN else module), getattr(named, "__qualname__", "")


def _main_name() -> str:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    path = getattr(main, "__file__", None)
    if path is None:
        return "__main__"
    parts, folder = [Path(path).stem], Path(path).absolute().parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)
