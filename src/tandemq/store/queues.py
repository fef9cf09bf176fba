"""What operators decide about queues."""
# ruff: noqa: S608 - table names and the pieces of the dialect are put in; values are bound parameters

from __future__ import annotations

from collections.abc import Mapping

from tandemq.core.audit import Deed
from tandemq.core.codec import encode
from tandemq.core.retry import QueuePolicy
from tandemq.store.auditing import AuditingStore
from tandemq.store.transaction import Tx


class QueuesStore(AuditingStore):
    """The queues' part of ``store.protocol``."""

    def queue_policies(self) -> Mapping[str, QueuePolicy]:
        """How the tasks of a queue are retried, where an operator has decided that."""
        rows = self.db.read(lambda tx: tx.rows(self.queries.queue_policies()))
        return {queue: QueuePolicy.read(retries, text) for queue, retries, text in rows}

    def set_queue_policy(self, queue: str, policy: QueuePolicy, *, deed: Deed) -> None:
        """Write it, in one transaction with its audit row; an empty policy takes back what was decided."""
        text = encode(dict(policy.options), "policy") if policy.options else None

        def work(tx: Tx) -> int:
            d, columns = tx.dialect, ("max_retries", "policy", "updated_at")
            tx.write(
                f"INSERT INTO {self.sql.queues} (queue, max_retries, policy, updated_at)"
                f" VALUES ({d.p}, {d.p}, {d.p}, {d.now}) {d.overwrite('queue', columns)}",
                [queue, policy.max_retries, text],
            )
            return self._note(tx, deed, 1)

        deed.entry = self.db.write(work)
