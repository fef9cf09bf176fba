"""What ``@app.task`` makes of a function: still callable, and able to enqueue itself with checked arguments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

from tandemq.core.listening import Listener
from tandemq.core.retry import Backoff, RetryPolicy
from tandemq.core.task import NewTask, Unset
from tandemq.core.values import Priority, Seconds
from tandemq.handle import Handle
from tandemq.producer import Producer
from tandemq.registry import CurrentTask, RegisteredTask, TaskHandler, reset_current, set_current
from tandemq.store.protocol import Transaction

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=type[TaskHandler])


class EnqueueOptions(TypedDict, total=False):
    """What an enqueue may set; the fields of NewTask, and ``connection``: the caller's own SQLAlchemy one."""

    queue: str
    priority: Priority
    delay: Seconds
    run_at: datetime
    expires: Seconds | datetime
    max_retries: int
    idempotency_key: str
    timeout: float | Unset | None
    backoff: Backoff | list[float] | tuple[float, ...] | float
    retry: RetryPolicy
    connection: Transaction


def new_task(task_type: str, payload: Mapping[str, Any], options: EnqueueOptions) -> tuple[NewTask, Transaction | None]:
    """The options sorted into the task and the connection it goes over. TypeError for an unknown option."""
    given: dict[str, Any] = dict(options)
    connection = given.pop("connection", None)
    return NewTask(task_type, payload, **given), connection


class _Enqueuing(Generic[P, R]):
    """The enqueueing half, the same for ``def`` and ``async def``."""

    def __init__(self, registered: RegisteredTask, producer: Producer, options: EnqueueOptions | None = None) -> None:
        self.registered, self._producer, self._options = registered, producer, options or EnqueueOptions()
        self.__doc__ = registered.fn.__doc__
        self.__wrapped__ = registered.fn

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{f' using {dict(self._options)}' if self._options else ''}>"

    @property
    def name(self) -> str:
        """The task type, as stored in rows."""
        return self.registered.name

    def add_listener(self, event: str, callback: Listener) -> None:
        """Call ``callback(attempt, policy, exc)`` at this event of this task; see ``TandemQ.add_listener``."""
        self.registered.listeners.add(event, callback)

    def using(self, **options: Unpack[EnqueueOptions]) -> Self:
        """The same task with these options for its enqueues; the task itself is unchanged."""
        merged = cast("EnqueueOptions", {**self._options, **options})
        new_task(self.name, {}, merged)
        return type(self)(self.registered, self._producer, merged)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task that ``enqueue`` would store, for ``app.enqueue_many``. TypeError if the arguments do not fit."""
        if "connection" in self._options:
            raise TypeError("give the connection to enqueue_many itself")
        return self._new(*args, **kwargs)[0]

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store the call as a task and push it; committed when this returns (with ``connection``: by the caller).

        TypeError if the arguments do not fit the signature, InvalidTask if they are not JSON: nothing stored then.
        """
        new, connection = self._new(*args, **kwargs)
        return self._producer.enqueue(new, connection=connection)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """``enqueue`` without blocking the event loop; ``connection`` may then be an AsyncSession."""
        new, connection = self._new(*args, **kwargs)
        return (await self._producer.aenqueue_many([new], connection=connection))[0]

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Another name for ``enqueue``."""
        return self.enqueue(*args, **kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Another name for ``aenqueue``."""
        return await self.aenqueue(*args, **kwargs)

    def _new(self, *args: P.args, **kwargs: P.kwargs) -> tuple[NewTask, Transaction | None]:
        return new_task(self.name, self.registered.bind(*args, **kwargs), self._options)

    def _stand_in(self) -> CurrentTask:
        """What ``current_task()`` shows in an inline call: no row, no lease, a first attempt."""
        task = self.registered
        return CurrentTask(id=0, queue=task.queue, task_type=task.name, attempt=1, max_retries=task.max_retries or 0)


class Task(_Enqueuing[P, R]):
    """A registered ``def``. Calling it runs it right here; ``enqueue`` lets a worker run it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without a queue, a limit or a retry."""
        token = set_current(self._stand_in())
        try:
            return cast("R", self.registered.fn(*args, **kwargs))
        finally:
            reset_current(token)


class AsyncTask(_Enqueuing[P, R]):
    """A registered ``async def``. Awaiting a call runs it right here; ``enqueue`` lets a worker run it."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the coroutine here and now, without a queue, a limit or a retry."""
        token = set_current(self._stand_in())
        try:
            return await cast("Awaitable[R]", self.registered.fn(*args, **kwargs))
        finally:
            reset_current(token)


class TaskDecorator(Protocol):
    """What ``app.task(...)`` with options returns."""

    # The overlaps are those of ``TandemQ.task``.
    @overload
    def __call__(self, fn: H) -> H: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R]) -> Task[P, R]: ...
