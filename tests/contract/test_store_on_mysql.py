"""What the contract cannot say of SQLite: sessions, plans, id steps, lock order, odd server settings."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tandemq.core.ids import lease_token
from tandemq.core.lifecycle import Release, SnoozeIn, Status, Verdict
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.answers import PruneRule
from tandemq.store.dialects import stamp
from tandemq.store.migrate import migrate
from tests.contract.store_contract import (
    DEFAULT,
    bury,
    claim,
    fail,
    insert,
    lost,
    row,
    settle,
    succeed,
)
from tests.servers import MySQLServer


def one_row(store: SqlStore, text: str) -> tuple[object, ...]:
    return tuple(store.db.read(lambda tx: tx.one(text)))


class TestSessions:
    def test_sessions_are_set_up_the_same_whatever_the_server_says(self, store: SqlStore) -> None:
        variables = (
            "time_zone innodb_lock_wait_timeout wait_timeout character_set_client character_set_connection sql_mode"
        )
        text = "SELECT " + ", ".join(f"@@session.{v}" for v in variables.split())
        isolation = dict(store.db.read(lambda tx: tx.rows("SHOW SESSION VARIABLES LIKE '%%isolation'")))
        idle = dict(store.db.read(lambda tx: tx.rows("SHOW SESSION VARIABLES LIKE 'idle_transaction_timeout'")))

        assert one_row(store, text) == (
            "+00:00",
            3,
            60,
            "utf8mb4",
            "utf8mb4",
            "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
        )
        assert {v for k, v in isolation.items() if k in {"tx_isolation", "transaction_isolation"}} == {"READ-COMMITTED"}
        assert set(idle.values()) <= {"10"}

    @pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mysql+pymysql", "mariadb+pymysql"])
    def test_every_scheme_of_the_settings_connects(self, settings: Settings, scheme: str) -> None:
        url = scheme + "://" + settings.database_url.partition("://")[2] + "?charset=latin1"
        store = connect(Settings(database_url=url, redis_url="redis://x"))
        (task_id,) = insert(store, payload='{"x":"😀"}')
        task = store.get(task_id)

        assert task is not None
        assert task.payload == '{"x":"😀"}'
        store.close()


class TestPlans:
    """EXPLAIN on a table of finished, running and waiting rows."""

    @pytest.fixture
    def filled(self, store: SqlStore) -> SqlStore:
        for queue in ("default", "other"):
            ids = insert(store, 400, queue=queue)
            settle(store, *((x, succeed()) for x in claim(store, ids[:300]).leases))
            leases = claim(store, ids[300:340]).leases
            settle(store, *((x, fail(0)) for x in leases[:20]), closing=False)
        store.db.write(lambda tx: tx.rows(f"ANALYZE TABLE {store.sql.tasks}"))
        return store

    def plan(self, store: SqlStore, text: str, *params: object) -> dict[str, object]:
        connection = store.db.engine.raw_connection()
        cursor = connection.cursor()
        cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + text, params)
        names = [column[0] for column in cursor.description]
        row = cursor.fetchone()
        connection.close()
        return dict(zip(names, row, strict=True))

    def test_the_window_is_read_from_the_open_index_in_order(self, filled: SqlStore) -> None:
        plan = self.plan(filled, filled.queries.oldest_due(), "default", 0, 0, 1000)

        assert plan["key"] == "open_rows"
        assert plan["type"] == "range"
        assert "filesort" not in str(plan["Extra"])
        assert len(filled.oldest_due(DEFAULT, limit=1000, older_than_s=0)) == 80

    def test_a_page_of_a_rebuild_is_read_from_the_open_index_in_order(self, filled: SqlStore) -> None:
        now = stamp(filled.now())
        plan = self.plan(filled, filled.queries.pending_of_level(), "default", 0, "2020-01-01", now, 5, 100)

        assert plan["key"] == "open_rows"
        assert "filesort" not in str(plan["Extra"])

    @pytest.mark.parametrize(
        ("query", "params"),
        [
            ("next_priority", ("default", -1)),
            ("next_queue", ("default",)),
            ("first_level", ()),
            ("any_due", ("default", 0)),
            ("past_their_end", ("default", 0, 100)),
        ],
    )
    def test_surveys_use_the_open_index(self, filled: SqlStore, query: str, params: tuple[object, ...]) -> None:
        plan = self.plan(filled, getattr(filled.queries, query)(), *params)

        assert plan["key"] == "open_rows"
        assert "filesort" not in str(plan["Extra"])

    def test_writes_go_through_the_primary_key(self, filled: SqlStore) -> None:
        ids = list(range(1, 700))
        pairs = [(i, 1 + i % 2) for i in ids]
        for text, params in (
            (filled.sql.claim_lock(ids), ()),
            (filled.sql.claim(ids), (1, "w")),
            (filled.sql.succeed(pairs, [], []), ()),
            (filled.sql.succeed([(i, 7) for i in ids], [], []), ()),
            (filled.sql.release(pairs), ()),
            (filled.sql.replay(ids), ()),
            (filled.sql.purge(ids), ()),
            (filled.sql.purge_attempts(), (301,)),
            (filled.queries.held(ids, wait=False, full=True), ()),
            (filled.queries.lock_for_purge(ids), (1,)),
            (filled.queries.lock_for_replay(ids, before=False), ()),
        ):
            assert self.plan(filled, text, *params)["key"] == "PRIMARY", text

    def test_claims_are_written_by_their_token_alone(self, filled: SqlStore) -> None:
        for text, params in (
            (filled.sql.renew(), (1, 7, "w")),
            (filled.sql.delete_claim(), (7,)),
            (filled.sql.delete_expired_claim(), (7,)),
        ):
            plan = self.plan(filled, text, *params)
            assert (plan["key"], plan["type"]) in {("PRIMARY", "range"), ("PRIMARY", "const")}, text

    def test_the_sweep_reads_a_bounded_stretch(self, filled: SqlStore) -> None:
        plan = self.plan(filled, filled.queries.running_between(), 100, 200)

        assert (plan["key"], plan["type"]) == ("PRIMARY", "range")


class TestServersOfAnyMood:
    def test_ids_follow_the_servers_step(self, own_mysql: Callable[..., MySQLServer]) -> None:
        server = own_mysql("--auto-increment-increment=3", "--auto-increment-offset=2")
        settings = Settings(database_url=server.url(server.create_database()), redis_url="redis://x")
        migrate(settings)
        store = connect(settings)
        answers = store.insert([row(payload=f'{{"n":{n}}}') for n in range(50)])

        assert [a.id for a in answers] == [2 + 3 * n for n in range(50)]
        for n in (0, 25, 49):
            task = store.get(answers[n].id)
            assert task is not None
            assert task.payload == f'{{"n":{n}}}'
        store.close()

    def test_zone_mode_charset_and_isolation_of_the_server_do_not_matter(
        self, own_mysql: Callable[..., MySQLServer]
    ) -> None:
        server = own_mysql(
            "--default-time-zone=+09:00",
            "--sql-mode=ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES",
            "--character-set-server=latin1",
            "--transaction-isolation=SERIALIZABLE",
            "--loose-innodb-snapshot-isolation=ON",
        )
        settings = Settings(database_url=server.url(server.create_database()), redis_url="redis://x")
        migrate(settings)
        store = connect(settings)
        text = '{"x":"\\\\ \\" \' 😀"}'
        (task_id,) = insert(store, payload=text)
        engine = sa.create_engine(server.url(settings.database_url.rpartition("/")[2]) + "?charset=latin1")
        with engine.begin() as connection:
            (own,) = store.insert([row(payload=text, delay_s=30)], connection=connection)
        engine.dispose()
        leases = claim(store, [task_id, own.id]).leases
        mine, theirs = store.get(task_id), store.get(own.id)

        assert [x.payload for x in leases] == [text]
        assert mine is not None
        assert theirs is not None
        assert theirs.to_json()["payload"] == mine.to_json()["payload"]
        assert abs((theirs.run_at - mine.run_at).total_seconds() - 30) < 5
        assert abs((store.now() - mine.run_at).total_seconds()) < 5
        store.close()

    def test_a_deadlock_in_the_callers_transaction_is_the_callers(self, store: SqlStore, settings: Settings) -> None:
        engine = sa.create_engine(settings.database_url)
        with engine.connect() as one, engine.connect() as two:
            store.insert([row(idempotency_key="a")], connection=one)
            store.insert([row(idempotency_key="b")], connection=two)
            met: list[BaseException] = []

            def cross() -> None:
                try:
                    store.insert([row(idempotency_key="b")], connection=one)
                except exc.OperationalError as error:
                    met.append(error)

            crossing = threading.Thread(target=cross)
            crossing.start()
            try:
                store.insert([row(idempotency_key="a")], connection=two)
            except exc.OperationalError as error:
                met.append(error)
            two.rollback()
            crossing.join()
            one.rollback()
        engine.dispose()

        assert [e.orig.args[0] for e in met if isinstance(e, exc.DBAPIError) and e.orig] == [1213]


def test_all_writers_at_once_make_no_deadlock(store: SqlStore, settings: Settings, mysql_server: MySQLServer) -> None:
    """Producers, claimers, cancels, replays, purges and ended leases on the same rows: the lock order holds."""
    seed = random.SystemRandom().randrange(10**6)
    ids = insert(store, 300)
    stop = threading.Event()
    failures: list[BaseException] = []
    before = _deadlocks(mysql_server)

    def repeat(act: Callable[[random.Random, SqlStore], object], number: int) -> None:
        rng, own = random.Random(seed + number), connect(settings)
        try:
            while not stop.is_set():
                act(rng, own)
        except BaseException as error:
            failures.append(error)
        finally:
            own.close()

    def work(rng: random.Random, own: SqlStore) -> None:
        lease_s = rng.choice([0.0, 0.0, 30.0])
        leases = claim(own, rng.sample(ids, 40), token=lease_token(), lease_s=lease_s).leases
        verdicts: list[Verdict] = [succeed(), fail(0), bury(), Release(), SnoozeIn(0), succeed("[]")]
        kept = [x for x in leases if rng.random() < 0.9]
        settle(own, *((x, rng.choice(verdicts)) for x in kept), closing=len(kept) == len(leases))

    def operate(rng: random.Random, own: SqlStore) -> None:
        some = rng.sample(ids, 30)
        own.replay(some)
        own.cancel(rng.choice(ids[:300]))
        own.replay(some)
        ids.extend(insert(own, 2))
        own.purge(rng.sample(ids[300:], min(5, len(ids) - 300)))
        own.prune(rng.sample(ids[300:], min(5, len(ids) - 300)), PruneRule(own.now(), (Status.DEAD, Status.SUCCEEDED)))

    def expire(rng: random.Random, own: SqlStore) -> None:
        for found in own.expired_claims(5):
            own.end_lease(found.token, found.ids, judge=lost, worker_id="r", expired_only=True)
            own.renew([found.token], worker_id="w1", lease_s=30)

    acts = [work, work, work, operate, operate, expire]
    threads = [threading.Thread(target=repeat, args=(act, n)) for n, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not failures:
        stop.wait(0.1)
    stop.set()
    for thread in threads:
        thread.join()

    assert failures == [], f"seed {seed}"
    assert _deadlocks(mysql_server) == before, f"seed {seed}"
    running = store.db.read(
        lambda tx: tx.one(
            "SELECT COUNT(*) FROM tandemq_tasks t LEFT JOIN tandemq_claims c USING (lease_token)"
            " WHERE t.status = 'running' AND c.lease_token IS NULL"
        )
    )
    assert running == (0,), f"seed {seed}: a running row without a claims row"


def test_retention_waits_for_nobody(store: SqlStore, mysql_server: MySQLServer, settings: Settings) -> None:
    """Rows that somebody holds are left to the next run."""
    leases = claim(store, insert(store, 3)).leases
    settle(store, *((x, succeed()) for x in leases))
    rule = PruneRule(store.now() + timedelta(seconds=1), (Status.SUCCEEDED,))
    ids = [x.id for x in leases]
    with mysql_server.connect(settings.database_url.rpartition("/")[2], autocommit=False) as other:
        other.cursor().execute(f"SELECT * FROM tandemq_tasks WHERE id = {ids[1]} FOR UPDATE")
        assert store.prune(ids, rule) == 2
        other.rollback()

    assert store.prune(ids, rule) == 1


def test_keys_in_crossed_orders_make_no_deadlock(store: SqlStore, mysql_server: MySQLServer) -> None:
    before = _deadlocks(mysql_server)
    start = threading.Barrier(6)

    def enqueue(turn: int) -> None:
        for n in range(10):
            keys = [f"{n}.{k}" for k in range(12)]
            start.wait()
            store.insert([row(idempotency_key=k) for k in (keys if turn % 2 else keys[::-1])])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(enqueue, range(6)))

    assert _deadlocks(mysql_server) == before


def _deadlocks(server: MySQLServer) -> int:
    rows = server.sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
    if rows:
        return int(rows[0][1])
    return int(server.sql("SELECT COUNT FROM information_schema.innodb_metrics WHERE NAME = 'lock_deadlocks'")[0][0])
