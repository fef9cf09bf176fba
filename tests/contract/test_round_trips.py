"""How many packets and statements the hot path sends: counted, not timed, so that a regression turns red anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tandemq import NewTask, TandemQ
from tandemq.core.lifecycle import Release
from tandemq.core.settings import Settings
from tandemq.store import SqlStore, connect
from tandemq.store.transaction import OwnTx
from tests import recipes
from tests.contract.store_contract import claim, fail, insert, settle, succeed

KNOWN = {"known": frozenset({"shop.pay"}), "queues": frozenset({"default"})}
AT_ONCE = [["BEGIN", "SELECT", "SET", "UPDATE", "SET", "INSERT", "COMMIT"]]


class _Spy:
    """A cursor that notes what goes into each packet."""

    def __init__(self, cursor: Any, packets: list[list[str]]) -> None:
        self._cursor, self._packets = cursor, packets

    def execute(self, text: str, params: Any) -> Any:
        self._packets.append([part.split()[0] for part in text.split(";")])
        return self._cursor.execute(text, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


Sent = Callable[[], Any]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """``with sent() as packets``: the first words of the statements of every packet sent inside."""
    packets: list[list[str]] = []
    plain = OwnTx.__init__

    def spied(self: OwnTx, cursor: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, _Spy(cursor, packets), *args, **kwargs)

    monkeypatch.setattr(OwnTx, "__init__", spied)

    @contextmanager
    def inside() -> Iterator[list[list[str]]]:
        packets.clear()
        yield packets

    return inside


@pytest.fixture
def redis_client(env: Settings) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(recipes.administrator(env.redis_url))
    yield client
    client.close()


@pytest.fixture
def store(env: Settings) -> Iterator[SqlStore]:
    store = connect(env)
    yield store
    store.close()


def test_a_single_enqueue_is_one_statement_and_one_push(env: Settings, sent: Sent, redis_client: redis.Redis) -> None:
    app = TandemQ(database_url=env.database_url, redis_url=env.redis_url, namespace=env.namespace)
    app.enqueue("shop.pay", {"order": 0})
    redis_client.config_resetstat()

    with sent() as packets:
        app.enqueue("shop.pay", {"order": 1})

    calls = {name: stats["calls"] for name, stats in redis_client.info("commandstats").items()}
    assert packets == [["INSERT"]]
    assert {name for name in calls if "config" not in name and "info" not in name} == {"cmdstat_lpush"}
    assert calls["cmdstat_lpush"] == 1
    app.close()


def test_a_thousand_are_one_insert_and_one_push(env: Settings, sent: Sent, redis_client: redis.Redis) -> None:
    app = TandemQ(database_url=env.database_url, redis_url=env.redis_url, namespace=env.namespace)
    app.enqueue("shop.pay", {"order": 0})
    redis_client.config_resetstat()

    with sent() as packets:
        app.enqueue_many([NewTask("shop.pay", {"order": n}) for n in range(1000)])

    assert packets == [["BEGIN", "INSERT", "SELECT"], ["COMMIT"]]
    assert redis_client.info("commandstats")["cmdstat_lpush"]["calls"] == 1
    app.close()


def test_a_keyed_enqueue_is_one_insert_and_its_commit(store: SqlStore, sent: Sent) -> None:
    insert(store)
    with sent() as packets:
        insert(store, idempotency_key="k")
    assert packets == [["BEGIN", "INSERT"], ["COMMIT"]]


@pytest.mark.parametrize("n", [1, 8])
def test_few_ids_are_claimed_by_one_packet(store: SqlStore, sent: Sent, n: int) -> None:
    ids = insert(store, n)
    with sent() as packets:
        assert len(claim(store, ids, free=8, **KNOWN).leases) == n
    assert packets == AT_ONCE


def test_many_ids_are_claimed_by_two_packets(store: SqlStore, sent: Sent) -> None:
    ids = insert(store, 200)
    with sent() as packets:
        assert len(claim(store, ids, free=8, **KNOWN).leases) == 200
    assert packets == [["BEGIN", "SELECT"], ["UPDATE", "INSERT", "COMMIT"]]


def test_a_stale_id_costs_two_packets_more(store: SqlStore, sent: Sent) -> None:
    ids = insert(store, 2)
    claim(store, ids[:1])
    with sent() as packets:
        assert claim(store, ids, free=8, **KNOWN).dropped == (ids[0],)
    assert packets == [*AT_ONCE, ["BEGIN", "SELECT"], ["UPDATE", "INSERT", "SELECT", "COMMIT"]]


@pytest.mark.parametrize("n", [1, 200])
def test_successes_are_finished_by_one_packet(store: SqlStore, sent: Sent, n: int) -> None:
    leases = claim(store, insert(store, n)).leases
    with sent() as packets:
        settle(store, *((lease, succeed('{"n":1}')) for lease in leases))
    assert packets == [["BEGIN", "UPDATE", "SET", "DELETE", "INSERT", "COMMIT"]]


def test_successes_of_several_batches_share_a_packet(store: SqlStore, sent: Sent) -> None:
    leases = [lease for _ in range(3) for lease in claim(store, insert(store, 5)).leases]
    with sent() as packets:
        settle(store, *((lease, succeed()) for lease in leases))
    assert packets == [["BEGIN", "UPDATE", "SET", "DELETE", "DELETE", "DELETE", "INSERT", "COMMIT"]]


@pytest.mark.parametrize("verdict", [fail(), Release()])
def test_other_verdicts_cost_as_many_packets_for_fifty_as_for_one(store: SqlStore, sent: Sent, verdict: Any) -> None:
    cost = []
    for n in (1, 50):
        leases = claim(store, insert(store, n)).leases
        with sent() as packets:
            settle(store, *((lease, verdict) for lease in leases))
        cost.append(list(packets))
    assert cost[0] == cost[1]
    assert len(cost[0]) <= 5


def test_renewing_many_tokens_is_one_packet(store: SqlStore, sent: Sent) -> None:
    tokens = {claim(store, insert(store)).leases[0].token for _ in range(20)}
    with sent() as packets:
        assert store.renew(tokens, worker_id="w1", lease_s=30.0) == tokens
    assert packets == [["BEGIN", *["UPDATE"] * 20, "COMMIT"]]


def test_reads_are_one_packet_and_no_transaction(store: SqlStore, sent: Sent) -> None:
    (task_id,) = insert(store)
    with sent() as packets:
        store.ping()
        store.ending(task_id)
    assert packets == [["SELECT"], ["SELECT"]]
