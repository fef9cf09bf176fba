"""Enqueueing: check, insert, push after the commit; and what if Redis is away or the caller's transaction fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tandemq import NewTask, TandemQ
from tandemq.broker import in_process
from tandemq.broker.protocol import Broker
from tandemq.core.clock import SystemClock
from tandemq.core.errors import (
    BrokerUnavailable,
    ForeignInstall,
    IdempotencyConflict,
    InvalidTask,
    InvalidType,
    PayloadTooLarge,
    StoreUnavailable,
)
from tandemq.core.retry import QueuePolicy
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.dispatch import Dispatcher, Entry, Pusher
from tandemq.links import Links
from tandemq.store.answers import Filter
from tandemq.testing import FakeClock, run_until_idle
from tests.waiting import eventually

DEFAULT = Level("default", 0)


class Watched:
    """A broker that notes its calls, and can be away."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.away = False
        self._broker = in_process("watched", SystemClock())

    def push(self, level: Level, ids: Any) -> None:
        self._note("push", level, tuple(ids))
        self._broker.push(level, ids)

    def delay(self, level: Level, due: Any) -> None:
        self._note("delay", level, tuple(due))
        self._broker.delay(level, due)

    def _note(self, *call: Any) -> None:
        if self.away:
            raise BrokerUnavailable("Redis is away")
        self.calls.append(call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


@pytest.fixture
def broker() -> Watched:
    return Watched()


@pytest.fixture
def app(broker: Any, tmp_path: Any, tandemq_clock: FakeClock) -> Iterator[TandemQ]:
    with TandemQ(data_dir=tmp_path / "d", clock=tandemq_clock, broker=broker, max_payload_bytes=1000) as app:
        app.task(name="order")(order)
        yield app


def order(order_id: int, note: str = "") -> int:
    return order_id


def count(app: TandemQ) -> int:
    return len(app.admin.find(Filter(), limit=1000).items)


# Inserting and pushing


def test_an_enqueue_stores_a_row_and_pushes_its_id(app: TandemQ, broker: Watched) -> None:
    handle = app.enqueue("order", {"order_id": 1}, queue="q", priority=7)

    assert broker.calls == [("push", Level("q", 7), (handle.id,))]
    stored = app.get(handle.id)
    assert stored is not None
    assert (stored.task_type, stored.payload, stored.queue, stored.priority) == ("order", '{"order_id":1}', "q", 7)


def test_a_later_task_goes_to_the_sorted_set(app: TandemQ, broker: Watched, tandemq_clock: FakeClock) -> None:
    later = app.enqueue("order", {"order_id": 1}, delay=5)
    app.enqueue("order", {"order_id": 1}, run_at=tandemq_clock.now())

    assert broker.calls[0] == ("delay", DEFAULT, (later.id,))
    assert broker.calls[1][0] == "push"


def test_many_are_grouped_by_level_and_keep_their_order(app: TandemQ, broker: Watched) -> None:
    news = [NewTask("order", {"order_id": n}, priority=n % 2, delay=5 if n > 3 else None) for n in range(6)]
    ids = [h.id for h in app.enqueue_many(news)]

    assert broker.calls == [
        ("push", Level("default", 0), (ids[0], ids[2])),
        ("push", Level("default", 1), (ids[1], ids[3])),
        ("delay", Level("default", 0), (ids[4],)),
        ("delay", Level("default", 1), (ids[5],)),
    ]


def test_handles_come_in_input_order_over_several_transactions(app: TandemQ, broker: Watched) -> None:
    keys = ["z", None, "a", None]
    news = [NewTask("order", {"order_id": n}, idempotency_key=keys[n] if n < 4 else None) for n in range(2500)]
    handles = app.enqueue_many(iter(news))

    payloads = {t.id: json.loads(t.payload)["order_id"] for h in handles[:20] if (t := app.get(h.id))}
    assert [payloads[h.id] for h in handles[:20]] == list(range(20))
    assert len({h.id for h in handles}) == 2500
    assert sum(len(call[2]) for call in broker.calls) == 2500
    assert len(broker.calls) == 3


def test_nothing_to_enqueue_is_fine(app: TandemQ, broker: Watched) -> None:
    assert app.enqueue_many([]) == []
    assert broker.calls == []


# Bad input: nothing is stored


@pytest.mark.parametrize(
    ("payload", "options", "error"),
    [
        ([], {}, InvalidType),
        ({"a": float("nan")}, {}, InvalidTask),
        ({"a": b"x"}, {}, InvalidType),
        ({"a": "x" * 1000}, {}, PayloadTooLarge),
        ({}, {"priority": "urgent"}, InvalidTask),
        ({}, {"max_retries": -1}, InvalidTask),
        ({}, {"queue": "a b"}, InvalidTask),
        ({}, {"idempotency_key": ""}, InvalidTask),
        ({}, {"delay": -1}, InvalidTask),
        ({}, {"delay": 1, "run_at": "x"}, InvalidTask),
        ({}, {"timeout": 0}, InvalidTask),
        ({}, {"backoff": []}, InvalidTask),
    ],
)
def test_bad_input_is_refused_and_nothing_is_stored_or_pushed(
    app: TandemQ, broker: Watched, payload: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        app.enqueue("order", payload, **options)
    with pytest.raises(error):
        app.enqueue_many([NewTask("order", {"order_id": 1}), NewTask("order", payload, **options)])

    assert refused.value.__notes__ == ["task 0 of the batch, 'order'"]
    assert count(app) == 0
    assert broker.calls == []


@pytest.mark.parametrize("new", [None, {"type": "order"}, NewTask([], {}), NewTask("a b", {})])  # type: ignore[arg-type]
def test_what_is_no_task_is_refused(app: TandemQ, new: Any) -> None:
    with pytest.raises(InvalidTask):
        app.enqueue_many([NewTask("order", {}), new])
    assert count(app) == 0


def test_wrong_arguments_are_a_type_error_before_anything_is_stored(app: TandemQ) -> None:
    task = app.task(name="order")(order)

    for call in (task.enqueue, task.delay, task.new):
        with pytest.raises(TypeError):
            call()  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call(1, oops=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        asyncio.run(task.aenqueue())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="connection"):
        task.using(connection=object()).new(1)
    assert count(app) == 0


# Idempotency keys


def test_a_known_key_returns_the_task_and_is_not_pushed_again(app: TandemQ, broker: Watched) -> None:
    first = app.enqueue("order", {"order_id": 1, "note": "x"}, idempotency_key="k")
    again = app.enqueue("order", {"note": "x", "order_id": 1}, idempotency_key="k", priority="high")

    assert (first.created, again.created) == (True, False)
    assert again.id == first.id
    assert len(broker.calls) == 1
    for task_type, payload in (("order", {"order_id": 2}), ("other", {"order_id": 1, "note": "x"})):
        with pytest.raises(IdempotencyConflict, match=str(first.id)) as conflict:
            app.enqueue(task_type, payload, idempotency_key="k")
        assert conflict.value.task_id == first.id
    assert count(app) == 1


def test_a_conflict_undoes_its_whole_batch(app: TandemQ, broker: Watched) -> None:
    app.enqueue("order", {"order_id": 1}, idempotency_key="k")
    broker.calls.clear()
    fine = NewTask("order", {"order_id": 1})

    with pytest.raises(IdempotencyConflict) as conflict:
        app.enqueue_many([fine] * 1500 + [NewTask("order", {"order_id": 2}, idempotency_key="k")])

    assert conflict.value.__notes__ == ["1000 of 1501 tasks were stored before this"]
    assert [len(call[2]) for call in broker.calls] == [1000]


# Redis away


def test_without_redis_the_task_is_stored_and_the_log_says_so_once_in_a_while(
    app: TandemQ, broker: Watched, tandemq_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    with caplog.at_level(logging.WARNING, "tandemq.dispatch"):
        handles = [app.enqueue("order", {"order_id": n}) for n in range(50)]
        tandemq_clock.advance(10)
        app.enqueue("order", {"order_id": 50})

    assert [r.getMessage() for r in caplog.records if r.name == "tandemq.dispatch"] == [
        "stored, not pushed, left to the reconciler: 1 tasks (Redis is away)",
        "stored, not pushed, left to the reconciler: 50 tasks (Redis is away)",
    ]
    assert all(h.created for h in handles)
    assert count(app) == 51


# push(ids)


def test_push_takes_rows_of_other_sql_as_they_are(
    app: TandemQ, broker: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    broker.away = True
    ready = app.enqueue("order", {"order_id": 1}, priority=7)
    later = app.enqueue("order", {"order_id": 2}, delay=60)
    ended = app.enqueue("order", {"order_id": 3})
    ended.cancel()
    broker.away = False

    with caplog.at_level(logging.WARNING, "tandemq.producer"):
        pushed = app.push([later.id, ready.id, ended.id, ready.id, 10**9])

    assert pushed == 2
    assert broker.calls == [("push", Level("default", 7), (ready.id,)), ("delay", DEFAULT, (later.id,))]
    assert "1 of 4 ids have no row: 1000000000" in caplog.text
    assert run_until_idle(app) == 1
    assert ready.result() == 1


def test_push_tells_when_redis_is_away_and_checks_its_input(app: TandemQ, broker: Watched) -> None:
    handle = app.enqueue("order", {"order_id": 1})
    broker.away = True

    with pytest.raises(BrokerUnavailable):
        app.push([handle.id])
    for ids in (["1"], [1.0], [None], [True]):
        with pytest.raises(InvalidType, match="id"):
            app.push(ids)  # type: ignore[arg-type]
    assert app.push([]) == 0


# On the caller's connection


@pytest.fixture
def engine(app: TandemQ) -> Iterator[sa.Engine]:
    """The caller's own engine, on the database that also holds tandemq's tables."""
    assert app.store.ping() is None
    engine = sa.create_engine(f"sqlite:///{app.settings.data_path / 'tandemq.db'}")
    yield engine
    engine.dispose()


def test_a_task_on_a_connection_is_pushed_only_after_the_commit(
    app: TandemQ, broker: Watched, engine: sa.Engine
) -> None:
    with engine.connect() as connection:
        handle = app.enqueue("order", {"order_id": 1}, connection=connection)
        assert app.get(handle.id) is None
        assert broker.calls == []
        connection.commit()

    assert eventually(lambda: broker.calls) == [("push", DEFAULT, (handle.id,))]
    assert run_until_idle(app) == 1


def test_a_rollback_leaves_no_row_and_no_id(app: TandemQ, broker: Watched, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        rolled_back = app.enqueue("order", {"order_id": 1}, connection=connection)
        connection.rollback()
        kept = app.enqueue("order", {"order_id": 2}, connection=connection)
        connection.commit()

    # SQLite gives the id of a row that was rolled back again, so what was pushed must be the second one alone.
    assert eventually(lambda: broker.calls) == [("push", DEFAULT, (kept.id,))]
    assert count(app) == 1
    assert rolled_back.created


def test_a_session_commits_its_own_rows_and_tasks_together(app: TandemQ, broker: Watched, engine: sa.Engine) -> None:
    task = app.task(name="order")(order)
    with Session(engine) as session, session.begin():
        session.execute(sa.text("CREATE TABLE own (id INTEGER)"))
        handles = [task.using(connection=session, delay=n * 60).enqueue(n) for n in range(2)]

    assert len(eventually(lambda: len(broker.calls) == 2 and broker.calls)) == 2
    assert {call[:2] for call in broker.calls} == {("push", DEFAULT), ("delay", DEFAULT)}
    assert [h.state() for h in handles] == ["ready", "scheduled"]
    with Session(engine) as session:
        task.using(connection=session).enqueue(5)
        session.execute(sa.text("INSERT INTO own VALUES (1)"))
        session.rollback()
    assert count(app) == 2


def test_many_on_one_connection_stand_or_fall_together(app: TandemQ, broker: Watched, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        app.enqueue_many([NewTask("order", {"order_id": n}) for n in range(1200)], connection=connection)
        connection.commit()

    assert eventually(lambda: sum(len(c[2]) for c in broker.calls) == 1200)


def test_an_async_session_must_be_awaited(app: TandemQ) -> None:
    class LooksAsync:
        async def run_sync(self, call: Any) -> Any:
            return call(None)

    with pytest.raises(TypeError, match="aenqueue"):
        app.enqueue("order", {"order_id": 1}, connection=LooksAsync())


def test_a_sync_session_may_be_used_by_a_twin(app: TandemQ, broker: Watched, engine: sa.Engine) -> None:
    async def main(session: Session) -> None:
        await app.aenqueue("order", {"order_id": 1}, connection=session)
        session.commit()

    with Session(engine) as session:
        asyncio.run(main(session))
    assert eventually(lambda: broker.calls)


# The dispatcher


class Rows:
    """A store of which only ``visible`` is asked."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.away = False

    def visible(self, ids: Any) -> set[int]:
        if self.away:
            raise StoreUnavailable("MySQL is away")
        return self.committed & set(ids)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def dispatcher(rows: Any, broker: Any, tandemq_clock: FakeClock) -> Iterator[Dispatcher]:
    links = Links(Settings.load({}), tandemq_clock, store=rows, broker=broker)
    dispatcher = Dispatcher(links, tandemq_clock, Pusher(links, tandemq_clock))
    yield dispatcher
    dispatcher.close()


def batch(dispatcher: Dispatcher, clock: FakeClock, *ids: int) -> Any:
    from tandemq.dispatch import _Batch

    return _Batch({i: Entry(i, DEFAULT) for i in ids}, clock.monotonic() + 5)


def test_ids_are_pushed_as_their_rows_become_visible_and_given_up_after_5_seconds(
    dispatcher: Dispatcher, rows: Rows, broker: Watched, tandemq_clock: FakeClock
) -> None:
    waiting = dispatcher.step([batch(dispatcher, tandemq_clock, 1, 2, 3)])
    assert broker.calls == []
    rows.committed = {2}
    waiting = dispatcher.step(waiting)
    assert broker.calls == [("push", DEFAULT, (2,))]
    rows.away = True
    tandemq_clock.advance(4)
    waiting = dispatcher.step(waiting)
    assert [sorted(b.entries) for b in waiting] == [[1, 3]]
    rows.away = False
    rows.committed = {1}
    tandemq_clock.advance(2)
    assert dispatcher.step(waiting) == []
    assert broker.calls[1:] == [("push", DEFAULT, (1,))]


def test_the_dispatchers_thread_pushes_and_survives_a_broken_look(
    dispatcher: Dispatcher,
    rows: Rows,
    broker: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(rows, "visible", lambda _ids: 1 / 0)
    dispatcher.submit([Entry(1, DEFAULT)])
    assert dispatcher.flush(10)
    assert "left to the reconciler" in caplog.text
    monkeypatch.undo()
    rows.committed = {2}
    dispatcher.submit([Entry(2, DEFAULT)])
    dispatcher.submit([])

    assert dispatcher.flush(10)
    assert broker.calls == [("push", DEFAULT, (2,))]


def test_a_closed_dispatcher_starts_again(dispatcher: Dispatcher, rows: Rows, broker: Watched) -> None:
    rows.committed = {1, 2}
    assert dispatcher.flush(0)
    for task_id in (1, 2):
        dispatcher.submit([Entry(task_id, DEFAULT)])
        dispatcher.close()
        dispatcher.close()

    assert [call[2] for call in broker.calls] == [(1,), (2,)]


def test_closing_does_not_wait_long_for_a_commit_that_never_comes(dispatcher: Dispatcher, broker: Watched) -> None:
    dispatcher.submit([Entry(1, DEFAULT)])

    assert not dispatcher.flush(0.01)
    assert broker.calls == []


# Connections


def test_threads_share_one_connection_pool(app: TandemQ, broker: Watched) -> None:
    task = app.task(name="order")(order)
    ids: list[tuple[int, int]] = []

    def enqueue(first: int) -> None:
        for n in range(first, first + 25):
            ids.append((task.enqueue(n).id, n))

    threads = [threading.Thread(target=enqueue, args=(k * 100,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({task_id for task_id, _ in ids}) == 100
    for task_id, n in ids:
        stored = app.get(task_id)
        assert stored is not None
        assert json.loads(stored.payload) == {"order_id": n}


FORKS = """
import os
from tandemq.links import PerProcess

made = []
mine = PerProcess(lambda: made.append(1) or os.getpid())
assert mine.get() == mine.get() == os.getpid() and made == [1]
child = os.fork()
if child == 0:
    os._exit(0 if mine.get() == os.getpid() and made == [1, 1] else 1)
_, status = os.waitpid(child, 0)
assert mine.get() == os.getpid() and made == [1]
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_makes_its_own() -> None:
    # In a process of its own: Python warns of a fork beside threads, which other tests may have left.
    subprocess.run([sys.executable, "-c", FORKS], env={**os.environ, "PYTHONPATH": "src"}, check=True)


def test_a_store_that_cannot_be_opened_is_tried_again(tmp_path: Any, broker: Any) -> None:
    blocked = tmp_path / "d"
    blocked.write_text("in the way")
    app = TandemQ(data_dir=blocked, broker=broker)

    with pytest.raises(Exception, match="d"):
        app.enqueue("x", {})
    blocked.unlink()
    assert app.enqueue("x", {}).created
    app.close()


def test_a_namespace_of_another_database_is_refused(app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign: Broker = in_process("tandemq", SystemClock())
    foreign.mark_install("0123456789abcdef")
    monkeypatch.setattr("tandemq.broker.connect", lambda _settings, _clock: foreign)
    links = Links(app.settings, SystemClock(), store=app.store)

    with pytest.raises(ForeignInstall, match="0123456789abcdef"):
        _ = links.broker


def test_queue_policies_are_asked_for_every_ten_seconds(
    app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{"default": QueuePolicy(7)}, {"default": QueuePolicy(8)}])
    monkeypatch.setattr(app.store, "queue_policies", lambda: next(answers))

    def retries() -> int:
        stored = app.get(app.enqueue("order", {"order_id": 1}).id)
        assert stored is not None
        return stored.max_retries

    assert [retries(), retries()] == [7, 7]
    tandemq_clock.advance(10)
    assert retries() == 8
