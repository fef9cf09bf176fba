"""The OpenAPI document: enqueuing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemq.http import schemas
from tandemq.http.documents import JOB, JOB_EXAMPLE, JSON, NDJSON, Answer, Described, kinds_of, link, location
from tandemq.http.schemas import Limits, Schema, ref

_TASK: Final = {"type": "mail.send", "payload": {"to": "ada@example.org"}}
_FULL: Final = {
    **_TASK, "queue": "mail", "priority": "high", "delay": 2.5, "expires": 3600, "max_retries": 5,
    "idempotency_key": "welcome-7",
}  # fmt: skip
_LATER: Final = {**_TASK, "run_at": "2040-02-29T08:00:00+01:00", "expires": "2040-03-01T00:00:00Z"}
_LINKS: Final = {
    "show": link("show_job", "/id_str"),
    "cancel": link("cancel_job", "/id_str", body={}),
    "replay": link("replay_job", "/id_str", body={}),
}


def _item() -> Schema:
    done = {"index": schemas.COUNT, "status": {"enum": [200, 201]}, "id": schemas.ID_NUMBER}
    done["id_str"] = ref("IdText")
    kinds = {kind: title for status in (400, 409, 413, 500, 503) for kind, title in kinds_of(status).items()}
    failed = {"index": schemas.COUNT, "status": schemas.integer(400, 599), "problem": schemas.problem(kinds)}
    return {"oneOf": [schemas.record(done, required=None), schemas.record(failed, required=None)]}


def described(limits: Limits) -> Mapping[str, Described]:
    """By the name of the route."""
    count = schemas.COUNT
    whole = schemas.record(
        {"created": count, "existing": count, "failed": count, "items": schemas.array(_item())}, required=None
    )
    lines = schemas.text(description="What became of each, a line for a line, as in items of the other form.")
    any_item: Schema = {"description": "Anything else is answered in its place by a problem."}
    return {
        "enqueue": Described(
            tag="producing",
            summary="Enqueue a task",
            text=(
                "Stored when it is answered: a 201 has been committed. Send an idempotency_key to be able to repeat the"
                " request after a lost answer. Two faults depend on the clock and are in no schema: expires before the"
                " start, and a key that belongs to another task (409)."
            ),
            body={JSON: ref("NewTask")},
            examples={"least": _TASK, "full": _FULL, "later": _LATER},
            answers={
                201: Answer(text="A new task.", schema=JOB, headers=location("/jobs/"), links=_LINKS,
                            example=JOB_EXAMPLE),
                200: Answer(text="The task that the key belongs to already.", schema=JOB, headers=location("/jobs/"),
                            links=_LINKS),
            },
            problems=(409,),
        ),
        "enqueue_batch": Described(
            tag="producing",
            summary="Enqueue any number of tasks",
            text=(
                "Each is checked, stored and answered for itself, in order: not all or none. Sent again, those with"
                " an idempotency_key are the same. As NDJSON (a task a line) or as an array; the answer has the form"
                " of the body. A body that breaks off is answered up to there, and with one last item that says where."
                f" A task may have {limits.max_payload_bytes} bytes of payload, the body any number."
            ),
            body={
                JSON: schemas.array({"anyOf": [ref("NewTask"), any_item]}),
                NDJSON: {"description": "A task (as in POST /jobs) a line."},
            },
            examples={"two": [_TASK, _FULL]},
            answers={200: Answer(text="What became of each.", schema=whole, others={NDJSON: lines})},
        ),
    }  # fmt: skip
