"""The OpenAPI document: what workers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemq.core.retry import MAX_DELAY_S
from tandemq.http import schemas
from tandemq.http.documents import JOB, JSON, Answer, Described, link
from tandemq.http.schemas import Limits, Schema, optional, ref
from tandemq.remote.terms import LONGEST_LEASE_S, MAX_JOBS, MAX_NAMES, SHORTEST_LEASE_S

_LEASE: Final = schemas.number(SHORTEST_LEASE_S, LONGEST_LEASE_S, description="Seconds until others may have it.")
#: Of text and integers all are answered: one that is no live token of the task is a lost lease (409).
_TOKEN: Final[Schema] = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
_WORKER: Final = schemas.WORKER_ID
_PROOF: Final[Mapping[str, Schema]] = {
    "lease_token": optional(_TOKEN | {"description": "As the claim gave it."}),
    "worker_id": optional(_WORKER | {"description": "Enough by itself while this worker holds the task."}),
}
_WAIT: Final = "Seconds, or what a Retry-After header says: whole seconds, or an HTTP date (RFC 9110, 10.2.3)."
_RETRY_AFTER: Final = [schemas.number(0, MAX_DELAY_S), schemas.text("^[0-9]{1,9}$"), schemas.text(format="http-date")]
_PROVEN: Final = [
    {"required": ["lease_token"], "properties": {"lease_token": {"not": {"type": "null"}}}},
    {"required": ["worker_id"], "properties": {"worker_id": {"not": {"type": "null"}}}},
]


def _held(more: Mapping[str, Schema]) -> Schema:
    return schemas.record({**_PROOF, **more}, anyOf=_PROVEN)


def claimed_job() -> Schema:
    """A task with what its worker must know."""
    shape = schemas.job()
    more = {"lease_token": schemas.text(), "lease_expires_at": optional(schemas.TIME)}
    return schemas.record(shape["properties"] | more, required=None)


def components() -> dict[str, Schema]:
    """Schemas that others refer to."""
    return {"ClaimedJob": claimed_job()}


def described(limits: Limits) -> Mapping[str, Described]:
    """By the name of the route."""
    claim = schemas.record(
        {
            "worker_id": _WORKER,
            "queues": optional(
                schemas.array(schemas.QUEUE, minItems=1, maxItems=MAX_NAMES) | {"description": 'Default: ["default"].'}
            ),
            "types": optional(
                schemas.array(schemas.TASK_TYPE, minItems=1, maxItems=MAX_NAMES)
                | {"description": "What this worker knows; default: all."}
            ),
            "max": optional(schemas.integer(1, MAX_JOBS, default=1)),
            "lease": optional(_LEASE | {"default": limits.lease_s}),
            "wait": optional(
                schemas.number(0, limits.max_wait_s, description="Seconds to wait for a task.", default=0)
            ),
        },
        required=("worker_id",),
    )
    proof: dict[str, Any] = {
        "lease_token": "$response.body#/jobs/0/lease_token",
        "worker_id": "$request.body#/worker_id",
    }
    at = "/jobs/0/id_str"
    beat = schemas.record(
        {
            "id": schemas.ID_NUMBER,
            "id_str": ref("IdText"),
            "lease_token": schemas.text(),
            "lease_expires_at": schemas.TIME,
            "cancel_requested": {"type": "boolean"},
        },
        required=None,
    )
    example = {"lease_token": "9f86d081884c7d65-30"}
    return {
        "claim": Described(
            tag="working",
            summary="Claim tasks",
            text=(
                "Highest priority first over all queues; at equal priority in the order of queues, the oldest of each"
                " first. Each task has a lease and a token of its own: send heartbeats before it ends, then complete or"
                " fail. A task whose worker never comes back is retried."
            ),
            body={JSON: claim},
            examples={"one": {"worker_id": "billing-1"}, "long poll": {"worker_id": "billing-1", "wait": 0, "max": 5}},
            answers={
                200: Answer(
                    text="Tasks that are this worker's now.",
                    schema=schemas.record({"jobs": schemas.array(ref("ClaimedJob"), minItems=1)}, required=None),
                    links={
                        "heartbeat": link("heartbeat", at, body=proof),
                        "complete": link("complete", at, body=proof | {"result": {"ok": True}}),
                        "fail": link("fail", at, body=proof | {"error": "no route", "error_type": "Timeout"}),
                        "show": link("show_job", at),
                    },
                ),
                204: Answer(text="There was none."),
            },
        ),
        "heartbeat": Described(
            tag="working",
            summary="Keep a task",
            text="Renews the lease for the length that it was claimed for, or for lease. 409: stop, it is lost.",
            body={JSON: _held({"lease": optional(_LEASE)})},
            examples={"same length": example},
            answers={200: Answer(text="It is still this worker's.", schema=beat)},
            problems=(404, 409),
        ),
        "complete": Described(
            tag="working",
            summary="A task has succeeded",
            text=(
                "May be repeated with the same token. A result over"
                f" {limits.max_result_bytes} bytes is not kept; the task succeeds with a note all the same."
            ),
            body={JSON: _held({"result": schemas.ANYTHING})},
            examples={"with a result": {**example, "result": {"sum": 5}}},
            answers={200: Answer(text="The task.", schema=JOB)},
            problems=(404, 409),
        ),
        "fail": Described(
            tag="working",
            summary="A task has failed",
            text=(
                "It is retried or dead, as its retries and retryable say; cancelled if that has been asked for. May be"
                " repeated with the same token; 409 if others have claimed the task meanwhile."
            ),
            body={
                JSON: _held(
                    {
                        "error": optional(schemas.text()),
                        "error_type": optional(schemas.text()),
                        "traceback": optional(schemas.text()),
                        "retryable": optional({"type": "boolean", "default": True}),
                        "retry_after": {"anyOf": [*_RETRY_AFTER, {"type": "null"}], "description": _WAIT},
                    }
                )
            },
            examples={"again in a minute": {**example, "error": "busy", "retry_after": 60}},
            answers={200: Answer(text="The task, pending or dead.", schema=JOB)},
            problems=(404, 409),
        ),
    }
