"""Producing on real servers: the caller's transaction, keys under concurrency, sizes, charsets, threads, Redis away."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tandemq import (
    Filter,
    Handle,
    IdempotencyConflict,
    InvalidTask,
    NewTask,
    NotMigrated,
    PayloadTooLarge,
    StoreUnavailable,
    TandemQ,
)
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tests import recipes
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import ROOT, environment

pytestmark = pytest.mark.servers
LOW = Level("default", 0)


def app_of(settings: Settings, **changes: Any) -> TandemQ:
    return TandemQ(settings.database_url, settings.redis_url, settings.namespace, **changes)


@pytest.fixture
def app(env: Settings) -> Iterator[TandemQ]:
    with app_of(env) as app:
        yield app


@pytest.fixture
def engine(env: Settings) -> Iterator[sa.Engine]:
    """The caller's own engine, as SQLAlchemy makes it: REPEATABLE READ."""
    engine = sa.create_engine(recipes.administrator(env.database_url))
    yield engine
    engine.dispose()


def rows(app: TandemQ) -> int:
    return len(app.admin.find(Filter(), limit=1000).items)


def in_redis(app: TandemQ, level: Level = LOW) -> frozenset[int]:
    return app.broker.window(level, 1000).ids


def payload_of(app: TandemQ, task_id: int) -> str:
    stored = app.get(task_id)
    assert stored is not None
    return stored.payload


# B27: the caller's transaction


@pytest.mark.scenario
def test_before_the_commit_nobody_sees_the_task_and_soon_after_it_is_in_redis(
    app: TandemQ, engine: sa.Engine, weather: Weather
) -> None:
    with engine.connect() as connection:
        handles = [app.enqueue("x", {"n": n}, connection=connection) for n in range(10)]
        assert app.store.visible([h.id for h in handles]) == set()
        assert in_redis(app) == set()
        connection.commit()
        committed_at = time.monotonic()

    assert eventually(lambda: in_redis(app) == {h.id for h in handles})
    assert time.monotonic() - committed_at < 1 + weather.slack_s


