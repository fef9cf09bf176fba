"""What operators decide about queues: how their tasks are retried where neither the enqueue nor the task says so."""

from __future__ import annotations

from collections.abc import Mapping

from tandemq.acting import acting
from tandemq.core import values
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.retry import QueuePolicy, RetryPolicy, on_the_task_only, policy_options
from tandemq.links import Links


class Queues:
    """``app.queues``. Producers read this every ten seconds; rows that are stored keep what they have."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def policies(self) -> Mapping[str, QueuePolicy]:
        """The decisions there are, by queue."""
        return self._links.store.queue_policies()

    def set_policy(
        self, queue: str, policy: RetryPolicy | None, *, reason: str = "", who: str | None = None
    ) -> QueuePolicy:
        """Decide (None: decide nothing any more), in one transaction with a row of the audit log.

        What the policy leaves at its default is not decided. InvalidTask for what cannot travel: callables and
        exception classes live on the task.
        """
        name = values.queue_name(queue)
        decided = QueuePolicy() if policy is None else _decided(policy)
        details = {"queue": name, "max_retries": decided.max_retries, **decided.options}
        self._links.store.set_queue_policy(name, decided, deed=acting("queue_policy", who, reason, details=details))
        return decided


def _decided(policy: RetryPolicy) -> QueuePolicy:
    if not isinstance(policy, RetryPolicy):
        raise InvalidType(f"policy must be a RetryPolicy, not {type(policy).__name__}", field="policy")
    if names := on_the_task_only(policy):
        raise InvalidTask(f"the policy of a queue cannot carry {', '.join(names)}: set it on the task", field="policy")
    return QueuePolicy(policy.max_retries, policy_options(policy))
