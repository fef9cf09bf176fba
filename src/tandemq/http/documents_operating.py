"""The OpenAPI document: cancel, replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemq.http import fields, operating, schemas
from tandemq.http.documents import JOB, JSON, Answer, Described, link, location
from tandemq.http.documents_looking import OF_DEAD
from tandemq.http.schemas import Limits, Schema, optional
from tandemq.store.runs import RunState

_LEVEL: Final[Mapping[str, Schema]] = {
    "queue": optional(schemas.QUEUE | {"description": "Into this queue instead of its own."}),
    "priority": optional(schemas.PRIORITY),
}
_REASON: Final = {"reason": optional(schemas.REASON)}
_CANCEL: Final = schemas.record(_REASON)
_EDIT: Final[Schema] = {"type": "object", "description": "A JSON merge patch (RFC 7396) on the payload."}
_REPLAY: Final = schemas.record({**_REASON, **_LEVEL, "edit": optional(_EDIT)})


def _replay_many() -> Schema:
    rate = [schemas.number(operating.MIN_RATE, operating.MAX_RATE), schemas.text(fields.RATE_PATTERN)]
    canary = [schemas.integer(1, operating.MAX_CANARY), schemas.text(fields.SAMPLE_PATTERN)]
    share = [schemas.number(0, 1), schemas.text(fields.SHARE_PATTERN)]
    null: Schema = {"type": "null"}
    chosen = schemas.record(dict(OF_DEAD), minProperties=1, description='{"state": "dead"} for every dead task.')
    return schemas.record(
        {
            "ids": schemas.array(schemas.EITHER_ID, minItems=1, maxItems=operating.MAX_IDS),
            "filter": chosen,
            "rate": {"anyOf": [*rate, null], "description": "No faster: 50/s, 10/min, or a number a second."},
            "limit": optional(schemas.integer(1, operating.MAX_LIMIT, description="The newest so many.")),
            "canary": {"anyOf": [*canary, null], "description": "Replay a sample first: a count, or 1%."},
            "stop_if_failing": {
                "anyOf": [*share, null],
                "description": "Pause where more than this share dies again; 20% with canary.",
            },
            "canary_wait": optional(
                schemas.number(0, operating.MAX_CANARY_WAIT_S, description="Seconds that the sample is waited for.")
            ),
            **_LEVEL,
            **_REASON,
            "dry_run": optional({"type": "boolean", "description": "Only count."}),
        },
        oneOf=[{"required": ["ids"]}, {"required": ["filter"]}],
        description="Either ids or filter.",
    )


def replayed(*, run_id: Schema, more: Mapping[str, Schema]) -> Schema:
    """``Replayed.to_json``."""
    count = schemas.COUNT
    reason = schemas.record({"outcome": schemas.text(), "why": schemas.text(), "n": count}, required=None)
    return schemas.record(
        {
            "moved": count,
            "skipped": count,
            "failed": count,
            "left": count,
            "run_id": run_id,
            "state": schemas.text(enum=[state.value for state in RunState]),
            "note": optional(schemas.text()),
            "reasons": schemas.array(reason),
            **more,
        },
        required=None,
    )


def replay_run() -> Schema:
    """``run_json`` and what ``operating.show_replay`` adds."""
    count, time = schemas.COUNT, schemas.TIME
    reason = schemas.record({"outcome": schemas.text(), "why": schemas.text(), "n": count}, required=None)
    item = schemas.record(
        {
            "task_id": schemas.ID_NUMBER,
            "outcome": schemas.text(),
            "is_canary": {"type": "boolean"},
            "replays": count,
            "note": schemas.text(),
        },
        required=None,
    )
    return schemas.record(
        {
            "id": schemas.ID_NUMBER,
            "state": schemas.text(enum=[state.value for state in RunState]),
            "note": optional(schemas.text()),
            "created_by": schemas.text(),
            "reason": optional(schemas.text()),
            "selection": {"type": "object"},
            "orders": {"type": "object"},
            "selected": count,
            "moved": count,
            "skipped": count,
            "failed": count,
            "left": count,
            "is_held": {"type": "boolean"},
            "wave_at": time,
            "created_at": time,
            "updated_at": time,
            "ended_at": optional(time),
            "reasons": schemas.array(reason),
            "failed_items": schemas.array(item, maxItems=operating.SHOWN_FAILURES),
        },
        required=None,
    )


def described(limits: Limits) -> Mapping[str, Described]:
    """By the name of the route."""
    count = schemas.COUNT
    kind = schemas.record({"task_type": schemas.text(), "error_type": schemas.text(), "n": count}, required=None)
    counted = schemas.record({"found": count, "kinds": schemas.array(kind)}, required=None)
    at_once = replayed(run_id=optional(schemas.ID_NUMBER), more={})
    as_run = replayed(run_id=schemas.ID_NUMBER, more={"follow": schemas.text()})

    def outcome(word: str) -> Schema:
        return schemas.record({"outcome": schemas.text(enum=[word]), "job": JOB}, required=None)

    return {
        "cancel_job": Described(
            tag="operating",
            summary="Cancel a task",
            text="One that runs is asked to end: its worker is told by the answer to its next heartbeat.",
            body={JSON: _CANCEL},
            examples={"why": {"reason": "ordered twice"}},
            answers={
                200: Answer(text="It is cancelled, by this request or an earlier one.", schema=outcome("cancelled"),
                            links={"replay": link("replay_job", "/job/id_str", body={})}),
                202: Answer(text="It is running; it will be cancelled when its attempt ends.",
                            schema=outcome("requested")),
            },
            problems=(404, 409),
        ),
        "replay_job": Described(
            tag="operating",
            summary="Replay a dead or cancelled task",
            text="It is pending again with all its runs ahead of it; its history stays.",
            body={JSON: _REPLAY},
            examples={"as it is": {}, "edited": {"edit": {"city": "Bern", "old": None}, "reason": "wrong address"}},
            answers={200: Answer(text="The task, pending.", schema=JOB)},
            problems=(404, 409),
        ),
        "replay_dead": Described(
            tag="operating",
            summary="Replay many dead letters",
            text=(
                "Up to 500 ids without rate, limit, canary or stop_if_failing are replayed at once (200). All else is a"
                " run that the reconciler of a worker carries out (202). Each task moves once, however many do this."
            ),
            body={JSON: _replay_many()},
            examples={
                "some": {"ids": [41, "42"]},
                "carefully": {"filter": {"error_type": "Timeout"}, "rate": "50/s", "canary": "1%"},
            },
            answers={
                200: Answer(text="What was moved; of a dry run what would be.", schema={"oneOf": [at_once, counted]}),
                202: Answer(
                    text="A run that goes on by itself.",
                    schema=as_run,
                    headers=location("/dead/replays/"),
                    links={"follow": {"operationId": "show_replay", "parameters": {"id": "$response.body#/run_id"}}},
                ),
            },
        ),
    }  # fmt: skip


def components() -> dict[str, Schema]:
    """Schemas that others refer to."""
    return {"ReplayRun": replay_run()}
