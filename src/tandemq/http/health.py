"""Is it alive, can it work, what has it counted: for orchestrators and Prometheus."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from starlette.responses import Response

from tandemq import metrics as meters
from tandemq.app import TandemQ
from tandemq.broker.protocol import Broker
from tandemq.core.clock import SystemClock
from tandemq.http.calls import Call, answer
from tandemq.http.problems import RETRY_AFTER_S, Problem
from tandemq.service import Throttle
from tandemq.store.protocol import Store

_log = logging.getLogger("tandemq.http")
#: How long one look at a server may take, and how long its answer is good for.
LIMIT_S, FRESH_S = 2.0, 1.0


class _Probe:
    """Asks one server: at most once a second, however many want to know, and never twice at the same time.

    A question that hangs is answered "away" to all who come meanwhile; the thread ends by the time-outs of its driver.
    """

    def __init__(self, name: str, ask: Callable[[], None]) -> None:
        self._name, self._ask = name, ask
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"tandemq-probe-{name}")
        self._asking: asyncio.Future[bool] | None = None
        self._asked_at = 0.0
        self._say = Throttle(_log, SystemClock())

    async def is_there(self) -> bool:
        """Whether the server answers as it should."""
        loop = asyncio.get_running_loop()
        asking = self._asking
        if asking is None or (asking.done() and loop.time() - self._asked_at >= FRESH_S):
            self._asked_at = loop.time()
            asking = self._asking = loop.run_in_executor(self._thread, self._answers)
        left_s = self._asked_at + LIMIT_S - loop.time()
        if not asking.done() and left_s > 0:
            await asyncio.wait({asking}, timeout=left_s)
        return asking.done() and asking.result()

    def _answers(self) -> bool:
        try:
            self._ask()
        except Exception as error:
            self._say(logging.INFO, self._name, f"not ready, {self._name}: {error}")
            return False
        self._say.forget(self._name)
        return True

    def stop(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown()


class Health:
    """Whether both servers are there. Over connections of its own: those of requests may all be waiting for locks."""

    def __init__(self, app: TandemQ) -> None:
        self._app = app
        self._lock, self._open = threading.Lock(), ExitStack()
        self._links: tuple[Store, Broker] | None = None
        self._database = _Probe("database", self._ask_database)
        self._redis = _Probe("redis", self._ask_redis)

    async def look(self) -> tuple[bool, bool]:
        """Whether the database (with its tables) and Redis answer."""
        database, redis = await asyncio.gather(self._database.is_there(), self._redis.is_there())
        return database, redis

    async def stop(self) -> None:
        """Drop the connections."""
        await asyncio.to_thread(self._stop)

    def _ask_database(self) -> None:
        self._connected()[0].check_schema()  # not ``ping``: without its tables a database is of no use

    def _ask_redis(self) -> None:
        self._connected()[1].ping()

    def _connected(self) -> tuple[Store, Broker]:
        with self._lock:
            if self._links is None:
                self._links = self._open.enter_context(self._app._links.unchecked())
            return self._links

    def _stop(self) -> None:
        self._database.stop()
        self._redis.stop()
        self._open.close()


async def live(call: Call) -> Response:
    """200: the process serves."""
    call.query()
    return answer({"status": "ok"})


async def ready(call: Call) -> Response:
    """200 if tasks can be accepted, which needs the database alone; 503 otherwise. One word for each server."""
    call.query()
    database, redis = await call.api.health.look()
    words = {True: "ok", False: "away"}
    shape = {"status": "ok" if database else "unavailable", "database": words[database], "redis": words[redis]}
    if database:
        return answer(shape)
    return answer(shape, 503, {"Retry-After": str(RETRY_AFTER_S)})


async def metrics(call: Call) -> Response:
    """Counters of this process, or of all processes that share PROMETHEUS_MULTIPROC_DIR, as Prometheus reads them."""
    call.query()
    page = await call.api.app.offload(meters.page)
    if page is None:
        raise Problem("not-found", "there are no metrics here: pip install 'tandemq[metrics]'")
    return Response(page.text, media_type=None, headers={"Content-Type": page.content_type})
