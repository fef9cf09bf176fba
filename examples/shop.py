"""A small shop: orders are processed and mail is sent by a worker. From this folder:

    export TANDEMQ_APP=shop:app
    tandemq worker                                                # in one terminal
    tandemq enqueue order.process '{"order_id": 123}' --priority high
    tandemq enqueue order.process '{"order_id": 124, "action": "update", "changes": {"city": "Bern"}}'
    tandemq enqueue email.send '{"to": "ada@example.org", "subject": "Thanks"}' --key thanks-123
    tandemq list
    tandemq dead list                                             # every fifth order ends here after its retries
    tandemq dead replay 1

or, from Python, ``python shop.py``. Nothing needs to be set: without TANDEMQ_DATABASE_URL and TANDEMQ_REDIS_URL all of
it runs on the embedded default in ``./.tandemq``.
"""

from __future__ import annotations

from typing import Any

from tandemq import Failure, NonRetryable, RetryPolicy, TandemQ, TaskHandler, current_task

app = TandemQ()


class DatabaseError(Exception):
    """What a database driver raises when the shop's own database is away."""


@app.handler
class ProcessOrder(TaskHandler):
    """``{"order_id": 123, "action": "create" | "update", "changes": {...}}``"""

    name = "order.process"
    priority = "medium"
    timeout = 30
    retry = RetryPolicy(max_retries=3, backoff=[0.2, 0.4, 0.8])

    def validate(self, payload: dict[str, Any]) -> bool:
        """Refused here, an order is dead at once: trying again would not help."""
        order_id = payload.get("order_id")
        return type(order_id) is int and order_id > 0

    def process(self, payload: dict[str, Any]) -> dict[str, Any]:
        order_id, action = payload["order_id"], payload.get("action", "create")
        if action not in {"create", "update"}:
            raise NonRetryable(f"unknown action: {action}")
        if order_id % 5 == 0:
            raise DatabaseError("database connection failed")
        if action == "create":
            return {"order_id": order_id, "status": "created"}
        return {"order_id": order_id, "status": "updated", "changes": payload.get("changes", {})}

    def on_dead_letter(self, task_id: int, payload: dict[str, Any], error: Failure) -> None:
        """Where a shop would tell a human."""
        print(f"order {payload.get('order_id')} needs a look: task {task_id} is dead: {error.message}", flush=True)


@app.task(name="email.send", queue="mail", max_retries=5)
def send_email(to: str, subject: str, body: str = "") -> dict[str, Any]:
    """Sends nothing; an address without ``@`` is refused for good, which makes it a dead letter at once."""
    if "@" not in to:
        raise NonRetryable(f"not an address: {to!r}")
    # A receiver that remembers this reference sends the mail once, however often the task had to start again.
    return {"to": to, "subject": subject, "bytes": len(body.encode()), "reference": f"tandemq-{current_task().id}"}


if __name__ == "__main__":
    order = app.enqueue("order.process", {"order_id": 123}, priority="high")
    mail = send_email.using(idempotency_key="thanks-123").enqueue("ada@example.org", "Thanks for order 123")
    print(f"enqueued tasks {order.id} and {mail.id}; waiting for a worker: tandemq -A shop:app worker", flush=True)
    print(order.result(timeout=60), mail.result(timeout=60))
