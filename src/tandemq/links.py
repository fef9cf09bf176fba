"""The connections of one app: made on first use, shared by its threads, made anew in a forked child."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Generic, ParamSpec, TypeVar

import tandemq.broker
import tandemq.store
from tandemq.broker.protocol import Broker
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import BrokerUnavailable, ForeignInstall
from tandemq.core.settings import Settings
from tandemq.store.protocol import Store

T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("tandemq")
#: Calls of one event loop that may be under way at once; those that only enqueue share their INSERTs.
_OFFLOAD_THREADS = 32


_is_known = False


def do_not_warn() -> None:
    """For a process whose parent has told of the embedded default already."""
    global _is_known
    _is_known = True


class PerProcess(Generic[T]):
    """A value made anew in every process, for sockets, threads and locks, which do not survive a fork.

    The parent's value is kept, not dropped, in a child: dropping a connection would say goodbye on a shared socket.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's value. ``make`` must be cheap: two threads may both call it, one result is kept."""
        pid = os.getpid()
        mine = self._made.get(pid)
        return self._made.setdefault(pid, self._make()) if mine is None else mine


class _Opened:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.store: Store | None = None
        self.broker: Broker | None = None
        self.pool: ThreadPoolExecutor | None = None


class Links:
    """``store`` and ``broker`` of one app. Safe to share between threads; usable again after ``close``.

    ``store`` and ``broker`` may be given ready-made (tests); they are then used as they are.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, store: Store | None = None, broker: Broker | None = None
    ) -> None:
        self.settings, self.clock = settings, clock
        # A clock set by hand decides due times and leases too; otherwise the database's own clock does.
        self._store_clock = None if isinstance(clock, SystemClock) else clock
        self._given_store, self._given_broker = store, broker
        self._opened = PerProcess(_Opened)
        self._warned = False

    @property
    def store(self) -> Store:
        """The store. On first use: NotMigrated if the schema is missing or old, StoreUnavailable without a server."""
        if self._given_store is not None:
            return self._given_store
        opened = self._opened.get()
        if opened.store is None:
            with opened.lock:
                if opened.store is None:
                    opened.store = self._open_store()
        return opened.store

    @property
    def broker(self) -> Broker:
        """The broker. ForeignInstall if the namespace is marked by another database; then nothing is pushed."""
        if self._given_broker is not None:
            return self._given_broker
        opened = self._opened.get()
        if opened.broker is None:
            with opened.lock:
                if opened.broker is None:
                    opened.broker = self._open_broker()
        return opened.broker

    @contextmanager
    def unchecked(self) -> Iterator[tuple[Store, Broker]]:
        """Store and broker whose schema and install nobody has looked at, for whoever is to find what is wrong there.

        Connections of their own, unless both were given to this object.
        """
        with ExitStack() as opened:
            store, broker = self._given_store, self._given_broker
            if store is None:
                store = tandemq.store.connect(self.settings, clock=self._store_clock)
                opened.callback(store.close)
            if broker is None:
                broker = tandemq.broker.connect(self.settings, self.clock)
                opened.callback(broker.close)
            yield store, broker

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in this app's threads; the a-twins are their sync twins run here."""
        opened = self._opened.get()
        if opened.pool is None:
            with opened.lock:
                if opened.pool is None:
                    opened.pool = ThreadPoolExecutor(_OFFLOAD_THREADS, thread_name_prefix="tandemq-async")
        bound = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(opened.pool, bound)

    def close(self) -> None:
        """Drop the connections and threads of this process."""
        opened = self._opened.get()
        with opened.lock:
            store, broker, pool = opened.store, opened.broker, opened.pool
            opened.store = opened.broker = opened.pool = None
        if pool is not None:
            pool.shutdown(wait=True)
        if broker is not None:
            broker.close()
        if store is not None:
            store.close()

    def _open_store(self) -> Store:
        if self.settings.is_embedded and not (self._warned or _is_known):
            self._warned = True
            _log.warning(
                "no TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL: using the embedded default in %s;"
                " it is for trying out and for tests, set both URLs in production",
                self.settings.data_path,
            )
        # Before anything can be stored: a Redis URL that cannot work must not be found out after the commit.
        tandemq.broker.connect(self.settings, SystemClock()).close()
        store = tandemq.store.connect(self.settings, clock=self._store_clock)
        try:
            if not self.settings.is_embedded:
                store.check_schema()
        except BaseException:
            store.close()
            raise
        return store

    def _open_broker(self) -> Broker:
        broker = tandemq.broker.connect(self.settings, SystemClock())
        try:
            marked, own = broker.install(), self.store.install_id()
        except BrokerUnavailable:
            return broker
        except BaseException:
            broker.close()
            raise
        if marked is not None and marked != own:
            broker.close()
            raise ForeignInstall(
                f"the Redis namespace {self.settings.namespace!r} belongs to install {marked}, this database is {own};"
                " use another TANDEMQ_NAMESPACE"
            )
        return broker
