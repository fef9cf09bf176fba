"""``POST /jobs``: requests that come together share one INSERT; each is answered after the commit of its row.

Nobody waits for a timer: a request that finds nobody storing is stored at once. What comes meanwhile is the next group.
A request with an idempotency key goes its own way, since it may have to wait for an uncommitted row of its key.

What waits is the bytes that came. They are parsed by the thread that stores them: a body of brackets takes 26 times its
size once it is parsed, and holds up the event loop while it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from starlette.responses import Response

from tandemq.app import TandemQ
from tandemq.core import body
from tandemq.core.errors import EnqueueUnknown, InvalidTask, StoreUnavailable, TandemQError, Unavailable
from tandemq.core.task import NewTask, Task
from tandemq.http.calls import BIG, Call
from tandemq.http.problems import RETRY_AFTER_S, Problem, problem_of
from tandemq.producer import Stored, Waits

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("tandemq.http")
#: Of one shared INSERT: tasks, and bytes of their bodies. A small request must not wait for megabytes of others.
MAX_TASKS, MAX_BYTES = 500, 1024 * 1024
#: What may wait for the database in one process, as tasks and as bytes; beyond that clients are told to come back.
MAX_WAITING, MAX_WAITING_BYTES = 10_000, 64 * 1024 * 1024
#: Keys that are looked after at once. The others of the app's threads are for requests that never wait for a row.
KEYS_AT_ONCE = 12
BATCHES_AT_ONCE = 4
#: How long a request waits for others with its key, or for one of those places, before it is told to come back.
KEY_WAIT_S = 10.0
#: Waits for a row in the database that a request with a key gets, of 3 s: then its place is free for another key.
KEY_WAITS = 1
#: So many turns of the event loop a request takes from its arrival to its place in the queue, and one to spare.
TURNS = 4
#: How often the task of a known key may be removed before it could be read.
TRIES = 3


class Outcome(NamedTuple):
    """The task as stored, and whether this request created it."""

    task: Task
    created: bool


class _Asked(NamedTuple):
    text: bytes
    answer: asyncio.Future[Outcome | Problem]


class Enqueuer:
    """Stores tasks for all requests of this process. Dying costs what was not answered: stored or not."""

    def __init__(self, app: TandemQ) -> None:
        self._app = app
        self._asked: deque[_Asked] = deque()
        self._waiting, self._waiting_bytes = 0, 0
        self._storing: asyncio.Task[None] | None = None
        # Not one of the app's threads: keyed requests may hold up all of those that they are given.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tandemq-http-enqueue")
        self._turns = asyncio.Semaphore(KEYS_AT_ONCE)
        self._bulk = asyncio.Semaphore(BATCHES_AT_ONCE)
        self._keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def enqueue(self, text: bytes) -> Outcome | Problem:
        """Store the task that a body asks for. Raises InvalidTask at once if it can."""
        size = len(text)
        if self._waiting >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
            told = f"{self._waiting} tasks wait for the database already; send the request again"
            return Problem("unavailable", told, headers={"Retry-After": str(RETRY_AFTER_S)})
        self._waiting += 1
        self._waiting_bytes += size
        try:
            key = _key(text) if size < BIG else await self._app.offload(_key, text)
            return await (self._shared(text) if key is None else self._keyed(text, key))
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size

    async def in_bulk(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call of a batch in a thread; batches share few of them."""
        async with self._bulk:
            return await self._app.offload(call, *args, **kwargs)

    async def stop(self) -> None:
        """Wait for what is under way."""
        if self._storing is not None:
            await self._storing
        self._thread.shutdown(wait=False)

    async def _shared(self, text: bytes) -> Outcome | Problem:
        asked = _Asked(text, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._storing is None:
            self._storing = asyncio.create_task(self._store())
        return await asked.answer

    async def _store(self) -> None:
        try:
            while self._asked:
                await self._gather()
                group = self._group()
                loop, texts = asyncio.get_running_loop(), [one.text for one in group]
                try:
                    outcomes = await loop.run_in_executor(self._thread, self._enqueue, texts)
                except BaseException as broken:  # no thread could be had, or this was cancelled
                    _tell(group, [EnqueueUnknown(f"may or may not be stored: {broken!r}")] * len(group))
                    _tell(self._asked, [StoreUnavailable("not tried: storing has ended")] * len(self._asked))
                    self._asked.clear()
                    raise
                if any(isinstance(outcome, Unavailable) for outcome in outcomes):
                    # They would wait as long again, and be told the same.
                    late, self._asked = self._asked, deque()
                    group += late
                    outcomes += [StoreUnavailable("not tried: the database is away")] * len(late)
                _tell(group, outcomes)
        finally:
            self._storing = None

    async def _gather(self) -> None:
        """Let come along what is on its way through the event loop, as long as its turns bring more.

        No time is waited for: with nothing on its way these are microseconds. Clients that were answered together ask
        again together, and half of them would come too late (measured with 32: 16 to an INSERT, with this 29).
        """
        seen = 0
        while seen < len(self._asked) < MAX_TASKS:
            seen = len(self._asked)
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def _group(self) -> list[_Asked]:
        """Those who have waited longest."""
        group = [self._asked.popleft()]
        size = len(group[0].text)
        while self._asked and len(group) < MAX_TASKS and size + len(self._asked[0].text) <= MAX_BYTES:
            group.append(self._asked.popleft())
            size += len(group[-1].text)
        return group

    def _enqueue(self, texts: Sequence[bytes]) -> list[Outcome | Exception]:
        """In a thread."""
        try:
            asked = [_new_task(text) for text in texts]
            news = [new for new in asked if isinstance(new, NewTask)]
            done = iter(self._app.producer.enqueue_each(news, Waits(KEY_WAITS), times=True))
            return [self._outcome(next(done)) if isinstance(new, NewTask) else new for new in asked]
        except Exception as broken:
            _log.exception("storing for %d requests failed", len(texts))
            return [EnqueueUnknown(f"may or may not be stored: {broken!r}")] * len(texts)

    async def _keyed(self, text: bytes, key: str) -> Outcome | Problem:
        # One after the other: they would wait for each other in the database, each holding a thread and a connection.
        lock = self._keys.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout(KEY_WAIT_S) as limit, lock, self._turns:
                limit.reschedule(None)  # from here on it may be stored: the database's own limits count
                return await self._keyed_now(text, key)
        except TimeoutError:
            return problem_of(StoreUnavailable(f"others wait for idempotency key {key!r}, or for their own"))

    async def _keyed_now(self, text: bytes, key: str) -> Outcome | Problem:
        for _ in range(TRIES):
            (outcome,) = await self._app.offload(self._enqueue, [text])
            if isinstance(outcome, Outcome):
                return outcome
            if not isinstance(outcome, _Removed):
                return problem_of(outcome)
        return problem_of(StoreUnavailable(f"the task of idempotency key {key!r} comes and goes"))

    def _outcome(self, one: Stored | Exception) -> Outcome | Exception:
        if isinstance(one, Exception):
            return one
        done = one.done
        if done.created and done.times is not None:
            return Outcome(Task.just_inserted(one.row, done.id, done.times), True)
        try:
            task = self._app.get(done.id)
        except TandemQError as away:
            return EnqueueUnknown(f"stored, and not found again: {away}") if done.created else away
        return _Removed() if task is None else Outcome(task, done.created)


class _Removed(Exception):
    """The task of a known key was removed before it could be read."""


def _key(text: bytes) -> str | None:
    """The idempotency key, if it is one. Its name is written as it is, or with escapes: others need not be parsed."""
    if b"idempotency_key" not in text and b"\\u" not in text:
        return None
    given = body.parse_json(text, "body")
    key = given.get("idempotency_key") if isinstance(given, dict) else None
    return key if isinstance(key, str) else None


def _new_task(text: bytes) -> NewTask | InvalidTask:
    try:
        return body.new_task(body.parse_json(text, "body"))
    except InvalidTask as bad:
        return bad


def _tell(group: Collection[_Asked], outcomes: Sequence[Outcome | Exception]) -> None:
    """Answer each. Those that met the same error share its document: it is logged once."""
    problems: dict[int, Problem] = {}
    for one, outcome in zip(group, outcomes, strict=True):
        if one.answer.done():  # its request was cancelled
            continue
        if isinstance(outcome, Exception):
            if id(outcome) not in problems:
                problems[id(outcome)] = problem_of(outcome)
            one.answer.set_result(problems[id(outcome)])
        else:
            one.answer.set_result(outcome)


async def enqueue(call: Call) -> Response:
    """201 and the new task, 200 and the task that the key belongs to already, 409 if that is another one."""
    call.query()
    call.require_media_type("application/json")
    outcome = await call.api.enqueuer.enqueue(await call.body())
    if isinstance(outcome, Problem):
        return outcome.response()
    task, created = outcome
    return await call.answer_task(task, 201 if created else 200, {"Location": f"/jobs/{task.id}"})
