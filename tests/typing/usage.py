"""Checked by mypy --strict, not run: each ``type: ignore`` is an error that must be reported (unused ones are errors).

``test_typing.py`` runs mypy on this file.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from tandemq import (
    AsyncTask,
    Handle,
    NewTask,
    RetryPolicy,
    Status,
    StoredTask,
    TandemQ,
    Task,
    TaskHandler,
    current_task,
)

app = TandemQ(lease_s=10)


@app.task
def process_order(order_id: int, action: str = "create") -> dict[str, int]:
    """Bare."""
    assert_type(current_task().id, int)
    return {action: order_id}


@app.task(
    name="order.ship", queue="slow", priority="high", max_retries=0, retry=RetryPolicy(backoff=[1, 5]), timeout=30
)
def ship(order_id: int) -> str:
    """With options."""
    return str(order_id)


@app.task
async def fetch(url: str) -> bytes:
    """A coroutine, bare."""
    return url.encode()


@app.task(timeout=None)
async def crawl(url: str, *, depth: int = 1) -> list[str]:
    """A coroutine, with options."""
    return [url] * depth


@app.task
class Orders(TaskHandler):
    """A handler class, bare."""

    name = "orders"
    priority = "critical"

    def process(self, payload: dict[str, Any]) -> int:
        """Process."""
        return len(payload)


@app.task(queue="mail")
class Mail(TaskHandler):
    """A handler class, with options."""

    async def process(self, payload: dict[str, Any]) -> int:
        """Process."""
        return len(payload)


def tasks_keep_their_signatures() -> None:
    """Inline and enqueued."""
    assert_type(process_order, Task[[int, str], dict[str, int]])  # type: ignore[assert-type]  # names and defaults are kept
    assert_type(process_order(1), dict[str, int])
    assert_type(process_order.enqueue(1, action="update"), Handle[dict[str, int]])
    assert_type(process_order.delay(order_id=1).result(timeout=5), dict[str, int])
    assert_type(ship.enqueue(1).result(), str)
    assert_type(ship.using(delay=timedelta(seconds=3)).enqueue(1).result(), str)
    assert_type(process_order.new(1), NewTask)
    assert_type(ship.enqueue(1).status, Status)
    assert_type(ship, Task[[int], str])  # type: ignore[assert-type]
    assert_type(Orders, type[Orders])


async def coroutines_give_handles_of_what_they_return() -> None:
    """Not of coroutines."""
    assert_type(await fetch("u"), bytes)
    assert_type(fetch.enqueue("u"), Handle[bytes])
    assert_type(await fetch.aenqueue("u"), Handle[bytes])
    assert_type(await (await crawl.adelay("u", depth=2)).aresult(), list[str])
    assert_type(crawl.using(priority=5).enqueue("u"), Handle[list[str]])
    assert isinstance(fetch, AsyncTask)
    assert_type(await app.aget(1), StoredTask | None)


def wrong_calls_are_found() -> None:
    """Every line is an error."""
    process_order.enqueue()  # type: ignore[call-arg]
    process_order.enqueue("1")  # type: ignore[arg-type]
    process_order.enqueue(1, akcion="x")  # type: ignore[call-arg]
    process_order.enqueue(1, "update", 3)  # type: ignore[call-arg]
    process_order("1")  # type: ignore[arg-type]
    process_order.delay(order_id=None)  # type: ignore[arg-type]
    process_order.using(prio="high")  # type: ignore[call-arg]
    process_order.using(priority=1.5)  # type: ignore[arg-type]
    process_order.using(max_retries="3")  # type: ignore[arg-type]
    fetch.enqueue(1)  # type: ignore[arg-type]
    app.enqueue("x", {}, run_at="tomorrow")  # type: ignore[arg-type]
    app.enqueue("x", {}, queu="q")  # type: ignore[call-arg]
    app.task(name="x", retries=3)  # type: ignore[call-overload]
    app.enqueue("x", [])  # type: ignore[arg-type]
    app.add_listener("on_retry", print_one)  # type: ignore[arg-type]
    ship.add_listener("on_retry", hear_text)  # type: ignore[arg-type]
    app.task(typed="no")  # type: ignore[call-overload]


def hear(attempt: int, policy: RetryPolicy, exc: BaseException | None) -> None:
    """A listener."""


def print_one(attempt: int) -> None:
    """No listener either."""


def hear_text(attempt: str, policy: RetryPolicy, exc: BaseException | None) -> None:
    """No listener."""


def right_calls_are_accepted() -> None:
    """No line is an error."""
    later = datetime(2030, 1, 1, tzinfo=UTC)
    process_order.using(queue="q", priority="high", run_at=later, expires=later, idempotency_key="k", timeout=None)
    process_order.using(delay=3, max_retries=0, backoff=[1, 2.5], connection=object())
    app.enqueue("x", {"a": 1}, priority=5, expires=30.0)
    app.enqueue_many([process_order.new(1), NewTask("x", {})])
    app.add_listener("on_retry", hear)
    fetch.add_listener("on_success", hear)
    assert_type(app.task(typed=False)(tasks_keep_their_signatures), Task[[], None])
    assert_type(TandemQ(typed=False), TandemQ)
