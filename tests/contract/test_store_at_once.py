"""The part of the store contract that claims, with claims that may go in one packet.

A worker names the types and queues that it can run, and claims few ids at once when it is idle; the contract's own
claims name none. Here each claim names all types and queues of its rows, so that one packet is tried first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.answers import Claimed
from tandemq.store.dialects import id_list
from tandemq.store.migrate import migrate
from tandemq.store.transaction import Mismatch, OwnTx, Step
from tandemq.testing import FakeClock
from tests.contract.store_contract import OpenStore, claim, insert, row
from tests.contract.store_leasing import LeasingContract
from tests.contract.store_settling import SettlingContract


def naming(store: SqlStore) -> SqlStore:
    """The store, whose claims name what the rows need unless the test names it."""
    plain = store.claim

    def named(ids: Sequence[int], **given: Any) -> Claimed:
        found = store.db.read(
            lambda tx: tx.rows(f"SELECT task_type, queue FROM {store.sql.tasks} WHERE id IN ({id_list(ids)})")
        )
        if given.get("known") is None:
            given["known"] = frozenset(kind for kind, _ in found)
        given.setdefault("queues", frozenset(queue for _, queue in found))
        return plain(ids, **given)

    store.claim = named  # type: ignore[method-assign]
    return store


class _AtOnce(LeasingContract, SettlingContract):
    @pytest.fixture
    def open_store(self, settings: Settings) -> Iterator[OpenStore]:
        opened: list[SqlStore] = []

        def make(clock: FakeClock | None = None, **changes: Any) -> SqlStore:
            opened.append(store := naming(connect(replace(settings, **changes), clock=clock)))
            return store

        yield make
        for store in opened:
            store.close()


class TestAtOnceOnMySql(_AtOnce):
    @pytest.fixture
    def settings(self, mysql_url: str) -> Settings:
        settings = Settings(database_url=mysql_url, redis_url="redis://nowhere")
        migrate(settings)
        return settings

    def test_a_batch_that_cannot_be_claimed_whole_is_claimed_by_two_packets(self, store: SqlStore) -> None:
        """One of each fault among good ones: nothing of the first try may stay."""
        good = insert(store, 3)
        (other_queue,) = insert(store, queue="elsewhere")
        (unknown,) = insert(store, task_type="unheard.of")
        (later,) = [i.id for i in store.insert([replace(row(), delay_s=60.0)])]
        wanted = [good[0], other_queue, good[1], unknown, later, good[2], 999_999]

        claimed = claim(store, wanted, known=frozenset({"shop.pay"}), queues=frozenset({"default"}))

        assert [lease.id for lease in claimed.leases] == good
        assert [task_id for _, task_id in claimed.put_back] == [other_queue]
        assert {late.id for late in claimed.not_due} == {unknown, later}
        assert claimed.dropped == (999_999,)
        found = store.db.read(lambda tx: tx.rows(f"SELECT attempts, fence FROM {store.sql.tasks} ORDER BY id"))
        assert [tuple(r) for r in found] == [(1, 1)] * 3 + [(0, 0)] * 3


class TestAtOnceOnSqlite(_AtOnce):
    @pytest.fixture
    def settings(self, tmp_path: Any) -> Settings:
        settings = Settings(database_url=f"sqlite:///{tmp_path}/t.db", redis_url="redis://nowhere")
        migrate(settings)
        return settings


@pytest.mark.parametrize("kind", ["mysql", "sqlite"])
def test_a_packet_stops_at_the_first_unmet_expectation(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    url = request.getfixturevalue("mysql_url") if kind == "mysql" else f"sqlite:///{tmp_path}/t.db"
    settings = Settings(database_url=url, redis_url="redis://nowhere")
    migrate(settings)
    store = connect(settings)
    ids = insert(store, 2)
    look = f"SELECT id FROM {store.sql.tasks} WHERE id IN ({id_list(ids)})"
    move = f"UPDATE {store.sql.tasks} SET attempts = attempts + 1 WHERE id IN ({id_list(ids)})"

    def attempts() -> set[int]:
        found = store.db.read(lambda tx: tx.rows(f"SELECT attempts FROM {store.sql.tasks}"))
        return {n for (n,) in found}

    def commit(*steps: Step) -> list[int]:
        def work(tx: OwnTx) -> list[int]:
            return [result.matched for result in tx.commit(*steps)]

        return store.db.write(work)

    for steps in (
        [Step(move, expect=3)],
        [Step(move, expect=1)],
        [Step(move), Step(look, expect=1), Step(move)],
        [Step(look, expect=3), Step(move)],
    ):
        with pytest.raises(Mismatch):
            commit(*steps)
        assert attempts() == {0}
    assert commit(Step(look, expect=2), Step(move, expect=2))[1] == 2
    assert attempts() == {1}
    store.close()
