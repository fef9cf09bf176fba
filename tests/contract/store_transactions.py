"""The store contract: a handler's own transaction."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from tandemq.core.errors import LeaseLost
from tandemq.core.lifecycle import Bury, DeadReason, RetryIn, Status, Succeed
from tandemq.core.settings import Settings
from tandemq.core.task import NewRow
from tandemq.store import SqlStore
from tandemq.store.handling import TaskTransaction
from tests import recipes
from tests.contract.store_contract import FAILURE, LOST, Sql, StoreContract, claim, lease, settle

RECORDED = Succeed(recorded=True)


def note(tx: TaskTransaction, n: int) -> None:
    tx.connection.execute(sa.text("INSERT INTO effects (n) VALUES (:n)"), {"n": n})


class TransactionsContract(StoreContract):
    @pytest.fixture(autouse=True)
    def effects(self, store: SqlStore, settings: Settings, sql: Sql) -> None:
        sql("CREATE TABLE effects (n INTEGER NOT NULL)")
        if recipes.is_limited(settings):
            recipes.own_table(sql, "effects")

    def test_what_the_handler_wrote_and_the_success_commit_together(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        note(tx, 1)
        tx.succeed(one, '{"a":1}')
        tx.close()
        task = store.get(one.id)
        assert task is not None
        assert (task.status, task.result, sql("SELECT n FROM effects")) == (Status.SUCCEEDED, '{"a":1}', [(1,)])
        assert task.completed_at is not None

    def test_the_worker_counts_it_and_closes_the_lease_afterwards(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        tx.succeed(one, None)
        tx.close()
        assert not store.counts()["ended"].get("succeeded")
        assert sql("SELECT COUNT(*) FROM tandemq_claims") == [(1,)]
        settled = settle(store, (one, RECORDED))
        assert ([m.id for m in settled.moved], settled.fenced, settled.locked) == ([one.id], (), ())
        assert store.counts()["ended"]["succeeded"] == 1
        assert sql("SELECT COUNT(*) FROM tandemq_claims") == [(0,)]

    def test_recorded_and_ordinary_verdicts_share_a_flush(self, store: SqlStore) -> None:
        ids = [i.id for i in store.insert([NewRow("shop.pay", "{}", "default", 0, 3)] * 3)]
        first, second, third = claim(store, ids).leases
        tx = store.transaction(None)
        tx.succeed(first, None)
        tx.close()
        settled = settle(store, (first, RECORDED), (second, Succeed("2")), (third, RetryIn(5.0, FAILURE)))
        assert {m.id: m.status for m in settled.moved} == {
            first.id: Status.SUCCEEDED,
            second.id: Status.SUCCEEDED,
            third.id: Status.PENDING,
        }
        assert store.counts()["ended"]["succeeded"] == 2

    def test_a_lost_lease_rolls_everything_back(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        store.end_lease(one.token, [one.id], judge=lambda _: RetryIn(0.0, LOST), worker_id="r", expired_only=False)
        (other,) = claim(store, [one.id]).leases
        tx = store.transaction(10.0)
        note(tx, 1)
        with pytest.raises(LeaseLost):
            tx.succeed(one, None)
        tx.close()
        assert sql("SELECT n FROM effects") == []
        assert store.ending(one.id)[0] is Status.RUNNING
        assert settle(store, (other, Succeed())).succeeded

    def test_nothing_is_left_of_a_transaction_that_was_closed(self, store: SqlStore, sql: Sql) -> None:
        for broken in (False, True):
            tx = store.transaction(10.0)
            note(tx, 1)
            tx.close(broken=broken)
        assert sql("SELECT n FROM effects") == []

    def test_the_handler_cannot_commit_by_itself(self, store: SqlStore, sql: Sql) -> None:
        tx = store.transaction(10.0)
        note(tx, 1)
        with pytest.raises(RuntimeError, match="committed by tandemq"):
            tx.connection.commit()
        tx.close()
        assert sql("SELECT n FROM effects") == []

    @pytest.mark.parametrize("then", ["passes it on", "goes on", "rolls back"])
    def test_a_refused_commit_leaves_nothing_for_the_next_handler(self, store: SqlStore, sql: Sql, then: str) -> None:
        one, other = lease(store), lease(store)
        tx = store.transaction(10.0)
        note(tx, 1)
        with pytest.raises(RuntimeError):
            tx.connection.commit()
        if then == "rolls back":
            tx.connection.rollback()
        if then != "passes it on":
            with pytest.raises(RuntimeError, match="committed by tandemq"):
                tx.succeed(one, None)
        tx.close()
        tx = store.transaction(10.0)
        tx.succeed(other, None)
        tx.close()
        assert sql("SELECT n FROM effects") == []

    def test_a_session_on_it_may_commit_which_does_not_commit_it(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        with Session(tx.connection) as session:
            session.execute(sa.text("INSERT INTO effects (n) VALUES (1)"))
            session.commit()
        assert sql("SELECT n FROM effects") == [] or store.db.dialect.name == "sqlite"
        tx.succeed(one, None)
        tx.close()
        assert sql("SELECT n FROM effects") == [(1,)]

    def test_a_handler_that_closes_it_is_told(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        with tx.connection:
            note(tx, 1)
        with pytest.raises(RuntimeError, match="has closed tx"):
            tx.succeed(one, None)
        tx.close()
        assert sql("SELECT n FROM effects") == []

    def test_what_the_handler_rolls_back_is_gone_and_the_rest_stands(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        note(tx, 1)
        tx.connection.rollback()
        note(tx, 2)
        with tx.connection.begin_nested() as savepoint:
            note(tx, 3)
            savepoint.rollback()
        tx.succeed(one, None)
        tx.close()
        assert sql("SELECT n FROM effects") == [(2,)]

    def test_a_task_enqueued_on_it_is_there_with_the_commit_and_not_before(self, store: SqlStore, sql: Sql) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        (inserted,) = store.insert([NewRow("shop.next", "{}", "default", 0, 3)], connection=tx.connection)
        assert store.get(inserted.id) is None
        tx.succeed(one, None)
        tx.close()
        assert store.ending(inserted.id)[0] is Status.PENDING

    @pytest.mark.parametrize(
        "verdict", [RetryIn(0.0, LOST, doubtful=True), Bury(DeadReason.LEASE_LOST, LOST, doubtful=True)]
    )
    def test_a_doubtful_verdict_finds_out_that_it_was_committed(self, store: SqlStore, verdict: RetryIn | Bury) -> None:
        one = lease(store)
        tx = store.transaction(10.0)
        tx.succeed(one, None)
        tx.close()
        settled = settle(store, (one, verdict))
        assert ([m.status for m in settled.moved], settled.fenced) == ([Status.SUCCEEDED], ())
        assert store.ending(one.id)[0] is Status.SUCCEEDED
        assert store.counts()["ended"]["succeeded"] == 1

    def test_a_doubtful_verdict_finds_out_that_it_was_not(self, store: SqlStore) -> None:
        one = lease(store)
        settle(store, (one, RetryIn(0.0, LOST, doubtful=True)))
        assert store.ending(one.id)[0] is Status.PENDING

    def test_a_verdict_without_doubt_does_not_pass_for_a_success(self, store: SqlStore) -> None:
        one = lease(store)
        settle(store, (one, Succeed()))
        assert settle(store, (one, RetryIn(0.0, LOST))).fenced == (one.id,)
