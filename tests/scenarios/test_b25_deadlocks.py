"""B25: rows that somebody else locks, and deadlocks with his transactions, cost time and nothing else.

Required, with 16 slots on short tasks, an enqueuer, retention, a dashboard's reads and the reconciler at work, and a
side script that updates 20 random rows in descending id order in one transaction, over and over: no process exits, no
task fails or runs twice, nobody is told of a deadlock or a lock wait, and at full size more than half as much gets
done as without the side script.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pymysql
import pytest

from tests.probe import Probe
from tests.scenarios.sizes import FULL, size
from tests.scenarios.truth import assert_settled
from tests.servers import MySQLServer
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200), pytest.mark.usefixtures("calm")]

TASKS = size(1500, 5000)
SCRIPTS, ROWS = 3, 20
#: They pick among so many rows that come next, and take one after the other, this far apart.
NEXT, APART_S = 200, 0.001


class Side:
    """A thread that does something over and over; what it raises fails the test."""

    def __init__(self, turn: Callable[[], object]) -> None:
        self.turns = 0
        self.error: BaseException | None = None
        self._turn, self._over = turn, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._turn()
                self.turns += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Side:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.error is None, self.error
        assert self.turns


class SideScript:
    """Someone else's transactions: random rows of those in work, the highest id first, against everybody's order."""

    def __init__(self, server: MySQLServer, database: str, seed: int) -> None:
        self._connection = server.connect(database, autocommit=False)
        self._rng = random.Random(seed)
        self.committed = self.lost = 0

    def turn(self) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT id FROM tandemq_tasks WHERE ended = 0 ORDER BY run_at, id LIMIT {NEXT}")
            ids = [task_id for (task_id,) in cursor.fetchall()]
            self._connection.commit()
            try:
                for task_id in sorted(self._rng.sample(ids, min(ROWS, len(ids))), reverse=True):
                    cursor.execute("UPDATE tandemq_tasks SET priority = priority + 0 WHERE id = %s", (task_id,))
                    time.sleep(APART_S)
                self._connection.commit()
                self.committed += 1
            except pymysql.err.OperationalError as error:
                if error.args[0] not in {1213, 1205, 1020}:
                    raise
                self._connection.rollback()
                self.lost += 1


def deadlocks(server: MySQLServer) -> int:
    """How many the server has seen; -1 where it does not count them."""
    found = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    return int(found[0][1]) if found else -1


@contextmanager
def everybody(work: Bench) -> Iterator[list[int]]:
    """An enqueuer, retention and a dashboard; the ids that the enqueuer was given."""
    ids: list[int] = []

    def enqueue() -> None:
        ids.append(work.app.enqueue("sleep", {"seconds": 0.001}).id)
        ids.extend(work.ids("noop", 3))
        time.sleep(0.02)

    def look() -> None:
        work.app.stats()
        work.app.workers()
        work.app.why(ids[-1] if ids else 1)
        time.sleep(0.02)

    def prune() -> None:
        work.app.prune(3600, limit=500)
        time.sleep(0.05)

    with Side(enqueue), Side(look), Side(prune):
        yield ids


def drain(work: Bench, ids: list[int]) -> float:
    """Tasks a second, from the first start to the last end, of tasks that are waiting already."""
    begun = time.monotonic()
    assert work.ended(ids, 300) == {"succeeded": len(ids)}
    return len(ids) / (time.monotonic() - begun)


def work_through_locks(work: Bench, probe: Probe, server: MySQLServer) -> None:
    """The scenario; B26 takes it too."""
    database = work.settings.database_url.rsplit("/", 1)[1].partition("?")[0]
    for _ in range(2):
        work.worker("-c", "8").ready()
    every: list[int] = []
    rate = 0.0
    if FULL:
        with everybody(work) as more:
            first = work.ids("noop", TASKS)
            rate = drain(work, first)
        every += first + more
    ids = work.ids("noop", TASKS)
    before = deadlocks(server)
    scripts = [SideScript(server, database, seed) for seed in range(SCRIPTS)]
    with everybody(work) as more, ExitStack() as stack:
        for script in scripts:
            stack.enter_context(Side(script.turn))
        disturbed = drain(work, ids)
    every += ids + more
    assert work.ended(every) == {"succeeded": len(every)}
    print(
        f"{len(every)} tasks, {disturbed:.0f} a second beside the scripts ({rate:.0f} without);"
        f" these committed {sum(s.committed for s in scripts)} and lost {sum(s.lost for s in scripts)} times;"
        f" {deadlocks(server) - before} deadlocks"
    )
    assert all(script.committed for script in scripts)
    probe.assert_once(every)
    assert_settled(work, probe, every)
    for worker in work.workers:
        for word in ("1213", "1205", "1020", "Deadlock", "Lock wait", "has changed since", "is away"):
            assert word not in worker.text(), worker.text()[-3000:]
    if FULL:
        assert disturbed > 0.5 * rate


def test_rows_locked_in_descending_order(work: Bench, probe: Probe, mysql_server: MySQLServer) -> None:
    work_through_locks(work, probe, mysql_server)
