"""JSON schemas of what goes in and out: as tight as the checks, whose patterns and ranges they show."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tandemq.core import body, values
from tandemq.core.pausing import PauseKind
from tandemq.core.retry import MAX_RETRIES
from tandemq.http import fields, filters
from tandemq.http.calls import MAX_ID

Schema = dict[str, Any]


class Limits(NamedTuple):
    """What the settings and options of an installation say."""

    max_payload_bytes: int
    max_result_bytes: int
    max_wait_s: float
    lease_s: float


def ref(name: str) -> Schema:
    """A schema of ``components``."""
    return {"$ref": f"#/components/schemas/{name}"}


def text(pattern: str | None = None, **more: Any) -> Schema:
    """A text, all of which fits the pattern."""
    return {"type": "string", **({} if pattern is None else {"pattern": pattern}), **more}


def integer(low: int, high: int | None = None, **more: Any) -> Schema:
    """A whole number."""
    return {"type": "integer", "minimum": low, **({} if high is None else {"maximum": high}), **more}


def number(low: float, high: float, **more: Any) -> Schema:
    """A number."""
    return {"type": "number", "minimum": low, "maximum": high, **more}


def record(properties: dict[str, Schema], *, required: tuple[str, ...] | None = (), **more: Any) -> Schema:
    """An object without further members; ``required`` None: all are."""
    needed = list(properties if required is None else required)
    shape = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return shape | ({"required": needed} if needed else {})


def array(items: Schema, **more: Any) -> Schema:
    """A list."""
    return {"type": "array", "items": items, **more}


def optional(schema: Schema) -> Schema:
    """The same, or null, which counts as left out (in answers: there is none)."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    description = {"description": schema["description"]} if "description" in schema else {}
    plain = {name: value for name, value in schema.items() if name != "description"}
    return {"anyOf": [plain, {"type": "null"}], **description}


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


