"""What every store test stands on: a migrated empty database, stores on it, and short ways to say what happens.

The contract itself is in the other ``store_*.py`` here; adapters (``test_store_*.py``) inherit from all of them and
give the fixture ``settings``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tandemq.core.lifecycle import Bury, DeadReason, Failure, RetryIn, Succeed, Verdict
from tandemq.core.settings import Settings
from tandemq.core.task import Lease, Level, NewRow
from tandemq.store import SqlStore, connect, engines
from tandemq.store.answers import Claimed, Settled, Settlement
from tandemq.testing import FakeClock
from tests import recipes

DEFAULT = Level("default", 0)
FAILURE = Failure("ValueError", "no such order 😀", "Traceback 漢字")
LOST = Failure("LeaseLost", "the lease ran out")

OpenStore = Callable[..., SqlStore]
Sql = Callable[..., list[tuple[Any, ...]]]
_tokens = itertools.count(1)


def row(**changes: Any) -> NewRow:
    """A row to insert."""
    return replace(NewRow("shop.pay", '{"order":1}', "default", 0, 3), **changes)


def insert(store: SqlStore, count: int = 1, **changes: Any) -> list[int]:
    """Ids of ``count`` equal rows."""
    return [i.id for i in store.insert([row(**changes)] * count)]


def claim(store: SqlStore, ids: Sequence[int], **changes: Any) -> Claimed:
    """Claim with a new token, or with what ``changes`` say."""
    given: dict[str, Any] = {
        "token": next(_tokens),
        "worker_id": "w1",
        "lease_s": 30.0,
        "free": 100,
        "known": None,
        "unknown_task_s": 60.0,
    }
    return store.claim(ids, **(given | changes))


def lease(store: SqlStore, **changes: Any) -> Lease:
    """A running task."""
    (one,) = claim(store, insert(store, **changes)).leases
    return one


def settle(store: SqlStore, *pairs: tuple[Lease, Verdict], closing: bool = True) -> Settled:
    """Finish; unless told otherwise nothing else of these tokens is left."""
    tokens = {one.token for one, _ in pairs} if closing else set()
    return store.finish([Settlement(one, verdict) for one, verdict in pairs], closing=tokens, worker_id="w1")


def succeed(result: str | None = None) -> Succeed:
    return Succeed(result)


def fail(delay_s: float = 5.0) -> RetryIn:
    return RetryIn(delay_s, FAILURE)


def bury() -> Bury:
    return Bury(DeadReason.RETRIES_EXHAUSTED, FAILURE)


def lost(_: Lease) -> RetryIn:
    """A judge that retries at once."""
    return RetryIn(0.0, LOST, "lease_lost")


class StoreContract:
    """Fixtures; adapters give ``settings``."""

    @pytest.fixture
    def open_store(self, settings: Settings) -> Iterator[OpenStore]:
        """``open_store(clock=None, **changed settings)``: one more store on the database."""
        opened: list[SqlStore] = []

        def make(clock: FakeClock | None = None, **changes: Any) -> SqlStore:
            opened.append(store := connect(replace(settings, **changes), clock=clock))
            return store

        yield make
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_store: OpenStore) -> SqlStore:
        return open_store()

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def timed(self, open_store: OpenStore, clock: FakeClock) -> SqlStore:
        """A store whose clock is moved by hand."""
        return open_store(clock)

    @pytest.fixture
    def callers(self, settings: Settings) -> Iterator[sa.Engine]:
        """An engine as an application has it: nothing of tandemq in it."""
        engine = sa.create_engine(recipes.administrator(engines.url_of(settings).render_as_string(hide_password=False)))
        yield engine
        engine.dispose()

    @pytest.fixture
    def sql(self, callers: sa.Engine) -> Sql:
        """``sql("SELECT ...")``: one statement of another program, committed; its rows as tuples."""

        def run(statement: str, **params: Any) -> list[tuple[Any, ...]]:
            with callers.begin() as connection:
                result = connection.execute(sa.text(statement), params)
                return [tuple(r) for r in result] if result.returns_rows else []

        return run
