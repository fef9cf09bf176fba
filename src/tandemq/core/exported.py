"""An exported task as a task to be enqueued anew. What keeps a second import from doubling it is its key."""

from __future__ import annotations

from typing import Any

from tandemq.core import values
from tandemq.core.errors import InvalidTask, InvalidType
from tandemq.core.task import NewTask

_ENDED_BADLY = ("dead", "cancelled")


def new_task(shape: Any) -> NewTask:
    """A NewTask from the JSON shape of a dead or cancelled task.

    Type, payload, queue, priority and max_retries are as they were; attempts start anew. A task that had an idempotency
    key keeps it; any other gets one that names its id and the instant of its end: the same death is imported once, as
    long as the row that it made is there.
    """
    if not isinstance(shape, dict):
        raise InvalidType("an exported task must be a JSON object", field="line")
    status = shape.get("status")
    if status not in _ENDED_BADLY:
        raise InvalidTask(f"status {status!r} is not that of an exported dead letter (dead, cancelled)", field="status")
    missing = [name for name in ("id", "type", "payload", "completed_at") if shape.get(name) is None]
    if missing:
        raise InvalidTask(f"the field {missing[0]!r} is missing", field=missing[0])
    task_id = shape["id"]
    if type(task_id) is not int:
        raise InvalidType(f"id must be an integer, not {task_id!r}", field="id")
    ended = values.rfc3339(values.parse_instant(shape["completed_at"], "completed_at"))
    key = shape.get("idempotency_key")
    return NewTask(
        shape["type"],
        shape["payload"],
        queue=shape.get("queue"),
        priority=shape.get("priority"),
        max_retries=shape.get("max_retries"),
        idempotency_key=f"import:{task_id}:{ended}" if key is None else key,
    )
