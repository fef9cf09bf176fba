"""Contract of inserting: ids, times, keys, and the caller's own transaction."""

from __future__ import annotations

import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tandemq.core.errors import IdempotencyConflict, InvalidType
from tandemq.core.lifecycle import Status
from tandemq.core.retry import QueuePolicy
from tandemq.core.task import Task, epoch_ms
from tandemq.store import SqlStore
from tandemq.testing import FakeClock
from tests.contract.store_contract import (
    OpenStore,
    Sql,
    StoreContract,
    bury,
    claim,
    insert,
    lease,
    row,
    settle,
    succeed,
)

KEY: dict[str, Any] = {"idempotency_key": "order-1"}
#: Pairs that a collation takes for one: case, trailing blank, accent, emoji, Unicode forms.
LOOKALIKES = [
    ("Order-1", "order-1"),
    ("k1", "k1 "),
    ("é", "e"),
    ("😀", "😁"),
    (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    ("k" * 254 + "a", "k" * 254 + "b"),
]


class ProducingContract(StoreContract):
    def test_rows_come_back_as_they_were_stored(self, store: SqlStore) -> None:
        payload = '{"z":1,"a":"😀漢字\\u0000","big":123456789012345678901234567890,"quote":"\\"\'%s %d \\\\"}'
        (answer,) = store.insert([row(payload=payload, options='{"timeout":1.5}', queue="q.1", priority=-7)])
        task = store.get(answer.id)

        assert task is not None
        assert (task.payload, task.options, task.queue, task.priority) == (payload, '{"timeout":1.5}', "q.1", -7)
        assert (answer.created, answer.queue, answer.priority, answer.due_ms) == (True, "q.1", -7, None)
        assert (task.status, task.state, task.attempts, task.worker_id) == (Status.PENDING, "ready", 0, None)
        assert (task.started_at, task.completed_at, task.expires_at, task.result) == (None, None, None, None)

    def test_ids_of_many_rows_are_in_input_order(self, store: SqlStore) -> None:
        answers = store.insert([row(payload=f'{{"n":{n}}}') for n in range(1000)])

        assert [a.id for a in answers] == sorted({a.id for a in answers})
        for n in (0, 1, 499, 999):
            task = store.get(answers[n].id)
            assert task is not None
            assert task.payload == f'{{"n":{n}}}'

    def test_the_times_that_are_asked_for_are_those_of_each_row(self, store: SqlStore) -> None:
        at = datetime(2040, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
        rows = [
            row(),
            row(delay_s=60.0),
            row(**KEY),
            row(expires_s=90.0),
            row(run_at=at, expires_at=at + timedelta(days=1)),
            row(delay_s=120.0, idempotency_key="order-2"),
            row(),
            row(**KEY),
        ]

        answers = store.insert(rows, times=True)

        for one, answer in zip(rows[:-1], answers, strict=False):
            assert answer.times is not None
            assert Task.just_inserted(one, answer.id, answer.times) == store.get(answer.id)
        assert (answers[-1].id, answers[-1].created, answers[-1].times) == (answers[2].id, False, None)
        assert store.insert([row(**KEY)], times=True)[0].times is None
        assert store.insert(rows[:1])[0].times is None

    def test_ids_are_right_while_others_insert_too(self, store: SqlStore) -> None:
        def some(worker: int) -> list[tuple[int, str]]:
            rows = [row(payload=f'{{"w":{worker},"n":{n}}}') for n in range(25)]
            return [(a.id, r.payload) for a, r in zip(store.insert(rows), rows, strict=True)]

        with ThreadPoolExecutor(4) as pool:
            inserted = dict(pair for pairs in pool.map(some, range(12)) for pair in pairs)

        assert len(inserted) == 300
        for task_id, payload in list(inserted.items())[::17]:
            task = store.get(task_id)
            assert task is not None
            assert task.payload == payload

    def test_a_big_batch_is_cut_into_statements_and_stays_atomic(self, store: SqlStore) -> None:
        insert(store, **KEY)
        big = '{"text":"' + "x" * 300_000 + '"}'

        with pytest.raises(IdempotencyConflict):
            store.insert([row(payload=big)] * 8 + [row(payload='{"other":1}', **KEY)])
        answers = store.insert([row(payload=big)] * 8)

        assert len({a.id for a in answers}) == 8
        assert store.counts()["queues"]["default"]["ready"] == 9

    # Times

    def test_run_at_is_never_stored_in_the_past(self, timed: SqlStore, clock: FakeClock) -> None:
        (answer,) = timed.insert([row(run_at=clock.now() - timedelta(days=400))])
        task = timed.get(answer.id)

        assert task is not None
        assert task.run_at == clock.now()
        assert answer.due_ms is None

    def test_times_keep_their_microseconds(self, timed: SqlStore, clock: FakeClock) -> None:
        clock.advance(0.123457)
        at = datetime(2031, 5, 6, 7, 8, 9, 98765, tzinfo=UTC)
        later, delayed = timed.insert([row(run_at=at, expires_at=at + timedelta(seconds=1)), row(delay_s=0.25)])
        first, second = timed.get(later.id), timed.get(delayed.id)

        assert first is not None
        assert second is not None
        assert (first.run_at, first.expires_at) == (at, at + timedelta(seconds=1))
        assert later.due_ms == epoch_ms(at)
        assert abs(second.run_at - clock.now() - timedelta(seconds=0.25)) <= timedelta(microseconds=1)
        assert delayed.due_ms == epoch_ms(second.run_at)
        assert abs(second.created_at - clock.now()) <= timedelta(microseconds=1)

    def test_expiry_in_seconds_counts_from_the_databases_now(self, timed: SqlStore, clock: FakeClock) -> None:
        (answer,) = timed.insert([row(expires_s=2.5)])
        task = timed.get(answer.id)

        assert task is not None
        assert task.expires_at is not None
        assert abs(task.expires_at - clock.now() - timedelta(seconds=2.5)) <= timedelta(microseconds=1)

    def test_rows_are_due_in_the_order_they_were_inserted(self, store: SqlStore) -> None:
        ids = [insert(store)[0] for _ in range(20)] + insert(store, 20)

        assert store.oldest_due(store.open_levels()[0], limit=100, older_than_s=0) == ids

    # Keys

    def test_the_same_key_and_payload_return_the_same_task(self, store: SqlStore) -> None:
        (first,) = store.insert([row(payload='{"a":1,"b":[2]}', **KEY)])
        (again,) = store.insert([row(payload='{"b": [2], "a": 1}', queue="other", max_retries=9, **KEY)])

        assert (again.id, again.created, again.queue) == (first.id, False, "default")

    @pytest.mark.parametrize("changes", [{"payload": '{"order":2}'}, {"payload": '{"order":1.0}'}, {"task_type": "x"}])
    def test_a_key_of_another_task_is_a_conflict_and_nothing_is_stored(
        self, store: SqlStore, changes: dict[str, str]
    ) -> None:
        (first,) = store.insert([row(**KEY)])

        with pytest.raises(IdempotencyConflict, match=str(first.id)) as refused:
            store.insert([row(), row(**(KEY | changes)), row(idempotency_key="another")])

        assert refused.value.task_id == first.id
        assert store.counts()["queues"]["default"]["ready"] == 1

    def test_a_setting_returns_the_first_task_instead(self, open_store: OpenStore) -> None:
        store = open_store(key_conflict="first")
        (first,) = store.insert([row(**KEY)])
        (again,) = store.insert([row(payload='{"order":2}', **KEY)])

        assert (again.id, again.created) == (first.id, False)

    def test_two_rows_of_one_call_may_share_a_key(self, store: SqlStore) -> None:
        one, plain, two = store.insert([row(**KEY), row(), row(**KEY)])

        assert one.id == two.id != plain.id
        assert (one.created, two.created) == (True, False)

    def test_an_existing_task_tells_when_it_is_due_and_what_it_is(self, store: SqlStore) -> None:
        (first,) = store.insert([row(delay_s=60, **KEY)])
        (second,) = store.insert([row(idempotency_key="done")])
        settle(store, (claim(store, [second.id]).leases[0], succeed()))

        again, done = store.insert([row(**KEY), row(idempotency_key="done")])

        assert (again.due_ms, again.status) == (first.due_ms, Status.PENDING)
        assert (done.id, done.due_ms, done.status) == (second.id, None, Status.SUCCEEDED)

    @pytest.mark.parametrize(("one", "other"), LOOKALIKES)
    def test_keys_are_compared_byte_for_byte(self, store: SqlStore, one: str, other: str) -> None:
        first, second = store.insert([row(idempotency_key=one), row(idempotency_key=other)])
        task = store.get(second.id)

        assert first.id != second.id
        assert (first.created, second.created) == (True, True)
        assert task is not None
        assert task.idempotency_key == other
        assert store.insert([row(idempotency_key=one)])[0].id == first.id

    def test_fifty_callers_with_one_key_make_one_task(self, store: SqlStore) -> None:
        start = threading.Barrier(50)

        def enqueue(_: int) -> tuple[int, bool]:
            start.wait()
            (answer,) = store.insert([row(**KEY)])
            return answer.id, answer.created

        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(enqueue, range(50)))

        assert len({task_id for task_id, _ in answers}) == 1
        assert sum(created for _, created in answers) == 1

    def test_crossed_keys_of_two_callers_are_no_deadlock_for_anybody(self, store: SqlStore) -> None:
        keys = [f"k{n}" for n in range(20)]

        def enqueue(turn: int) -> list[int]:
            order = keys if turn % 2 else keys[::-1]
            answers = store.insert([row(idempotency_key=k) for k in order])
            return sorted(a.id for a in answers)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(enqueue, range(16)))

        assert all(ids == found[0] for ids in found)

    def test_a_key_is_free_once_its_row_is_purged_and_not_before_a_day(self, timed: SqlStore, clock: FakeClock) -> None:
        one = lease(timed, **KEY)
        settle(timed, (one, bury()))

        clock.advance(24 * 3600 - 1)
        assert timed.purge([one.id]) == []
        clock.advance(2)
        assert timed.purge([one.id]) == [one.id]
        assert timed.insert([row(**KEY)])[0].created

    # The caller's own transaction

    def test_a_connections_rollback_takes_the_tasks_along(self, store: SqlStore, callers: sa.Engine, sql: Sql) -> None:
        called: list[str] = []
        with callers.connect() as connection:
            store.insert([row(), row(**KEY)], connection=connection)
            store.after_commit(connection, lambda: called.append("pushed"))
            connection.rollback()
            (kept,) = store.insert([row(payload='{"n":"😀"}')], connection=connection)
            assert store.visible([kept.id]) == set()
            connection.commit()

        assert sql("SELECT id FROM tandemq_tasks") == [(kept.id,)]
        assert store.visible([kept.id]) == {kept.id}
        assert called == []
        task = store.get(kept.id)
        assert task is not None
        assert task.to_json()["payload"] == {"n": "😀"}

    def test_a_connection_tells_of_its_commit_once(self, store: SqlStore, callers: sa.Engine) -> None:
        called: list[str] = []
        with callers.connect() as connection:
            store.insert([row()], connection=connection)
            store.after_commit(connection, lambda: called.append("one"))
            store.after_commit(connection, lambda: called.append("two"))
            connection.commit()
            store.insert([row()], connection=connection)
            connection.commit()

        assert called == ["one", "two"]

    def test_a_session_tells_after_its_commit_and_not_at_a_savepoint(self, store: SqlStore, callers: sa.Engine) -> None:
        seen: list[set[int]] = []
        with Session(callers) as session:
            with session.begin_nested():
                (answer,) = store.insert([row()], connection=session)
                store.after_commit(session, lambda: seen.append(store.visible([answer.id])))
            assert seen == []
            session.commit()
            session.commit()

        assert seen == [{answer.id}]

    def test_a_session_that_is_rolled_back_or_closed_tells_nothing(self, store: SqlStore, callers: sa.Engine) -> None:
        called: list[str] = []
        for end in (Session.rollback, Session.close):
            session = Session(callers)
            store.insert([row()], connection=session)
            store.after_commit(session, lambda: called.append("pushed"))
            end(session)
            session.execute(sa.text("SELECT 1"))
            session.commit()
            session.close()

        assert called == []
        assert store.open_levels() == []

    def test_a_scoped_session_is_taken_too(self, store: SqlStore, callers: sa.Engine) -> None:
        sessions = scoped_session(sessionmaker(callers))
        (answer,) = store.insert([row()], connection=sessions)
        sessions.commit()
        sessions.remove()

        assert store.visible([answer.id]) == {answer.id}

    def test_an_error_after_the_commit_does_not_reach_the_caller(self, store: SqlStore, callers: sa.Engine) -> None:
        with Session(callers) as session:
            (answer,) = store.insert([row()], connection=session)
            store.after_commit(session, lambda: 1 / 0)  # type: ignore[arg-type]
            session.commit()

        assert store.visible([answer.id]) == {answer.id}

    def test_keys_work_in_the_callers_transaction_and_leave_it_usable(
        self, store: SqlStore, callers: sa.Engine, sql: Sql
    ) -> None:
        (first,) = store.insert([row(**KEY)])
        with callers.connect() as connection:
            mine, again = store.insert([row(), row(**KEY)], connection=connection)
            with pytest.raises(IdempotencyConflict):
                store.insert(
                    [row(), row(idempotency_key="a"), row(payload='{"order":2}', **KEY)], connection=connection
                )
            connection.commit()

        assert (again.id, again.created) == (first.id, False)
        assert sql("SELECT id FROM tandemq_tasks ORDER BY id") == [(first.id,), (mine.id,)]

    def test_delays_work_in_the_callers_transaction(self, store: SqlStore, callers: sa.Engine) -> None:
        with callers.connect() as connection:
            (answer,) = store.insert([row(delay_s=60.5, expires_s=90)], connection=connection)
            connection.commit()
        task = store.get(answer.id)

        assert task is not None
        assert abs((task.run_at - task.created_at).total_seconds() - 60.5) < 0.01
        assert answer.due_ms == epoch_ms(task.run_at)

    def test_what_is_no_connection_is_refused(self, store: SqlStore) -> None:
        with pytest.raises(InvalidType, match="SQLAlchemy Connection or Session, not str"):
            store.insert([row()], connection="mysql://")

    def test_queue_policies_are_what_operators_wrote(self, store: SqlStore, sql: Sql) -> None:
        sql(
            "INSERT INTO tandemq_queues (queue, max_retries, policy) VALUES ('mail', 7, NULL), ('plain', NULL, NULL),"
            " ('slow', NULL, '{\"jitter\": 0, \"nonsense\": 1}'), ('broken', 2, 'not JSON')"
        )

        assert store.queue_policies() == {
            "mail": QueuePolicy(7),
            "slow": QueuePolicy(None, {"jitter": 0}),
            "broken": QueuePolicy(2),
        }
