"""What the store does when MySQL goes away, turns read-only, loses an answer or holds a lock."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from tandemq.core.errors import (
    ConfigurationError,
    EnqueueUnknown,
    IdempotencyConflict,
    NotMigrated,
    PayloadTooLarge,
    StoreBusy,
    StoreUnavailable,
    StoreUnknown,
)
from tandemq.core.lifecycle import RetryIn, Status, Succeed
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.answers import Settled
from tandemq.store.migrate import migrate
from tandemq.store.transaction import Tx
from tests.contract.store_contract import claim, fail, insert, lease, lost, row, settle, succeed
from tests.proxy import Proxy
from tests.servers import MySQLServer
from tests.waiting import eventually

Server = Callable[..., MySQLServer]
KEY = {"idempotency_key": "k"}


def _settings(url: str, **changes: object) -> Settings:
    return Settings(database_url=url, redis_url="redis://nowhere", **changes)  # type: ignore[arg-type]


def _count(store: SqlStore) -> int:
    return sum(q["ready"] for q in store.counts()["queues"].values())


def _connection_id(store: SqlStore) -> int:
    return int(store.db.read(lambda tx: tx.one("SELECT CONNECTION_ID()"))[0])


def _connection_ids(store: SqlStore, count: int) -> set[int]:
    """Of so many connections of the pool, in use at one time."""
    together = threading.Barrier(count)

    def one(_: int) -> int:
        def work(tx: Tx) -> int:
            together.wait()
            return int(tx.one("SELECT CONNECTION_ID()")[0])

        return store.db.read(work)

    with ThreadPoolExecutor(count) as pool:
        return set(pool.map(one, range(count)))


class TestALostAnswerToCommit:
    def test_a_committed_insert_is_found_by_its_ids(self, far: SqlStore, store: SqlStore, proxy: Proxy) -> None:
        proxy.swallow(b"COMMIT")
        answers = far.insert([row(), row(delay_s=60), row(payload='{"x":"😀"}')])

        assert proxy.hits == 1
        assert store.visible([a.id for a in answers]) == {a.id for a in answers}
        assert [a.created for a in answers] == [True] * 3
        assert answers[1].due_ms is not None

    def test_an_insert_that_is_nowhere_is_unknown_and_not_sent_again(
        self, far: SqlStore, store: SqlStore, proxy: Proxy
    ) -> None:
        proxy.stop_before(b"COMMIT")
        with pytest.raises(EnqueueUnknown, match="may or may not be stored"):
            far.insert([row(), row(**KEY)])

        assert _count(store) == 0

    def test_an_insert_with_keys_alone_is_sent_again(self, far: SqlStore, store: SqlStore, proxy: Proxy) -> None:
        proxy.stop_before(b"COMMIT")
        (one,) = far.insert([row(**KEY)])
        proxy.swallow(b"COMMIT")
        (two,) = far.insert([row(idempotency_key="other")])

        assert (one.created, two.created) == (True, True)
        assert store.insert([row(**KEY)])[0].id == one.id
        assert store.insert([row(idempotency_key="other")])[0].id == two.id
        assert _count(store) == 2

    def test_an_insert_whose_server_stays_away_is_unknown(self, far: SqlStore, proxy: Proxy) -> None:
        proxy.refuse = True
        proxy.swallow(b"COMMIT")
        with pytest.raises(EnqueueUnknown):
            far.insert([row(**KEY)])

    @pytest.mark.parametrize("fault", [Proxy.swallow, Proxy.stop_before])
    def test_a_claim_is_given_back_whether_it_happened_or_not(
        self, far: SqlStore, store: SqlStore, proxy: Proxy, fault: Callable[[Proxy, bytes], None]
    ) -> None:
        ids = insert(store, 3)
        fault(proxy, b"COMMIT")
        with pytest.raises(StoreUnknown) as unknown:
            claim(far, ids, token=4711)
        given_back = far.give_back(4711, ids)

        assert unknown.value.unknown
        assert len(given_back.moved) in {0, 3}
        # The server may still be rolling back what the cut left, and its rows are locked so long.
        assert [x.attempt for x in eventually(lambda: claim(store, ids).leases)] == [1, 1, 1]
        assert store.renew([4711], worker_id="w1", lease_s=30) == set()

    @pytest.mark.parametrize("fault", [Proxy.swallow, Proxy.stop_before])
    def test_a_finish_is_sent_again_by_the_worker(
        self, far: SqlStore, store: SqlStore, proxy: Proxy, fault: Callable[[Proxy, bytes], None]
    ) -> None:
        one, two = claim(store, insert(store, 2)).leases
        fault(proxy, b"COMMIT")
        with pytest.raises(StoreUnknown):
            settle(far, (one, succeed("1")), (two, fail()))

        def sent_again() -> Settled | None:  # by a worker as long as the server still rolls back what the cut left
            settled = settle(far, (one, succeed("1")), (two, fail()))
            return None if settled.locked else settled

        settled = eventually(sent_again)
        assert settled is not None
        assert ([m.id for m in settled.moved], settled.fenced) == ([one.id, two.id], ())
        assert store.counts()["ended"]["succeeded"] == 1
        assert store.counts()["ended"]["retried"] == 1

    def test_a_cancel_is_sent_again_and_counted_once(self, far: SqlStore, proxy: Proxy) -> None:
        (task_id,) = insert(far)
        proxy.swallow(b"COMMIT")

        assert far.cancel(task_id) == "cancelled"
        assert far.counts()["ended"]["cancelled"] == 1


class TestALostConnection:
    @pytest.mark.parametrize("pattern", [b"INSERT INTO tandemq_tasks", b"SELECT"])
    def test_a_cut_before_commit_is_not_seen(self, far: SqlStore, proxy: Proxy, pattern: bytes) -> None:
        proxy.swallow(pattern)
        ids = insert(far, 2)
        proxy.swallow(pattern)

        assert far.visible(ids) == set(ids)
        assert proxy.hits >= 1
        assert _count(far) == 2

    def test_killed_connections_are_replaced_without_a_word(
        self, store: SqlStore, mysql_server: MySQLServer, database: str
    ) -> None:
        def kill_all() -> None:
            find = "SELECT id FROM information_schema.processlist WHERE db = %s"
            for (thread,) in mysql_server.sql(find, (database,)):
                mysql_server.sql(f"KILL {thread}")

        one = lease(store)
        kill_all()
        assert store.renew([one.token], worker_id="w1", lease_s=30) == {one.token}
        kill_all()
        assert settle(store, (one, succeed())).moved
        kill_all()
        assert len(insert(store, 3)) == 3

    def test_a_server_that_is_away_is_unavailable_and_then_back(self, far: SqlStore, proxy: Proxy) -> None:
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(StoreUnavailable, match=r"unavailable \(mysql\+\w+://\*\*\*@127") as away:
            far.ping()
        assert not away.value.unknown
        with pytest.raises(StoreUnavailable):
            insert(far)
        proxy.refuse = False

        assert len(insert(far, 2)) == 2

    def test_a_killed_server_keeps_what_was_accepted(self, own_mysql: Server) -> None:
        server = own_mysql()
        settings = _settings(server.url(server.create_database()))
        migrate(settings)
        store = connect(settings)
        ids = insert(store, 5)
        one, *_ = claim(store, ids).leases
        server.kill9()
        with pytest.raises(StoreUnavailable):
            store.ping()
        server.start()

        assert settle(store, (one, succeed()), closing=False).moved
        assert store.renew([one.token], worker_id="w1", lease_s=30) == {one.token}
        store.close()

    def test_a_read_only_server_is_unavailable_and_its_connections_go(self, own_mysql: Server) -> None:
        server = own_mysql()
        name = server.create_database()
        migrate(_settings(server.url(name)))
        server.sql("CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret word'")
        server.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO app@'127.0.0.1'")
        store = connect(_settings(server.url(name).replace("root@", "app:secret%20word@")))
        one = lease(store)
        before = _connection_ids(store, 3)
        server.sql("SET GLOBAL read_only = 1")
        for attempt in (
            lambda: insert(store),
            lambda: settle(store, (one, succeed())),
            lambda: store.renew([one.token], worker_id="w1", lease_s=30),
        ):
            with pytest.raises(StoreUnavailable) as refused:
                attempt()
            assert "secret" not in str(refused.value)
        server.sql("SET GLOBAL read_only = 0")

        assert settle(store, (one, succeed())).moved
        # After a failover a connection that is kept would be one to the old primary.
        assert not before & _connection_ids(store, 3)
        store.close()

    def test_an_idle_connection_that_the_server_closed_is_replaced(
        self, store: SqlStore, mysql_server: MySQLServer, database: str
    ) -> None:
        store.db.write(lambda tx: tx.write("SET SESSION wait_timeout = 1"))
        find = "SELECT id FROM information_schema.processlist WHERE db = %s"
        eventually(lambda: not mysql_server.sql(find, (database,)))

        assert len(insert(store, 2)) == 2

    def test_a_forked_child_opens_its_own_connections(
        self, store: SqlStore, mysql_server: MySQLServer, database: str
    ) -> None:
        (task_id,) = insert(store)
        mine = _connection_id(store)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if store.visible([task_id]) == {task_id} and _connection_id(store) != mine else 1)
            finally:
                os._exit(2)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (store.visible([task_id]), _connection_id(store)) == ({task_id}, mine)
        find = (
            "SELECT id FROM information_schema.processlist WHERE db = %s"  # the child's goes a moment after the child
        )
        eventually(lambda: len(mysql_server.sql(find, (database,))) == 1)

    def test_a_signal_in_the_middle_of_a_read_costs_the_connection_only(self, store: SqlStore) -> None:
        class Interrupt(Exception):
            pass

        def interrupted(tx: object) -> None:
            raise Interrupt

        before = _connection_id(store)
        with pytest.raises(Interrupt):
            store.db.write(interrupted)

        assert _connection_id(store) != before


def _login(settings: Settings, user: str) -> str:
    return re.sub(r"(?<=://)[^@]*", user, settings.database_url)


class TestWhatCannotWork:
    def test_a_wrong_password_is_told_without_the_password(self, settings: Settings) -> None:
        store = connect(replace(settings, database_url=_login(settings, "nobody:pass%23w")))
        with pytest.raises(StoreUnavailable, match="refused the connection") as refused:
            store.ping()

        assert "pass" not in str(refused.value).replace("using password", "")

    def test_an_unknown_database_is_told(self, settings: Settings) -> None:
        store = connect(replace(settings, database_url=settings.database_url + "_nope"))
        with pytest.raises(StoreUnavailable, match="nope"):
            store.ping()
        with pytest.raises(ConfigurationError, match="names no database"):
            connect(replace(settings, database_url=settings.database_url.rpartition("/")[0] + "/"))

    def test_missing_tables_say_how_to_make_them(self, mysql_url: str) -> None:
        store = connect(_settings(mysql_url))
        for attempt in (lambda: insert(store), store.check_schema, store.install_id, store.open_levels):
            with pytest.raises(NotMigrated, match="run: tandemq migrate"):
                attempt()
        store.close()

    def test_a_missing_grant_is_told(self, settings: Settings, mysql_server: MySQLServer, database: str) -> None:
        mysql_server.sql("CREATE USER IF NOT EXISTS reader@'127.0.0.1'")
        mysql_server.sql(f"GRANT SELECT ON {database}.* TO reader@'127.0.0.1'")
        store = connect(replace(settings, database_url=_login(settings, "reader")))
        assert store.epoch() == 0
        with pytest.raises(StoreUnavailable, match="INSERT command denied"):
            insert(store)
        store.close()

    def test_what_is_over_the_packet_limit_is_refused_before_it_is_sent(self, own_mysql: Server) -> None:
        server = own_mysql("--max-allowed-packet=1M")
        settings = _settings(server.url(server.create_database()))
        migrate(settings)
        store = connect(settings)
        quotes = '{"x":"' + '\\"' * 350_000 + '"}'
        with pytest.raises(PayloadTooLarge, match="max_allowed_packet is 1048576"):
            store.insert([row(), row(payload=quotes)])
        assert _count(store) == 0

        answers = store.insert([row(payload='{"x":"' + "y" * 600_000 + '"}')] * 3)
        one, two, three = claim(store, [a.id for a in answers]).leases
        settled = settle(store, (one, Succeed('"' + "\\" * 700_000 + '"')), (two, succeed("2")), (three, fail()))

        assert [m.id for m in settled.moved] == [one.id, two.id, three.id]
        task = store.get(one.id)
        assert task is not None
        assert (task.status, task.result, task.error_type) == (Status.SUCCEEDED, None, "ResultNotStorable")
        assert (store.ending(two.id) or ("", ""))[1] == "2"
        store.close()


class TestLocks:
    @pytest.fixture
    def in_statement(self, mysql_server: MySQLServer, database: str) -> Callable[..., None]:
        """``in_statement("DELETE FROM ..", 2)``: wait until so many sessions are in the middle of such a statement."""
        find = "SELECT id FROM information_schema.processlist WHERE db = %s AND info LIKE %s"

        def wait(beginning: str, sessions: int = 1) -> None:
            eventually(lambda: len(mysql_server.sql(find, (database, beginning + "%"))) >= sessions)

        return wait

    @pytest.fixture
    def other(self, mysql_server: MySQLServer, database: str) -> Iterator[pymysql.cursors.Cursor]:
        """A program that holds locks: a transaction of its own."""
        connection = mysql_server.connect(database, autocommit=False)
        yield connection.cursor()
        connection.rollback()
        connection.close()

    def test_a_locked_row_does_not_hold_up_a_flush(self, store: SqlStore, other: pymysql.cursors.Cursor) -> None:
        leases = claim(store, insert(store, 5)).leases
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (leases[2].id,))
        settled = settle(store, *((x, succeed()) for x in leases))

        assert settled.locked == (leases[2].id,)
        assert [m.id for m in settled.moved] == [x.id for x in leases if x is not leases[2]]
        assert store.renew([leases[0].token], worker_id="w1", lease_s=30) == {leases[0].token}
        other.connection.rollback()
        assert [m.id for m in settle(store, (leases[2], succeed())).moved] == [leases[2].id]
        assert store.renew([leases[0].token], worker_id="w1", lease_s=30) == set()
        assert store.counts()["ended"]["succeeded"] == 5

    def test_a_locked_row_of_somebody_else_is_fenced_and_not_locked(
        self, store: SqlStore, other: pymysql.cursors.Cursor
    ) -> None:
        old = lease(store)
        settle(store, (old, fail(0)))
        claim(store, [old.id])
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (old.id,))
        settled = settle(store, (old, fail()))

        assert (settled.locked, settled.fenced) == ((), (old.id,))

    def test_claiming_skips_what_others_hold(self, store: SqlStore, other: pymysql.cursors.Cursor) -> None:
        ids = insert(store, 3)
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (ids[1],))
        other.execute("INSERT INTO tandemq_tasks (task_type, payload) VALUES ('x', '{}')")
        uncommitted = other.lastrowid
        claimed = claim(store, [*ids, uncommitted])

        assert [x.id for x in claimed.leases] == [ids[0], ids[2]]
        assert claimed.dropped == (ids[1], uncommitted)

    def test_a_lease_with_a_locked_row_is_ended_in_part_and_stays(
        self, store: SqlStore, other: pymysql.cursors.Cursor
    ) -> None:
        one, two = claim(store, insert(store, 2), lease_s=0).leases
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (one.id,))
        settled = store.end_lease(one.token, [one.id, two.id], judge=lost, worker_id="r", expired_only=True)

        assert settled is not None
        assert (settled.locked, [m.id for m in settled.moved]) == ((one.id,), [two.id])
        assert [c.token for c in store.expired_claims(9)] == [one.token]
        # The other task is somebody else's by now: its old worker must not believe in its lease again.
        assert store.renew([one.token], worker_id="w1", lease_s=30) == set()
        other.connection.rollback()
        rest = store.end_lease(one.token, [one.id, two.id], judge=lost, worker_id="r", expired_only=True)
        assert rest is not None
        assert [m.id for m in rest.moved] == [one.id]
        assert store.expired_claims(9) == []

    def test_a_renewal_that_waits_for_the_end_of_its_lease_is_lost(
        self, store: SqlStore, other: pymysql.cursors.Cursor, in_statement: Callable[..., None]
    ) -> None:
        one = lease(store)
        other.execute("DELETE FROM tandemq_claims WHERE lease_token = %s", (one.token,))
        renewed: list[set[int]] = []
        renewing = threading.Thread(target=lambda: renewed.append(store.renew([one.token], worker_id="w1", lease_s=30)))
        renewing.start()
        in_statement("UPDATE tandemq_claims")
        other.connection.commit()
        renewing.join()

        assert renewed == [set()]

    def test_the_end_of_a_lease_that_waits_for_its_renewal_is_given_up(
        self, store: SqlStore, other: pymysql.cursors.Cursor, in_statement: Callable[..., None]
    ) -> None:
        one = lease(store)
        other.execute("UPDATE tandemq_claims SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
        other.connection.commit()
        other.execute("UPDATE tandemq_claims SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 30 SECOND")
        ended: list[object] = []
        ending = threading.Thread(
            target=lambda: ended.append(
                store.end_lease(one.token, [one.id], judge=lost, worker_id="r", expired_only=True)
            )
        )
        ending.start()
        in_statement("DELETE FROM tandemq_claims")
        other.connection.commit()
        ending.join()

        assert ended == [None]
        assert (store.ending(one.id) or ("",))[0] is Status.RUNNING

    def test_a_key_waits_for_an_uncommitted_one_and_takes_over_after_a_rollback(
        self, store: SqlStore, other: pymysql.cursors.Cursor, in_statement: Callable[..., None]
    ) -> None:
        other.execute("INSERT INTO tandemq_tasks (task_type, payload, idempotency_key) VALUES ('shop.pay', '{}', 'k')")
        answers: list[bool] = []
        waiting = [
            threading.Thread(target=lambda: answers.append(store.insert([row(**KEY)])[0].created)) for _ in "abc"
        ]
        for thread in waiting:
            thread.start()
        in_statement("INSERT INTO tandemq_tasks", 3)
        other.connection.rollback()
        for thread in waiting:
            thread.join()

        assert sorted(answers) == [False, False, True]

    def test_who_is_not_patient_waits_for_a_key_once_and_hears_that_it_is_held(
        self, store: SqlStore, other: pymysql.cursors.Cursor
    ) -> None:
        other.execute("INSERT INTO tandemq_tasks (task_type, payload, idempotency_key) VALUES ('shop.pay', '{}', 'k')")
        waits: list[int] = []
        real = store.db.write

        def write(work: Any, *, lock_waits: int, crash: str = "") -> Any:
            def counted(tx: Any) -> Any:
                waits.append(1)
                return work(tx)

            return real(counted, lock_waits=lock_waits, crash=crash)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.db, "write", write)
            with pytest.raises(StoreBusy):
                store.insert([row(**KEY)], patient=False)
        other.connection.rollback()

        assert len(waits) == 1
        assert store.insert([row(**KEY)], patient=False)[0].created

    def test_a_key_of_an_uncommitted_other_task_is_a_conflict_once_it_commits(
        self, store: SqlStore, other: pymysql.cursors.Cursor, in_statement: Callable[..., None]
    ) -> None:
        other.execute("INSERT INTO tandemq_tasks (task_type, payload, idempotency_key) VALUES ('shop.pay', '{}', 'k')")
        raised: list[BaseException] = []

        def enqueue() -> None:
            try:
                store.insert([row(**KEY)])
            except IdempotencyConflict as error:
                raised.append(error)

        waiting = threading.Thread(target=enqueue)
        waiting.start()
        in_statement("INSERT INTO tandemq_tasks")
        other.connection.commit()
        waiting.join()

        assert len(raised) == 1

    def test_a_lock_that_outlasts_one_wait_is_waited_for_again(
        self, store: SqlStore, other: pymysql.cursors.Cursor
    ) -> None:
        (task_id,) = insert(store)
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (task_id,))
        release = threading.Timer(3.5, other.connection.rollback)
        release.start()

        assert store.cancel(task_id) == "cancelled"
        release.join()

    def test_an_orphan_is_not_judged_while_it_is_locked(self, store: SqlStore, other: pymysql.cursors.Cursor) -> None:
        one = lease(store)
        settle(store, closing=False)
        store.finish([], closing=[one.token], worker_id="w1")
        other.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (one.id,))

        assert store.end_orphan(one.id, one.token, judge=lost).locked == (one.id,)
        other.connection.rollback()
        assert [m.id for m in store.end_orphan(one.id, one.token, judge=lost).moved] == [one.id]
        assert store.end_orphan(10**9, 1, judge=lambda _: RetryIn(0, None)).locked == ()  # type: ignore[arg-type]
