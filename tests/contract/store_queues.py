"""The store contract: what operators decide about queues."""

from __future__ import annotations

from tandemq.core.audit import Deed
from tandemq.core.retry import QueuePolicy
from tandemq.store import SqlStore
from tests.contract.store_contract import StoreContract


class QueuesContract(StoreContract):
    def test_a_decision_replaces_the_one_before_and_is_audited(self, store: SqlStore) -> None:
        first = QueuePolicy(7, {"backoff": {"kind": "delays", "delays": [1.0]}, "jitter": "full", "max_age": 60.5})
        for policy in (first, QueuePolicy(None, {"seed": "mail"})):
            store.set_queue_policy("mail", policy, deed=Deed(action="queue_policy", who="ada", reason="slow"))
            assert store.queue_policies() == {"mail": policy}
        store.set_queue_policy("mail", QueuePolicy(), deed=Deed(action="queue_policy", who="bob"))
        assert store.queue_policies() == {}
        assert [(r.who, r.action, r.n) for r in store.audit().items] == [
            ("bob", "queue_policy", 1),
            ("ada", "queue_policy", 1),
            ("ada", "queue_policy", 1),
        ]
