"""Where two actors race: real MariaDB and Redis, one clock by hand, two processes' worth of connections, one witness.

An actor is held at a crash point in its thread while the other one runs to its end, or until it waits for a lock that
the first one holds. What must hold is read with plain SQL and plain Redis commands, never asked of the product.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import redis
import sqlalchemy as sa

from tandemq.core import crash
from tandemq.core.lifecycle import ENDED, Status, Succeed, Verdict
from tandemq.core.settings import Settings
from tandemq.core.task import Lease, NewRow
from tandemq.store.migrate import migrate
from tandemq.testing import FakeClock
from tandemq.worker.inbox import Held
from tests.chaos.races_actors import HELD_S, LEASE_S, LOW, RECONCILE_S, Side
from tests.servers import ExternalMySQL, MySQLServer, RedisServer

#: Of every task: a lost run is due again soon.
BACKOFF = '{"backoff": {"kind": "delays", "delays": [0.5]}, "jitter": 0}'
FINAL = {status.value: code for status, code in ENDED.items() if code}


class Row(NamedTuple):
    """What a task's row says, read by SQL of our own."""

    id: int
    status: str
    ended: int
    attempts: int
    replays: int
    fence: int
    token: int
    result: str | None
    cancel_asked: int
    later: int


class Stage:
    """Two sides over one database and one Redis, emptied before every race."""

    def __init__(self, settings: Settings) -> None:
        self.clock = FakeClock()
        self.tokens = iter(range(1, 1 << 62))
        #: Somebody has met a row that the other one holds, and tries again until it is free.
        self.locked_out = threading.Event()
        self.starts: list[Lease] = []
        self.ran: list[int] = []
        self.engine = sa.create_engine(settings.database_url, isolation_level="AUTOCOMMIT")
        self.raw = redis.Redis.from_url(settings.redis_url)
        self._settings = settings
        self._seams: list[tuple[Any, str]] = []
        self._sides = [Side(self, settings, name) for name in ("one", "two")]

    def noop(self, n: int = 0) -> None:
        """The only task: says that it ran."""
        self.ran.append(n)

    @property
    def one(self) -> Side:
        return self._sides[0]

    @property
    def two(self) -> Side:
        return self._sides[1]

    def empty(self) -> None:
        """Two fresh processes, no task, nothing in Redis."""
        for part, method in self._seams:
            vars(part).pop(method, None)
        self._seams.clear()
        for table in ("tasks", "claims", "task_attempts", "task_counts", "workers", "leaders"):
            self.sql(f"DELETE FROM tandemq_{table}")
        self.sql("DELETE FROM effects")
        self.raw.flushdb()
        self.locked_out.clear()
        for side in self._sides:
            side.renew()
        self.starts, self.ran = [], []

    def close(self) -> None:
        for side in self._sides:
            side.hand.close()
            side.app.close()
        self.raw.close()
        self.engine.dispose()

    # making

    def task(self, *, push: bool = True, **changes: Any) -> int:
        """A stored task, pushed as a producer does unless it is for later."""
        given = {
            "task_type": "noop",
            "payload": "{}",
            "queue": "default",
            "priority": 0,
            "max_retries": 3,
            "options": BACKOFF,
        }
        (made,) = self.one.store.insert([NewRow(**{**given, **changes})])
        if push and made.due_ms is None:
            self.one.app.broker.push(LOW, [made.id])
        elif push:
            self.one.app.broker.delay(LOW, {made.id: made.due_ms})
        return int(made.id)

    def held(self, side: Side, **changes: Any) -> Held:
        """A task that was popped and claimed by a side's hand."""
        task_id = self.task(**changes)
        (held,) = [h for h in side.hand.fetch() if h.lease.id == task_id]
        return held

    def dead(self, verdict: Verdict, **changes: Any) -> int:
        """A task that was run once and ended so."""
        held = self.held(self.one, **changes)
        self.one.settle(held.lease, verdict)
        self.clock.advance(0.1)
        return held.lease.id

    def copy(self, task_id: int) -> None:
        """The id once more in the list: Redis is a hint, copies happen."""
        self.raw.rpush(self.key("ready"), task_id)

    def lapse(self) -> None:
        """Every lease runs out."""
        self.clock.advance(LEASE_S - 0.5)  # in two steps: silence is no contact
        self.clock.advance(0.6)

    def seam(self, part: Any, method: str, point: str) -> None:
        """Pass a crash point at every call of this method, where the product has none; until the next race."""
        plain = getattr(part, method)

        def passing(*args: Any, **given: Any) -> Any:
            crash.crash_point(point)
            return plain(*args, **given)

        setattr(part, method, passing)
        self._seams.append((part, method))

    # looking

    def sql(self, text: str, **params: Any) -> list[Any]:
        """A statement of our own."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.text(text), params)
            return list(found.fetchall()) if found.returns_rows else []

    def rows(self) -> dict[int, Row]:
        """All tasks; ``later``: not due yet by the clock of the race."""
        now = self.clock.now().strftime("%Y-%m-%d %H:%M:%S.%f")
        found = self.sql(
            "SELECT id, status, ended, attempts, replays, fence, lease_token, result,"
            " cancel_requested_at > '1970-01-01', run_at > :now FROM tandemq_tasks",
            now=now,
        )
        return {row[0]: Row(*row) for row in found}

    def row(self, task_id: int) -> Row:
        """Of one task that must exist."""
        found = self.rows()
        assert task_id in found, f"task {task_id} is gone"
        return found[task_id]

    def claims(self) -> dict[int, set[int]]:
        """Ids by token, of every claims row that names some."""
        found = self.sql("SELECT lease_token, ids FROM tandemq_claims WHERE ids <> ''")
        return {token: set(map(int, ids.split(","))) for token, ids in found}

    def counted(self, outcome: str) -> int:
        """What ``task_counts`` has of it: one per move."""
        return int(self.sql("SELECT COALESCE(SUM(n), 0) FROM tandemq_task_counts WHERE outcome = :o", o=outcome)[0][0])

    def history(self, task_id: int) -> list[str]:
        """Outcomes of attempts that did not succeed."""
        where = "WHERE task_id = :i ORDER BY fence, outcome"
        return [r[0] for r in self.sql(f"SELECT outcome FROM tandemq_task_attempts {where}", i=task_id)]

    def key(self, kind: str) -> str:
        """A Redis key of the level that all tasks are in."""
        return f"{self._settings.namespace}:{{default}}:{kind}:0"

    def listed(self) -> list[int]:
        """The ready list, what is popped next first."""
        entries: Any = self.raw.lrange(self.key("ready"), 0, -1)
        return [int(entry) for entry in reversed(entries)]

    def delayed(self) -> list[int]:
        """The sorted set."""
        entries: Any = self.raw.zrange(self.key("delayed"), 0, -1)
        return [int(entry) for entry in entries]

    def is_blocked(self) -> bool:
        """Whether an actor cannot go on, because the other one holds a row."""
        if self.locked_out.is_set():
            return True
        # Not innodb_trx: that is a copy, and it is not made anew for whoever asks ten times a second.
        return self.sql("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1] != "0"

    # what holds after every race

    def check(self) -> None:
        """Every row is in one state, none runs without its claims row, none was started twice, moves were counted."""
        rows, claims = self.rows(), self.claims()
        for row in rows.values():
            assert row.ended == ENDED[Status(row.status)], f"{row} is in the wrong part of the index"
            if row.status == Status.RUNNING:
                assert row.id in claims.get(row.token, ()), f"{row} runs without a claims row: {claims}"
        starts = [(lease.id, lease.fence) for lease in self.starts]
        assert len(starts) == len(set(starts)), f"started twice under one fence: {starts}"
        ended = sum(bool(row.ended) + row.replays for row in rows.values()) + self.counted("purged")
        counted = {name: self.counted(name) for name in FINAL}
        assert sum(counted.values()) == ended, f"{ended} ends of tasks, counted as {counted}"

    def drain(self) -> None:
        """Heal and run until all is final: what cannot be found any more, or is stuck, shows here.

        What was cancelled stays so: no start of it follows.
        """
        healer, worker = self.one.reconciler(), self.two
        cancelled = {i for i, row in self.rows().items() if row.status == Status.CANCELLED}
        before = len(self.starts)
        for _ in range(12):
            healer.run_once(looks=2)
            self.clock.advance(RECONCILE_S)
            self.two.app.broker.promote(LOW, now_ms=int(self.clock.now().timestamp() * 1000), limit=100)
            while ids := worker.app.broker.pop([LOW], limit=100, wait_s=0).ids:
                for lease in worker.claim(*dict.fromkeys(ids)).leases:
                    worker.settle(lease, Succeed())
            if all(row.ended for row in self.rows().values()):
                break
        rows = self.rows()
        open_rows = [row for row in rows.values() if not row.ended]
        assert not open_rows, f"stuck: {open_rows}, in Redis: {self.listed()} {self.delayed()}, claims {self.claims()}"
        assert not self.claims(), "a claims row without a task in work"
        started = [lease.id for lease in self.starts[before:] if lease.id in cancelled]
        assert not started, f"cancelled, and started all the same: {started}"
        self.check()


def play(stage: Stage, held: Callable[[], Any], point: str, other: Callable[[], Any]) -> tuple[Any, Any]:
    """Hold the first at the point until the second has ended or is blocked by it; the answers, or the exceptions.

    AssertionError if the point was not passed: the race would have shown nothing.
    """
    reached, go = threading.Event(), threading.Event()
    answers: dict[str, Any] = {}

    def actor(name: str, act: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                answers[name] = act()
            except Exception as error:  # judged by the race
                answers[name] = error

        return threading.Thread(target=run, name=name, daemon=True)

    first, second = actor("held", held), actor("other", other)

    def hold() -> None:
        if threading.current_thread() is first and not reached.is_set():
            reached.set()
            go.wait(HELD_S)

    crash.arm_call(point, hold)
    try:
        first.start()
        give_up_at = time.monotonic() + HELD_S
        while not reached.wait(0.005) and first.is_alive() and time.monotonic() < give_up_at:
            pass
        assert reached.is_set(), f"never came to {point}: {answers.get('held')!r}"
        second.start()
        while second.is_alive() and not stage.is_blocked() and time.monotonic() < give_up_at:
            second.join(0.01)
        go.set()
        first.join(HELD_S)
        second.join(HELD_S)
    finally:
        go.set()
        crash.arm(None)
    assert {"held", "other"} == set(answers), f"an actor did not end: {answers}"
    return answers["held"], answers["other"]


@contextmanager
def open_stage(mysql: MySQLServer | None = None, redis_server: RedisServer | None = None) -> Iterator[Stage]:
    """On these servers, in a database of its own; without any, on two that are started for it."""
    own: list[MySQLServer | RedisServer] = []
    if mysql is None:
        own.append(mysql := MySQLServer())
        mysql.start()
    if redis_server is None:
        own.append(redis_server := RedisServer())
        redis_server.start()
    name = mysql.create_database()
    settings = Settings.load({}, database_url=mysql.url(name), redis_url=redis_server.url(), namespace="races")
    try:
        if not isinstance(mysql, ExternalMySQL):  # nobody kills it here: what is raced is not the disk
            mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        migrate(settings)
        mysql.sql(
            "CREATE TABLE effects (task_id BIGINT NOT NULL, run VARCHAR(20) NOT NULL) ENGINE=InnoDB", database=name
        )
        with closing(Stage(settings)) as stage:
            yield stage
    finally:  # also where the stage cannot be opened: the server is that of other tests
        mysql.drop_database(name)
        if not isinstance(mysql, ExternalMySQL):
            mysql.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        for server in own:
            server.discard()