QUEUE: Final = text(_whole(values.QUEUE_NAME.pattern), description="Name of a queue.")
TASK_TYPE: Final = text(_whole(values.TASK_TYPE.pattern), description="Name of a task type.")
WORKER_ID: Final = text(fields.WORKER_PATTERN, description="Printable ASCII without blanks at the ends.")
KEY: Final = text(
    minLength=1, maxLength=values.MAX_KEY_BYTES, format="utf8-255-bytes",
    description="At most 255 bytes of UTF-8, compared byte for byte.",
)  # fmt: skip
REASON: Final = text(maxLength=fields.MAX_REASON, description="Why, for the audit log.")
ID_TEXT: Final = text(fields.ID_PATTERN, description="A task id as decimal text.")
PRIORITY: Final[Schema] = {
    "oneOf": [
        {"type": "string", "enum": list(values.PRIORITY_LABELS)},
        integer(values.MIN_PRIORITY, values.MAX_PRIORITY),
    ],
    "description": "Higher runs first. low is 0, medium 10, high 20, critical 30.",
}
INSTANT: Final[Schema] = {
    "type": "string",
    "format": "date-time",
    "pattern": body.INSTANT_PATTERN,
    "not": {"type": "string", "pattern": body.BEYOND_PATTERN},
    "description": "RFC 3339 with a zone, from the year 1 to 9999-12-29; no leap seconds.",
}
#: In answers: UTC with six digits, and null where there is none.
TIME: Final = text(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z$", format="date-time")
COUNT: Final = integer(0)
ANYTHING: Final[Schema] = {"description": "Any JSON value."}
_ID: Final = integer(1, MAX_ID, format="int64", description="Above 2^53 many languages round it: use id_str.")
ID_NUMBER: Final = integer(1, MAX_ID)
EITHER_ID: Final[Schema] = {"anyOf": [ID_NUMBER, ref("IdText")]}


def new_task(limits: Limits) -> Schema:
    """``core.body.new_task``."""
    ahead = number(0, body.MAX_AHEAD_S, description="Seconds from now until it may start.")
    until = [number(body.MIN_EXPIRES_S, body.MAX_AHEAD_S), INSTANT]
    expires = "Seconds from now, or an instant: not started by then it ends dead (expired). After its start, else 400."
    both: Schema = {"type": "object", "required": ["delay", "run_at"]}
    both |= {"properties": {"delay": {"type": "number"}, "run_at": {"type": "string"}}}
    size = f"The arguments. At most {limits.max_payload_bytes} bytes of JSON (else 413) and 100 levels."
    return record(
        {
            "type": TASK_TYPE,
            "payload": {"type": "object", "default": {}, "description": size},
            "queue": optional(QUEUE | {"default": "default"}),
            "priority": optional(PRIORITY),
            "delay": optional(ahead),
            "run_at": optional(INSTANT),
            "expires": {"anyOf": [*until, {"type": "null"}], "description": expires},
            "max_retries": optional(integer(0, MAX_RETRIES, description="Runs allowed are one more. Default 3.")),
            "idempotency_key": optional(KEY),
        },
        required=("type",),
        **{"not": both, "description": "A task. delay and run_at exclude each other; null counts as left out."},
    )


def job() -> Schema:
    """``Task.to_json``."""
    nullable_text, nullable_time = optional(text()), optional(TIME)
    return record(
        {
            "id": _ID,
            "id_str": ref("IdText"),
            "type": text(),
            "queue": text(),
            "payload": ANYTHING,
            "priority": integer(-32768, 32767),
            "priority_label": {"enum": [*values.PRIORITY_LABELS, None]},
            "status": {"type": "string", "enum": list(filters.STATUSES)},
            "state": {"type": "string", "enum": list(filters.STATES)},
            "attempts": COUNT,
            "retry_count": COUNT,
            "max_retries": COUNT,
            "replays": COUNT,
            "idempotency_key": nullable_text,
            "run_at": TIME,
            "next_attempt_at": nullable_time,
            "claimed_at": nullable_time,
            "started_at": nullable_time,
            "completed_at": nullable_time,
            "created_at": TIME,
            "worker_id": nullable_text,
            "error": nullable_text,
            "error_type": nullable_text,
            "dead_reason": {"enum": [*filters.REASONS, None]},
            "result": ANYTHING,
            "attempts_log": array(ref("FailedAttempt"), description="Of one task that is asked for; empty in lists."),
        },
        required=None,
        description="A task. state tells ready, scheduled and retrying apart, which are all pending.",
    )


def failed_attempt() -> Schema:
    """``FailedAttempt.to_json``."""
    nullable_text = optional(text())
    return record(
        {
            "attempt": COUNT,
            "replays": COUNT,
            "outcome": text(),
            "worker_id": nullable_text,
            "started_at": optional(TIME),
            "ended_at": TIME,
            "error_type": nullable_text,
            "error": nullable_text,
            "traceback": nullable_text,
        },
        required=None,
    )


def page() -> Schema:
    """A page of tasks."""
    cursor = optional(text(description="Hand it back as after. A page may be short, or empty, and go on."))
    return record({"items": array(ref("Job")), "next": cursor}, required=None)


def problem(kinds: dict[str, str]) -> Schema:
    """A problem document of these kinds and titles."""
    return {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": [f"urn:tandemq:problem:{kind}" for kind in kinds]},
            "title": {"type": "string", "enum": list(kinds.values())},
            "status": integer(400, 599),
            "detail": text(),
            "field": text(description="The parameter or the member of the body that is at fault."),
            "task_id": integer(1, MAX_ID),
        },
        "required": ["type", "title", "status", "detail"],
    }


def stats() -> Schema:
    """``app.stats``."""
    states: dict[str, Schema] = dict.fromkeys(("ready", "scheduled", "retrying", "running"), COUNT)
    per = {"type": "object", "properties": dict(states), "required": list(states), "additionalProperties": False}
    queue = per | {
        "properties": {
            **states,
            "priorities": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": COUNT}},
            "capped": {"type": "boolean", "description": "There are at least so many."},
            "estimated": {"type": "boolean", "description": "scheduled and retrying are told apart from a sample."},
        }
    }
    depths = record({"ready": COUNT, "delayed": COUNT}, required=None)
    pause = record(
        {
            "kind": {"type": "string", "enum": [kind.value for kind in PauseKind]},
            "name": text(description="Of the queue or the task type."),
            "since": TIME,
            "until": optional(TIME | {"description": "Null: until somebody ends it."}),
            "who": text(),
            "reason": optional(text()),
        },
        required=None,
    )
    return record(
        {
            "queues": {"type": "object", "additionalProperties": queue, "description": "Open tasks."},
            "ended": {"type": "object", "additionalProperties": COUNT, "description": "Ended tasks by outcome."},
            "capped": array(text(), description="Of what there are at least so many."),
            "redis": optional(
                {"type": "object", "additionalProperties": depths, "description": "Ids there; null while it is away."}
            ),
            "paused": array(pause, description="What operators have paused: nothing more of it begins."),
        },
        required=("queues", "ended", "redis", "paused"),
    )


def components(limits: Limits) -> dict[str, Schema]:
    """Schemas that others refer to."""
    return {
        "IdText": ID_TEXT,
        "NewTask": new_task(limits),
        "Job": job(),
        "FailedAttempt": failed_attempt(),
        "JobPage": page(),
        "Stats": stats(),
    }
