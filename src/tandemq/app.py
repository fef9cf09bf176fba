"""The application object: settings, registered tasks, and everything a user calls. The edge that reads os.environ."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from tandemq import vitals
from tandemq.admin import Admin, DeadLetters
from tandemq.broker.protocol import Broker
from tandemq.core import crash
from tandemq.core.audit import AuditPage
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.codec import Encoder
from tandemq.core.errors import ConfigurationError
from tandemq.core.listening import Listener
from tandemq.core.retry import RetryPolicy
from tandemq.core.settings import Settings
from tandemq.core.task import UNSET, NewTask, Unset
from tandemq.core.task import Task as StoredTask
from tandemq.core.values import Priority, Seconds
from tandemq.doctor import Diagnosis, Doctor
from tandemq.handle import Handle
from tandemq.links import Links
from tandemq.pausing import Pauses
from tandemq.producer import Producer
from tandemq.pruning import Pruned, PruneOptions, Pruning
from tandemq.queues import Queues
from tandemq.registry import RegisteredTask, Registry, TaskHandler, TaskOptions
from tandemq.replaying import Replays
from tandemq.store.answers import WorkerRecord
from tandemq.store.protocol import Store, Transaction
from tandemq.tasks import AsyncTask, EnqueueOptions, Task, TaskDecorator, new_task
from tandemq.tokens import Tokens
from tandemq.vitals import Vitals

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=type[TaskHandler])


class TandemQ:
    """One tandemq installation as seen by this program: enqueue into it, register tasks for its workers, look at it.

    Arguments win over ``TANDEMQ_*`` variables; with no URLs at all it is embedded in ``./.tandemq``. Other settings go
    by their names (``lease_s=10``). ``encoder`` turns values that JSON cannot carry into ones it can; ``typed=False``
    checks no payload against its handler's annotations. Nothing connects before the first use; one object may be shared
    by threads and used on both sides of a fork. ``clock`` and ``broker`` are for tests: see ``tandemq.testing``.
    """

    def __init__(
        self,
        database_url: str | None = None,
        redis_url: str | None = None,
        namespace: str | None = None,
        table_prefix: str | None = None,
        imports: Sequence[str] = (),
        encoder: Encoder | None = None,
        *,
        typed: bool = True,
        clock: Clock | None = None,
        broker: Broker | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.load(
            os.environ,
            database_url=database_url,
            redis_url=redis_url,
            namespace=namespace,
            table_prefix=table_prefix,
            **settings,
        )
        if self.settings.crash:
            _arm(self.settings)
        self.clock: Clock = clock or SystemClock()
        self.encoder = encoder
        self.registry = Registry()
        self._typed = typed
        self._imports = (imports,) if isinstance(imports, str) else tuple(imports)
        self._links = Links(self.settings, self.clock, broker=broker)
        self.producer = Producer(self._links, self.registry, self.settings, self.clock, encoder)
        self.admin = Admin(self._links)
        self.queues = Queues(self._links)
        self.tokens = Tokens(self._links)
        self.pauses = Pauses(self._links)
        self.dead = DeadLetters(self._links, self._enqueue_anew, Replays(self._links, self.registry))
        self._pruning = Pruning(self._links)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "embedded" if self.settings.is_embedded else self.settings.namespace
        return f"<TandemQ {where}, {len(self.registry)} tasks>"

    @property
    def store(self) -> Store:
        """The database, connected on first use. NotMigrated if ``tandemq migrate`` has not been run."""
        return self._links.store

    @property
    def broker(self) -> Broker:
        """Redis, connected on first use."""
        return self._links.broker

    def close(self) -> None:
        """Push what was committed just now and drop the connections; a later use opens new ones."""
        self.producer.close()
        self._links.close()

    async def offload(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking call of this object in one of its threads, without blocking the event loop."""
        return await self._links.offload(call, *args, **kwargs)

    # Registering

    # Each overlaps the last one on purpose: the first match counts, and a coroutine function is a callable too.
    @overload
    def task(self, fn: H) -> H: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R]) -> Task[P, R]: ...
    @overload
    def task(
        self,
        fn: None = None,
        *,
        name: str | None = None,
        queue: str | Unset = UNSET,
        priority: Priority | Unset = UNSET,
        max_retries: int | Unset | None = UNSET,
        retry: RetryPolicy | Unset | None = UNSET,
        timeout: Seconds | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
    ) -> TaskDecorator: ...
    def task(self, fn: Any = None, **options: Any) -> Any:
        """Register a function (or a TaskHandler subclass, as ``handler`` does), bare or with options.

        ``name`` defaults to module.function; ``retry`` is a RetryPolicy; ``timeout`` is in seconds for one attempt,
        1800 if left out, None for no limit; ``typed=False`` leaves the annotations of the handler unchecked.
        Registering twice under one name is refused.
        """
        checked = TaskOptions(**options)
        if fn is None:
            return lambda target: self._register(target, checked)
        return self._register(fn, checked)

    def handler(self, cls: H) -> H:
        """Register a TaskHandler subclass (or an instance of one) under its ``name``; returns it unchanged."""
        return cast("H", self._register(cls, TaskOptions()))

    def add_listener(self, event: str, callback: Listener) -> None:
        """Call ``callback(attempt, policy, exc)`` at every ``event`` of every task that runs in this process.

        ``before_attempt`` and ``on_success`` in the thread of the attempt; ``on_retry``, ``on_failure`` (given up) and
        ``on_dead_letter`` later and elsewhere, when the row says so. ``current_task()`` is the task meanwhile. Best
        effort: what ends with the process is not told. A listener that raises is logged and changes nothing.
        ValueError for another event, TypeError for what cannot take three arguments.
        """
        self.registry.listeners.add(event, callback)

    def import_tasks(self) -> None:
        """Import the modules of ``imports``, which registers their tasks. ConfigurationError if one fails."""
        for module in self._imports:
            try:
                importlib.import_module(module)
            except ImportError as missing:
                raise ConfigurationError(f"imports={module!r} of TandemQ() cannot be imported: {missing}") from missing

    def _register(self, target: Any, options: TaskOptions) -> Any:
        registered = self.registry.add(RegisteredTask.of(target, options, typed=self._typed))
        if registered.handler is not None:
            return target
        kind = AsyncTask if registered.is_async else Task
        return kind(registered, self.producer)

    # Producing

    def enqueue(self, task_type: str, payload: Mapping[str, Any], **options: Unpack[EnqueueOptions]) -> Handle[Any]:
        """Store a task by name, which need not be registered here, and push it. See ``Producer.enqueue``."""
        new, connection = new_task(task_type, payload, options)
        return self.producer.enqueue(new, connection=connection)

    async def aenqueue(
        self, task_type: str, payload: Mapping[str, Any], **options: Unpack[EnqueueOptions]
    ) -> Handle[Any]:
        """``enqueue`` without blocking the event loop; ``connection`` may be an AsyncSession."""
        new, connection = new_task(task_type, payload, options)
        return (await self.producer.aenqueue_many([new], connection=connection))[0]

    def enqueue_many(self, news: Iterable[NewTask], *, connection: Transaction | None = None) -> list[Handle[Any]]:
        """Store many tasks, atomic per 1,000; handles in input order."""
        return self.producer.enqueue_many(news, connection=connection)

    async def aenqueue_many(
        self, news: Iterable[NewTask], *, connection: Transaction | None = None
    ) -> list[Handle[Any]]:
        """``enqueue_many`` without blocking the event loop."""
        return await self.producer.aenqueue_many(news, connection=connection)

    def push(self, ids: Iterable[int]) -> int:
        """Push rows that other SQL inserted, so that they start at once; how many were pending and pushed."""
        return self.producer.push(ids)

    async def apush(self, ids: Iterable[int]) -> int:
        """``push`` without blocking the event loop."""
        return await self._links.offload(self.push, ids)

    # Looking

    def get(self, task_id: int) -> StoredTask | None:
        """The task with its failed attempts, or None."""
        return self.admin.get(task_id)

    async def aget(self, task_id: int) -> StoredTask | None:
        """``get`` without blocking the event loop."""
        return await self._links.offload(self.get, task_id)

    def cancel(self, task_id: int, *, kill: bool = False, reason: str = "", who: str | None = None) -> str:
        """``cancelled`` (was pending), ``requested`` (is running), or the final status it has. TaskNotFound.

        ``kill``: a handler that is still there 5 s after its worker has heard of it costs its process. Who (the user of
        this process unless said) and why go into the audit log.
        """
        return self.admin.cancel(task_id, kill=kill, reason=reason, who=who)

    async def acancel(self, task_id: int, *, kill: bool = False, reason: str = "", who: str | None = None) -> str:
        """``cancel`` without blocking the event loop."""
        return await self._links.offload(self.cancel, task_id, kill=kill, reason=reason, who=who)

    def audit(self, *, task_id: int | None = None, limit: int = 50, after: int | None = None) -> AuditPage:
        """Who did what to which tasks, and why, newest first; ``after`` is the ``next`` of the page before."""
        return self.admin.audit(task_id=task_id, limit=limit, after=after)

    def stats(self) -> dict[str, Any]:
        """Open tasks by queue and state, ended ones by outcome."""
        return self.admin.stats()

    def workers(self) -> list[WorkerRecord]:
        """Worker processes heard of lately."""
        return self.admin.workers()

    def why(self, task_id: int) -> str:
        """One true sentence: why is this task (not) running?"""
        return self.admin.why(task_id)

    def doctor(self, *, fix: bool = False) -> Diagnosis:
        """Is this installation safe? Settings of both servers, tandemq's own, and Redis compared with the rows.

        ``fix`` mends what is safe to mend in Redis; see ``Doctor.examine``. A server that is away is a finding.
        """
        with self._links.unchecked() as (store, broker):
            return Doctor(store, broker, self.clock, self.settings).examine(self.registry, fix=fix)

    def health(self, *, worker: str | None = None, every: bool = False, max_age_s: float | None = None) -> Vitals:
        """Do both servers answer, and does the worker of this host (or of this name) do its work? See ``vitals``."""
        return vitals.look(self._links, worker=worker, every=every, max_age_s=max_age_s)

    def _enqueue_anew(self, news: list[NewTask]) -> list[bool]:
        return [handle.created for handle in self.producer.enqueue_many(news)]

    # Removing

    def prune(self, older_than: Seconds, **options: Unpack[PruneOptions]) -> Pruned:
        """Remove succeeded and cancelled tasks that ended at least ``older_than`` ago; see ``Pruning.prune``."""
        return self._pruning.prune(older_than, **options)


def _arm(settings: Settings) -> None:
    try:
        crash.arm(settings.crash, settings.crash_dir)
    except ValueError as bad:
        raise ConfigurationError(str(bad)) from None


def load_app(spec: str) -> TandemQ:
    """The application behind ``module:attribute``, importable from the current directory. ConfigurationError if not."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"-A {spec!r} must be module:attribute, for example shop:app")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    found: Any = _import(module_name, spec)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ConfigurationError(f"-A {spec!r}: {module_name} has no {attribute!r}") from None
    if not isinstance(found, TandemQ):
        raise ConfigurationError(f"-A {spec!r} is a {type(found).__name__}, not a TandemQ application")
    return found


def _import(module_name: str, spec: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and f"{module_name}.".startswith(f"{missing.name}."):
            raise ConfigurationError(f"-A {spec!r}: there is no module {missing.name!r} in {Path.cwd()}") from None
        raise ConfigurationError(f"-A {spec!r}: importing {module_name} failed: {missing}") from missing
    except ConfigurationError:
        raise
    except Exception as broken:
        reason = f"{type(broken).__name__}: {broken}"
        raise ConfigurationError(f"-A {spec!r}: importing {module_name} failed: {reason}") from broken
