"""Retries without a queue: the policy of tandemq around any function, in this process, with no server.

The decision is the queue's own (``core.lifecycle.decide``): what is retried there is retried here, after the same
delays. A KeyboardInterrupt or SystemExit is the caller's, and never retried: here it is no task that raised it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

from tandemq.core import ids, retryafter
from tandemq.core.clock import Clock, SystemClock
from tandemq.core.errors import Retry, Snooze, TandemQError
from tandemq.core.failure import describe
from tandemq.core.lifecycle import Attempt, Bury, Outcome, Raised, RetryIn, Snoozed, Verdict, decide
from tandemq.core.listening import Listener, Listeners
from tandemq.core.retry import DEFAULT_MAX_RETRIES, Exponential, RetryPolicy

__all__ = ["RetriesFailed", "RetryExecutor", "aretry_all", "retry", "retry_all", "with_retry"]

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
_log = logging.getLogger("tandemq.retrying")
#: Of the exceptions before the last so many are told in its notes.
MAX_NOTES = 10


class _Run:
    """One call on its way: its failures, and what is to be done about the last one."""

    def __init__(self, executor: RetryExecutor, policy: RetryPolicy, name: str) -> None:
        self._executor, self.policy, self._name = executor, policy, name
        retries = policy.max_retries
        self._max_retries = DEFAULT_MAX_RETRIES if retries is None else retries
        self._began = executor.clock.monotonic()
        self.attempt = 1
        self._earlier: list[str] = []

    def begins(self) -> None:
        self._tell("before_attempt", None)

    def succeeded(self) -> None:
        self._tell("on_success", None)

    def failed(self, exc: Exception) -> float:
        """Seconds until the next attempt; raises ``exc``, with the earlier ones as notes, when there is none."""
        verdict = self._judge(exc)
        if isinstance(verdict, Bury):
            self._give_up(exc)
        delay_s: float = verdict.delay_s  # type: ignore[union-attr]  # a retry or a snooze
        age = self.policy.max_age_s
        if age is not None and self._executor.clock.monotonic() - self._began + delay_s > age:
            exc.add_note(f"not retried: the next attempt would begin after max_age ({age:g} s)")
            self._give_up(exc)
        self._executor.log(self._name, self.attempt, self._max_retries + 1, delay_s, exc)
        if isinstance(verdict, RetryIn):
            self._tell("on_retry", exc)
            self._earlier.append(f"attempt {self.attempt}: {type(exc).__name__}: {exc}")
            self.attempt += 1
        return delay_s

    def _judge(self, exc: Exception) -> Verdict:
        now = self._executor.clock.now()
        outcome: Outcome
        if isinstance(exc, Snooze):
            outcome = Snoozed(retryafter.seconds_from(exc.delay, now))
        else:
            asked = exc.delay if isinstance(exc, Retry) else None
            delay_s = None if asked is None else retryafter.seconds_from(asked, now)
            outcome = Raised(exc, describe(exc), delay_s)
        attempt = Attempt(self.attempt, self._max_retries)
        try:
            return decide(attempt, outcome, self.policy, self._executor.rng)
        except Exception:  # the policy's callables; the queue does the same
            _log.exception("the policy of %s raised, the default one decides", self._name)
            return decide(attempt, outcome, RetryPolicy(), self._executor.rng)

    def _give_up(self, exc: Exception) -> NoReturn:
        for text in self._earlier[-MAX_NOTES:]:
            exc.add_note(text)
        self._tell("on_failure", exc)
        raise exc

    def _tell(self, event: str, exc: BaseException | None) -> None:
        self._executor.listeners.tell(event, self.attempt, self.policy, exc)


class RetryExecutor:
    """Calls functions under a retry policy. Safe to share between threads.

    ``logger`` gets one WARNING per retry (attempt a of b, delay, traceback); None takes ``tandemq.retrying``.
    ``clock`` and ``rng`` are for tests: ``clock.sleep`` waits, ``asleep`` waits in coroutines.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        *,
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        asleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.policy = policy or RetryPolicy()
        self.clock, self.rng = clock or SystemClock(), rng or ids.new_random()
        self.listeners = Listeners(("before_attempt", "on_success", "on_retry", "on_failure"))
        self._logger, self._asleep = logger or _log, asleep

    def add_listener(self, event: str, callback: Listener) -> None:
        """Call ``callback(attempt, policy, exc)`` at every ``event``; ``exc`` is None where nothing failed.

        ``before_attempt``, ``on_success``, ``on_retry`` (before the wait), ``on_failure`` (given up). A listener that
        raises is logged and changes nothing.
        """
        self.listeners.add(event, callback)

    def execute(self, fn: Callable[[], R], policy: RetryPolicy | None = None) -> R:
        """Call ``fn`` until it returns. Raises its last exception, with the earlier ones as notes, when given up."""
        if inspect.iscoroutinefunction(fn):
            raise TypeError(f"{fn!r} is a coroutine function: await aexecute(...)")
        run = _Run(self, policy or self.policy, _name(fn))
        while True:
            run.begins()
            try:
                value = fn()
            except Exception as exc:
                wait_s = run.failed(exc)
            else:
                run.succeeded()
                return value
            self.clock.sleep(wait_s)

    async def aexecute(self, fn: Callable[[], Awaitable[R]], policy: RetryPolicy | None = None) -> R:
        """``execute`` for a coroutine function. A cancellation is passed on at once."""
        run = _Run(self, policy or self.policy, _name(fn))
        while True:
            run.begins()
            try:
                value = await fn()
            except Exception as exc:
                wait_s = run.failed(exc)
            else:
                run.succeeded()
                return value
            await self._asleep(wait_s)

    def log(self, name: str, attempt: int, attempts: int, delay_s: float, exc: BaseException) -> None:
        """One line per retry."""
        text = "%s failed in attempt %d of %d, the next one in %.3g s: %s: %s"
        self._logger.warning(text, name, attempt, attempts, delay_s, type(exc).__name__, exc, exc_info=exc)


