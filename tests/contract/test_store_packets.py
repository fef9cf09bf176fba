"""What can go wrong around a packet of several statements: late, unreadable and half-way answers, foreign sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandemq import TandemQ
from tandemq.core.errors import StoreRefused, StoreUnavailable, StoreUnknown
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect, engines
from tandemq.store.database import LockWait
from tandemq.store.migrate import migrate
from tandemq.store.transaction import OwnTx, Step
from tests.contract.store_contract import claim, insert, lost, settle, succeed
from tests.proxy import Proxy
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually

NAMED = {"known": frozenset({"shop.pay"}), "queues": frozenset({"default"})}


def states(store: SqlStore) -> list[tuple[str, int]]:
    found = store.db.read(lambda tx: tx.rows(f"SELECT status, attempts FROM {store.sql.tasks} ORDER BY id"))
    return [tuple(row) for row in found]


def garble(store: SqlStore, task_id: int, column: str = "payload") -> None:
    """A text that MariaDB stores and Python cannot read: half of a surrogate pair, as CESU-8 programs write it."""
    sql = f"UPDATE {store.sql.tasks} SET {column} = CONVERT(x'7BEDA0807D' USING utf8mb4) WHERE id = {task_id}"
    store.db.write(lambda tx: tx.write(sql))


def test_a_claim_that_arrives_after_it_was_given_back_is_refused(
    settings: Settings, store: SqlStore, mysql_server: MySQLServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole claim is one packet: a network that holds it back must not have it claim for nobody later on."""
    plain = engines.build
    monkeypatch.setattr(engines, "build", lambda url, clock: plain(url, clock, read_timeout_s=1))
    far = connect(
        replace(settings, database_url=settings.database_url.replace(f":{mysql_server.port}/", f":{proxy.port}/"))
    )
    ids = insert(store, 2, max_retries=0)
    far.ping()
    proxy.hold(b"SKIP LOCKED", 3.0)
    with pytest.raises((StoreUnknown, StoreUnavailable)):
        claim(far, ids, token=4711, **NAMED)
    assert states(store) == [("pending", 0)] * 2

    store.give_back(4711, ids)

    log = mysql_server.general_log
    log(True)
    eventually(lambda: "INSERT INTO tandemq_claims" in mysql_server.read_general_log(), 60)
    log(False)
    open_now = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
    eventually(lambda: mysql_server.sql(open_now) == [(0,)], 60)
    assert states(store) == [("pending", 0)] * 2
    assert len(claim(store, ids, **NAMED).leases) == 2
    far.close()


def test_a_row_that_cannot_be_read_costs_only_itself(store: SqlStore) -> None:
    ids = insert(store, 3)
    garble(store, ids[1])
    with pytest.raises(StoreUnknown, match="cannot be read"):
        claim(store, ids, token=4711, **NAMED)
    assert states(store) in ([("running", 1)] * 3, [("pending", 0)] * 3)  # the server may not be through with it

    store.give_back(4711, ids)

    assert states(store) == [("pending", 0)] * 3
    with pytest.raises(StoreRefused, match="cannot be read"):  # no COMMIT in this packet: nothing was claimed
        claim(store, ids, **NAMED)
    assert states(store) == [("pending", 0)] * 3
    assert len(claim(store, [ids[0], ids[2]], **NAMED).leases) == 2


def test_a_row_that_cannot_be_read_does_not_keep_its_token_from_ending(store: SqlStore) -> None:
    ids = insert(store, 3)
    leases = claim(store, ids, token=4711).leases
    garble(store, ids[1])

    settled = store.end_lease(4711, ids, judge=lost, worker_id="w1", expired_only=False)

    assert settled is not None
    assert [move.id for move in settled.moved] == [lease.id for lease in leases]


