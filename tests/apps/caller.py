"""A program that enqueues inside its own transactions, to be told when to commit, and to be killed.

``python -m tests.apps.caller KIND COUNT`` with KIND connection, session or async. It inserts COUNT orders of its own
and as many tasks in one transaction, prints ``ids 1,2,3`` and waits for a line. On ``rollback`` it rolls back, prints
``rollback`` and does it all again. On ``commit`` it commits, prints ``commit TIME TIME`` (just before and just after)
and waits to be told to end.

``python -m tests.apps.caller KIND forever`` commits one order and its task after the other, printing each id.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.apps.scenarios_b import app, noop

ORDERS = "CREATE TABLE IF NOT EXISTS orders (n INT, task_id BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB"
ORDER = sa.text("INSERT INTO orders (n, task_id) VALUES (:n, :task_id)")
URL = app.settings.database_url


def say(*words: object) -> None:
    print(*words, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def obey_with(owner: sa.Connection | Session, count: int) -> None:
    while True:
        owner.execute(sa.text("SELECT COUNT(*) FROM orders"))  # a snapshot that is older than everything that follows
        ids = []
        for n in range(count):
            handle = noop.using(connection=owner).enqueue(n)
            owner.execute(ORDER, {"n": n, "task_id": handle.id})
            ids.append(handle.id)
        say("ids", ",".join(map(str, ids)))
        if hear() == "commit":
            break
        owner.rollback()
        say("rollback")
    before = time.time()
    owner.commit()
    say("commit", before, time.time())
    hear()


def forever_with(owner: sa.Connection | Session) -> None:
    for n in itertools.count():
        handle = noop.using(connection=owner).enqueue(n)
        owner.execute(ORDER, {"n": n, "task_id": handle.id})
        owner.commit()
        say(handle.id)


async def obey_async(count: int) -> None:
    engine = create_async_engine(URL.replace("pymysql", "asyncmy").replace("mysqldb", "asyncmy"))
    async with AsyncSession(engine) as session:
        while True:
            await session.execute(sa.text("SELECT COUNT(*) FROM orders"))
            ids = []
            for n in range(count):
                handle = await noop.using(connection=session).aenqueue(n)
                await session.execute(ORDER, {"n": n, "task_id": handle.id})
                ids.append(handle.id)
            say("ids", ",".join(map(str, ids)))
            if await asyncio.to_thread(hear) == "commit":
                break
            await session.rollback()
            say("rollback")
        before = time.time()
        await session.commit()
        say("commit", before, time.time())
        await asyncio.to_thread(hear)
    await engine.dispose()


async def forever_async() -> None:
    engine = create_async_engine(URL.replace("pymysql", "asyncmy").replace("mysqldb", "asyncmy"))
    async with AsyncSession(engine) as session:
        for n in itertools.count():
            handle = await noop.using(connection=session).aenqueue(n)
            await session.execute(ORDER, {"n": n, "task_id": handle.id})
            await session.commit()
            say(handle.id)


def main(kind: str, count: str) -> None:
    if kind == "async":
        asyncio.run(forever_async() if count == "forever" else obey_async(int(count)))
        return
    engine = sa.create_engine(URL)
    with engine.connect() if kind == "connection" else Session(engine) as owner:
        if count == "forever":
            forever_with(owner)
        else:
            obey_with(owner, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
