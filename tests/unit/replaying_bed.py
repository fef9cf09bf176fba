"""What the tests of replays stand on: two types that fail, dead tasks of them, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tandemq import Filter, NonRetryable, TandemQ
from tandemq.replaying import Replayed
from tandemq.store.runs import ReplayRun
from tandemq.testing import run_until_idle

EVERY = Filter()


class Killed(BaseException):
    """The process died here."""


def register(app: TandemQ) -> TandemQ:
    """``pay`` fails until ``app.mended`` is filled, ``mail`` always does."""
    app.mended = []  # type: ignore[attr-defined]

    @app.task(name="pay")
    def pay(n: int, city: str = "Basel") -> str:
        if not app.mended:  # type: ignore[attr-defined]
            raise NonRetryable("no money")
        return city

    @app.task(name="mail")
    def mail(n: int) -> None:
        raise OSError("no route")

    return app


def bury(app: TandemQ, count: int, name: str = "pay", **options: Any) -> list[int]:
    ids = [app.enqueue(name, {"n": n}, max_retries=0, **options).id for n in range(count)]
    run_until_idle(app)
    return ids


def lives(app: TandemQ, ids: list[int]) -> list[int]:
    """How often each was replayed."""
    return [task.replays for task in map(app.get, ids) if task is not None]


def states(app: TandemQ, ids: list[int]) -> Counter[str]:
    return Counter(task.state for task in map(app.get, ids) if task is not None)


def summary(answer: Replayed) -> tuple[int, int, int, int, str]:
    return answer.moved, answer.skipped, answer.failed, answer.left, answer.state


def working(app: TandemQ) -> Callable[[ReplayRun], None]:
    """A worker beside the run."""
    return lambda _: (run_until_idle(app), None)[1]