class RetriesFailed(TandemQError, Generic[K, R]):
    """Some functions of ``retry_all`` failed for good: ``errors`` by key, and the ``results`` of the others."""

    def __init__(self, results: Mapping[K, R], errors: Mapping[K, BaseException]) -> None:
        told = "; ".join(f"{key}: {type(exc).__name__}: {exc}" for key, exc in errors.items())
        super().__init__(f"{len(errors)} of {len(errors) + len(results)} failed: {told}")
        self.results, self.errors = dict(results), dict(errors)


def with_retry(
    fn: Callable[[], R],
    attempts: int = 3,
    delay: float = 1,
    multiplier: float = 2,
    max_delay: float = 60,
    jitter: bool | float = False,
    retry_condition: Callable[[BaseException], bool] | None = None,
    on_retry: Callable[[int, float, BaseException], object] | None = None,
    *,
    clock: Clock | None = None,
    rng: Random | None = None,
) -> R:
    """Call ``fn`` at most ``attempts`` times, waiting ``delay * multiplier ** n`` seconds, ``max_delay`` at most.

    ``jitter`` True moves each delay by up to 20 % either way (a number: by that share). ``retry_condition(exc)`` False
    gives up. ``on_retry(attempt, delay, exc)`` is told before each wait; what it raises is logged. Raises the last
    exception, with the earlier ones as notes.
    """
    if type(attempts) is not int or attempts < 1:
        raise ValueError(f"attempts must be an integer >= 1, not {attempts!r}")
    policy = RetryPolicy(
        max_retries=attempts - 1,
        backoff=Exponential(base=delay, factor=multiplier, cap=max_delay),
        jitter=(0.2 if jitter else 0.0) if isinstance(jitter, bool) else jitter,
        when=None if retry_condition is None else lambda exc, _: retry_condition(exc),
    )
    executor = _Telling(policy, on_retry=on_retry, clock=clock, rng=rng)
    return executor.execute(fn)


class _Telling(RetryExecutor):
    """Tells ``on_retry`` the delay too, and logs at DEBUG: whoever gives a callback says what is to be said."""

    def __init__(
        self, policy: RetryPolicy, *, on_retry: Callable[[int, float, BaseException], object] | None, **given: Any
    ) -> None:
        super().__init__(policy, **given)
        self._on_retry = on_retry

    def log(self, name: str, attempt: int, attempts: int, delay_s: float, exc: BaseException) -> None:
        """See ``RetryExecutor``."""
        if self._on_retry is None:
            super().log(name, attempt, attempts, delay_s, exc)
            return
        try:
            self._on_retry(attempt, delay_s, exc)
        except Exception:
            self._logger.exception("on_retry of %s raised", name)


def retry(
    policy: RetryPolicy | None = None, *, executor: RetryExecutor | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator for ``def`` and ``async def``: every call goes through ``RetryExecutor(policy)`` (or ``executor``)."""
    if policy is not None and not isinstance(policy, RetryPolicy):
        raise TypeError("use @retry() or @retry(RetryPolicy(...)), with the parentheses")
    by = executor or RetryExecutor(policy)

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await by.aexecute(_named(fn, lambda: fn(*args, **kwargs)), policy)

            return cast("Callable[P, R]", awaited)

        @functools.wraps(fn)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            return by.execute(_named(fn, lambda: fn(*args, **kwargs)), policy)

        return called

    return decorate


def retry_all(
    fns: Mapping[K, Callable[[], R]], policy: RetryPolicy | None = None, *, executor: RetryExecutor | None = None,
    concurrently: int | None = None,
) -> dict[K, R]:  # fmt: skip
    """Call all functions at once, in a thread each (``concurrently``: at most so many), each under the policy; their
    results by key, in the order given.

    Raises RetriesFailed once all have ended, if any failed for good: it names every key and carries ``.results`` and
    ``.errors``.
    """
    by = executor or RetryExecutor(policy)
    results: dict[K, R] = {}
    errors: dict[K, BaseException] = {}
    if not fns:
        return results
    with ThreadPoolExecutor(concurrently or len(fns), thread_name_prefix="tandemq-retry") as pool:
        futures = {key: pool.submit(by.execute, fn, policy) for key, fn in fns.items()}
        for key, future in futures.items():
            try:
                results[key] = future.result()
            except Exception as exc:
                errors[key] = exc
    return _all_of(results, errors)


async def aretry_all(
    fns: Mapping[K, Callable[[], Awaitable[R]]], policy: RetryPolicy | None = None, *,
    executor: RetryExecutor | None = None,
) -> dict[K, R]:  # fmt: skip
    """``retry_all`` for coroutine functions, all on the running event loop. A cancellation cancels all of them."""
    by = executor or RetryExecutor(policy)
    results: dict[K, R] = {}
    errors: dict[K, BaseException] = {}

    async def one(key: K, fn: Callable[[], Awaitable[R]]) -> None:
        try:
            results[key] = await by.aexecute(fn, policy)
        except Exception as exc:
            errors[key] = exc

    await asyncio.gather(*[one(key, fn) for key, fn in fns.items()])
    return _all_of({key: results[key] for key in fns if key in results}, errors)


def _all_of(results: dict[K, R], errors: dict[K, BaseException]) -> dict[K, R]:
    if errors:
        raise RetriesFailed(results, errors)
    return results


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or repr(fn)


def _named(fn: Callable[..., Any], call: Callable[[], R]) -> Callable[[], R]:
    call.__qualname__ = _name(fn)
    return call