@pytest.mark.parametrize("commits", [True, False])
def test_an_answer_that_lacks_a_statement_may_have_been_committed(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """A proxy that answers only the first statement of a packet."""
    plain = OwnTx.__init__

    class Forgetful:
        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor

        def nextset(self) -> None:
            return None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

    ids = insert(store)
    monkeypatch.setattr(OwnTx, "__init__", lambda self, cursor, *a, **k: plain(self, Forgetful(cursor), *a, **k))
    select = Step(f"SELECT 1 FROM {store.sql.tasks}")

    def work(tx: OwnTx) -> object:
        return tx.commit(select, select) if commits else tx.send(select, select)

    with pytest.raises(StoreUnknown if commits else StoreRefused, match=r"answered 1 of"):
        store.db.write(work)
    monkeypatch.undo()
    assert store.ending(ids[0])


def test_a_renewal_is_sent_again_at_once(far: SqlStore, proxy: Proxy) -> None:
    (one,) = claim(far, insert(far)).leases
    (two,) = claim(far, insert(far)).leases
    proxy.swallow(b"UPDATE")  # one token: a statement that commits by itself
    assert far.renew([one.token], worker_id="w1", lease_s=30) == {one.token}
    proxy.swallow(b"COMMIT")
    assert far.renew([one.token, two.token], worker_id="w1", lease_s=30) == {one.token, two.token}
    assert proxy.hits == 2


def test_a_statement_that_failed_leaves_no_transaction_behind(
    store: SqlStore, mysql_server: MySQLServer, settings: Settings
) -> None:
    """1205 leaves the transaction open: the next BEGIN on that connection would commit the half of it."""
    ids = insert(store, 2)
    database = settings.database_url.rpartition("/")[2]
    other = mysql_server.connect(database=database)
    with other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM tandemq_tasks WHERE id = %s FOR UPDATE", (ids[1],))
        move = f"UPDATE {store.sql.tasks} SET attempts = attempts + 1 WHERE id = {{}}"

        def half(tx: OwnTx) -> None:
            tx.write(move.format(ids[0]))
            tx.write(move.format(ids[1]))

        with pytest.raises(LockWait):
            store.db.write(half, lock_waits=0)
        open_now = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
        mine = store.db.read(lambda tx: tx.one("SELECT CONNECTION_ID()"))[0]
        assert mysql_server.sql(open_now + f" AND trx_mysql_thread_id = {mine}") == [(0,)]
    other.rollback()
    other.close()
    insert(store)
    assert states(store) == [("pending", 0)] * 3


def test_a_server_that_turns_autocommit_off_for_its_users_loses_nothing(
    own_mysql: Callable[..., MySQLServer], own_redis: Callable[..., RedisServer]
) -> None:
    """init_connect runs after the login, and not for SUPER; PyMySQL does not learn of it."""
    server, redis_server = own_mysql("--init-connect=SET autocommit=0"), own_redis()
    name = server.create_database()
    for host in ("localhost", "127.0.0.1", "%"):
        server.sql(f"CREATE USER app@'{host}' IDENTIFIED BY ''")
        server.sql(f"GRANT ALL ON {name}.* TO app@'{host}'")
    migrate(Settings(database_url=server.url(name), redis_url="redis://nowhere"))
    app = TandemQ(database_url=server.url(name).replace("root@", "app@"), redis_url=redis_server.url())
    asked = app.store.db.read(lambda tx: tx.one("SELECT @@autocommit, CURRENT_USER()"))
    assert asked[0] == 1
    assert asked[1].startswith("app@")

    ids = [app.enqueue("shop.pay", {"n": n}).id for n in range(3)]

    assert sorted(i for (i,) in server.sql("SELECT id FROM tandemq_tasks", database=name)) == ids
    (lease,) = claim(app.store, ids[:1], **NAMED).leases
    assert app.store.renew([lease.token], worker_id="w1", lease_s=600) == {lease.token}
    left = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), expires_at) FROM tandemq_claims"
    assert server.sql(left, database=name)[0][0] > 300
    assert settle(app.store, (lease, succeed())).moved
    app.close()