@pytest.mark.scenario
def test_a_rollback_leaves_no_row_and_no_id(app: TandemQ, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        undone = [app.enqueue("x", {"n": n}, connection=connection) for n in range(10)]
        connection.rollback()
    with Session(engine) as session:
        undone += [app.enqueue("x", {"n": n}, connection=session) for n in range(10)]
        session.rollback()
        # The same session goes on: what it commits now must not bring the others back.
        kept = app.enqueue("x", {"n": 0}, connection=session)
        session.commit()

    assert eventually(lambda: in_redis(app) == {kept.id})
    assert rows(app) == 1
    assert all(app.get(h.id) is None for h in undone)


CALLER = """
import os, signal, sys
import sqlalchemy as sa
from tandemq import TandemQ

app = TandemQ()
with sa.create_engine(app.settings.database_url).connect() as connection:
    ids = [app.enqueue("x", {"n": n}, connection=connection).id for n in range(10)]
    print(*ids, flush=True)
    if sys.argv[1] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    connection.commit()
app.close()
"""


@pytest.mark.scenario
@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_caller_killed_around_its_commit(app: TandemQ, env: Settings, killed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLER, killed],
        cwd=ROOT,
        env={**environment(env, TANDEMQ_CRASH="enqueue.after_commit:1:kill9"), "PYTHONPATH": "src"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    ids = {int(task_id) for task_id in done.stdout.split()}

    assert done.returncode == -signal.SIGKILL
    assert len(ids) == 10
    # The server notices the cut connection a moment later.
    eventually(lambda: app.store.visible(list(ids)) == (ids if killed == "after" else set()))
    assert in_redis(app) == set()
    assert app.push(ids) == (10 if killed == "after" else 0)


@pytest.mark.scenario
def test_a_process_killed_between_its_own_commit_and_the_push_leaves_the_row(app: TandemQ, env: Settings) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tandemq import TandemQ; TandemQ().enqueue('x', {})"],
        cwd=ROOT,
        env={**environment(env, TANDEMQ_CRASH="enqueue.after_commit:1:kill9"), "PYTHONPATH": "src"},
        check=False,
    )

    assert done.returncode == -signal.SIGKILL
    assert rows(app) == 1
    assert in_redis(app) == set()


def test_a_script_that_commits_and_ends_at_once_still_pushes(app: TandemQ, env: Settings) -> None:
    script = CALLER.replace("app.close()\n", "")
    subprocess.run(
        [sys.executable, "-c", script, "commit"],
        cwd=ROOT,
        env={**environment(env), "PYTHONPATH": "src"},
        stdout=subprocess.DEVNULL,
        check=True,
    )

    assert len(in_redis(app)) == 10


def test_a_savepoint_that_is_rolled_back_takes_its_tasks_along(app: TandemQ, engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        outer = app.enqueue("x", {}, connection=session)
        nested = session.begin_nested()
        inner = app.enqueue("x", {}, connection=session)
        nested.rollback()

    assert eventually(lambda: outer.id in in_redis(app))
    assert app.get(inner.id) is None
    assert inner.id not in in_redis(app)


def test_the_callers_own_rows_and_the_task_are_one_transaction(app: TandemQ, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INT PRIMARY KEY) ENGINE=InnoDB"))
    task = app.task(name="order")(lambda order_id: order_id)

    def place(order_id: int) -> Handle[Any]:
        with Session(engine) as session, session.begin():
            handle = task.using(connection=session).enqueue(order_id)
            session.execute(sa.text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
            return handle

    place(1)
    with pytest.raises(sa.exc.IntegrityError):
        place(1)
    assert rows(app) == 1


def test_the_callers_session_settings_are_neither_assumed_nor_changed(app: TandemQ, env: Settings) -> None:
    engine = sa.create_engine(sa.make_url(env.database_url).update_query_dict({"charset": "latin1"}))
    text = "\U0001f600 é 漢字 \\ ' \""
    with engine.connect() as connection:
        connection.execute(sa.text("SET SESSION time_zone = '+09:00', sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"))
        state = sa.text(
            "SHOW SESSION VARIABLES WHERE variable_name IN"
            " ('time_zone', 'sql_mode', 'tx_isolation', 'transaction_isolation', 'character_set_client', 'autocommit')"
        )
        before = connection.execute(state).all()
        now = app.enqueue("x", {"text": text}, connection=connection)
        later = app.enqueue("x", {"text": text}, connection=connection, delay=60, idempotency_key="k" + text)
        again = app.enqueue("x", {"text": text}, connection=connection, idempotency_key="k" + text)
        after = connection.execute(state).all()
        connection.commit()
    engine.dispose()

    assert before == after
    assert (again.id, again.created) == (later.id, False)
    assert [now.state(), later.state()] == ["ready", "scheduled"]
    stored = app.get(later.id)
    assert stored is not None
    assert stored.idempotency_key == "k" + text
    assert json.loads(stored.payload) == {"text": text}
    assert abs(stored.run_at - app.store.now() - timedelta(seconds=60)) < timedelta(seconds=5)


@pytest.mark.parametrize("url", ["mysql+asyncmy"])
def test_an_async_session_commits_and_rolls_back_tasks(app: TandemQ, env: Settings, url: str) -> None:
    task = app.task(name="order")(lambda order_id: order_id)

    async def main() -> tuple[list[Handle[int]], list[Handle[int]]]:
        engine = create_async_engine(sa.make_url(env.database_url).set(drivername=url))
        async with AsyncSession(engine) as session:
            kept = [await task.using(connection=session).aenqueue(n) for n in range(3)]
            kept += await app.aenqueue_many([task.new(n) for n in range(3)], connection=session)
            assert app.store.visible([h.id for h in kept]) == set()
            await session.commit()
            undone = [await task.using(connection=session).aenqueue(9)]
            await session.rollback()
        async with engine.connect() as connection:
            kept.append(await app.aenqueue("order", {"order_id": 7}, connection=connection, delay=60))
            await connection.commit()
        await engine.dispose()
        return kept, undone

    kept, undone = asyncio.run(main())

    assert eventually(lambda: in_redis(app) == {h.id for h in kept[:-1]})
    assert eventually(lambda: app.broker.delayed(LOW) == 1)
    assert rows(app) == 7
    assert app.get(undone[0].id) is None


def test_twins_run_side_by_side(app: TandemQ) -> None:
    task = app.task(name="order")(lambda order_id: order_id)

    async def main() -> list[Handle[int]]:
        return await asyncio.gather(*[task.aenqueue(n) for n in range(50)])

    handles = asyncio.run(main())

    assert [json.loads(payload_of(app, h.id)) for h in handles] == [{"order_id": n} for n in range(50)]
    assert in_redis(app) == {h.id for h in handles}


# B34, B35: idempotency keys


@pytest.mark.scenario
def test_fifty_concurrent_enqueues_with_one_key_make_one_task(app: TandemQ) -> None:
    with ThreadPoolExecutor(50) as pool:
        for n in range(5):
            barrier = threading.Barrier(50)

            def enqueue(_: int, key: str = f"order-{n}", barrier: threading.Barrier = barrier) -> Handle[Any]:
                barrier.wait(60)
                return app.enqueue("order", {"key": key}, idempotency_key=key)

            handles = list(pool.map(enqueue, range(50)))
            assert len({h.id for h in handles}) == 1
            assert sum(h.created for h in handles) == 1
            with pytest.raises(IdempotencyConflict, match=str(handles[0].id)) as conflict:
                app.enqueue("order", {"key": "other"}, idempotency_key=f"order-{n}")
            assert conflict.value.task_id == handles[0].id

    assert rows(app) == 5
    assert app.broker.depth(LOW) == 5


@pytest.mark.scenario
def test_when_the_first_holder_of_a_key_rolls_back_exactly_one_of_the_waiting_wins(
    app: TandemQ, engine: sa.Engine
) -> None:
    with engine.connect() as connection, ThreadPoolExecutor(8) as pool:
        app.enqueue("order", {"n": 1}, idempotency_key="k", connection=connection)
        waiting = [pool.submit(app.enqueue, "order", {"n": 1}, idempotency_key="k") for _ in range(8)]
        innodb = sa.text("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
        eventually(lambda: connection.execute(innodb).scalar())
        connection.rollback()
        handles = [one.result(60) for one in waiting]

    assert len({h.id for h in handles}) == 1
    assert sum(h.created for h in handles) == 1
    assert rows(app) == 1


@pytest.mark.scenario
def test_keys_that_differ_in_bytes_are_different_tasks(app: TandemQ) -> None:
    long = "x" * 254
    keys = [
        "Order-1",
        "order-1",
        "k1",
        "k1 ",
        "é",
        "e",
        "e\u0301",
        "\U0001f600",
        "\U0001f601",
        long + "a",
        long + "b",
        " ",
    ]
    handles = {key: app.enqueue("x", {}, idempotency_key=key) for key in keys}

    assert all(h.created for h in handles.values())
    assert len({h.id for h in handles.values()}) == len(keys)
    for key, handle in handles.items():
        again = app.enqueue("x", {}, idempotency_key=key)
        assert (again.id, again.created) == (handle.id, False)
        stored = app.get(handle.id)
        assert stored is not None
        assert stored.idempotency_key == key
    for key in ("", "x" * 300):
        with pytest.raises(InvalidTask, match="idempotency_key"):
            app.enqueue("x", {}, idempotency_key=key)


# B30, B32: sizes and characters


@pytest.mark.scenario
@pytest.mark.parametrize("size", [65_535, 65_536, 1024 * 1024])
@pytest.mark.parametrize("character", ["x", "\U0001f600"])
def test_a_payload_up_to_the_limit_comes_back_byte_for_byte(app: TandemQ, size: int, character: str) -> None:
    room = size - len('{"t":""}')
    text = character * (room // len(character.encode()))
    text += "x" * (room - len(text.encode()))
    handle = app.enqueue("x", {"t": text})

    stored = payload_of(app, handle.id).encode()
    assert len(stored) == size
    assert hashlib.sha256(stored).digest() == hashlib.sha256(f'{{"t":"{text}"}}'.encode()).digest()
    if size == 1024 * 1024:
        with pytest.raises(PayloadTooLarge, match=r"1048577 bytes .* 1048576"):
            app.enqueue("x", {"t": text + "x"})
        assert rows(app) == 1


@pytest.mark.scenario
def test_a_payload_over_the_servers_packet_is_refused_and_the_next_call_works(
    own_mysql: Callable[..., MySQLServer], settings_for: Callable[..., Settings], redis_url: str
) -> None:
    server = own_mysql("--max-allowed-packet=1M")
    settings = settings_for(server.url(server.create_database()), redis_url, max_payload_bytes=16_000_000)
    with app_of(settings, max_payload_bytes=16_000_000) as app:
        for size in (2_000_000, 15 * 1024 * 1024, 17 * 1024 * 1024):
            with pytest.raises(PayloadTooLarge, match=r"\d{6}"):
                app.enqueue("x", {"t": "x" * size})
            with pytest.raises(PayloadTooLarge):
                app.enqueue_many([NewTask("x", {}), NewTask("x", {"t": "x" * size})])
        assert rows(app) == 0
        assert in_redis(app) == set()
        assert app.enqueue("x", {"t": "x" * 500_000}).created


@pytest.mark.scenario
def test_many_big_rows_are_one_transaction_over_several_statements(app: TandemQ) -> None:
    text = "y" * 900_000
    handles = app.enqueue_many([NewTask("x", {"n": n, "t": text}) for n in range(30)])

    assert [json.loads(payload_of(app, h.id))["n"] for h in handles] == list(range(30))


@pytest.mark.scenario
def test_characters_come_back_whatever_the_servers_default_is(
    own_mysql: Callable[..., MySQLServer], settings_for: Callable[..., Settings], redis_url: str
) -> None:
    server = own_mysql("--character-set-server=latin1", "--collation-server=latin1_swedish_ci")
    text = "\U0001f600 漢字 é e\u0301 \u202e \x00"
    with app_of(settings_for(server.url(server.create_database()), redis_url)) as app:
        handle = app.enqueue("x", {text: text}, idempotency_key=text)
        assert json.loads(payload_of(app, handle.id)) == {text: text}
        assert not app.enqueue("x", {text: text}, idempotency_key=text).created


# Order, threads, forks


def test_many_keep_their_order_in_redis_and_in_their_handles(app: TandemQ) -> None:
    handles = app.enqueue_many([NewTask("x", {"n": n}, queue="q") for n in range(2500)])

    popped = app.broker.pop([Level("q", 0)], limit=3000, wait_s=1)
    assert list(popped.ids) == [h.id for h in handles]
    for n in (0, 999, 1000, 2499):
        assert payload_of(app, handles[n].id) == f'{{"n":{n}}}'


def test_eight_threads_share_one_app_and_get_their_own_ids(app: TandemQ) -> None:
    def enqueue(k: int) -> dict[int, str]:
        return {app.enqueue("x", {"k": k, "n": n}).id: f'{{"k":{k},"n":{n}}}' for n in range(50)}

    with ThreadPoolExecutor(8) as pool:
        expected = {task_id: text for some in pool.map(enqueue, range(8)) for task_id, text in some.items()}

    assert len(expected) == 400
    assert {t.id: t.payload for t in app.admin.find(Filter(), limit=1000).items} == expected
    assert app.broker.depth(LOW) == 400


FORKS = """
import os
from tandemq import TandemQ

app = TandemQ()
ids = [app.enqueue("x", {"who": "parent", "n": 0}).id]
children = []
for k in range(4):
    child = os.fork()
    if child == 0:
        for n in range(20):
            app.enqueue("x", {"who": f"child {k}", "n": n})
        if k % 2:
            app.close()
        os._exit(0)
    children.append(child)
    app.enqueue("x", {"who": "parent", "n": k + 1})
for child in children:
    assert os.waitpid(child, 0)[1] == 0
for n in range(5, 25):
    task = app.get(app.enqueue("x", {"who": "parent", "n": n}).id)
    assert task.payload == '{"who":"parent","n":%d}' % n, task.payload
"""


@pytest.mark.scenario
def test_an_app_used_before_and_after_a_fork_shares_no_connection(app: TandemQ, env: Settings) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        cwd=ROOT,
        env={**environment(env), "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert rows(app) == 4 * 20 + 25
    assert app.broker.depth(LOW) == 4 * 20 + 25


# Servers away


def times_of_enqueues(app: TandemQ, n: int) -> list[float]:
    took = []
    for k in range(n):
        begun = time.monotonic()
        app.enqueue("x", {"n": k})
        took.append(time.monotonic() - begun)
    return took


@pytest.mark.scenario
@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_without_redis_an_enqueue_still_commits_and_answers_within_two_seconds(
    own_redis: Callable[..., RedisServer], settings_for: Callable[..., Settings], mysql_url: str, how: str
) -> None:
    redis = own_redis()
    with app_of(settings_for(mysql_url, redis.url())) as app:
        healthy = times_of_enqueues(app, 20)
        redis.stop() if how == "stopped" else redis.sigstop()
        took = times_of_enqueues(app, 20)
        redis.start() if how == "stopped" else redis.sigcont()

        assert max(took) < 2 + 2 * max(healthy)
        # It waits for Redis once, then once a second, two seconds, four ... later: the slower the commits, the oftener.
        waits = 2 + math.log2(1 + sum(took))
        assert sum(one > 0.5 + max(healthy) for one in took) <= waits, took
        assert rows(app) == 40
        assert eventually(lambda: app.enqueue("x", {}).id in in_redis(app))


def test_without_the_database_nothing_is_stored_and_the_error_says_so(
    own_mysql: Callable[..., MySQLServer], settings_for: Callable[..., Settings], redis_url: str
) -> None:
    server = own_mysql()
    with app_of(settings_for(server.url(server.create_database()), redis_url)) as app:
        app.enqueue("x", {})
        server.kill9()
        with pytest.raises(StoreUnavailable):
            app.enqueue("x", {})
        server.start()
        assert eventually(lambda: app.enqueue("x", {}).created)
        assert rows(app) == 2


def test_an_unmigrated_database_is_refused_in_words(mysql_url: str, redis_url: str) -> None:
    with TandemQ(mysql_url, redis_url) as app, pytest.raises(NotMigrated, match="tandemq migrate"):
        app.enqueue("x", {})


def test_bad_input_of_every_kind_stores_nothing(app: TandemQ) -> None:
    for payload, options in (
        ([], {}),
        ({"a": float("inf")}, {}),
        ({}, {"priority": "urgent"}),
        ({}, {"priority": 1001}),
        ({}, {"max_retries": -1}),
        ({}, {"queue": "a b"}),
        ({}, {"delay": -1}),
        ({}, {"delay": 1e308}),
        ({}, {"idempotency_key": ""}),
    ):
        with pytest.raises(InvalidTask):
            app.enqueue("x", payload, **options)  # type: ignore[arg-type]
    assert rows(app) == 0
