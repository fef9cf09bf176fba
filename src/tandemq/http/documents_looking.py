"""The OpenAPI document: looking, and what orchestrators and Prometheus ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemq.http import fields, filters, schemas
from tandemq.http.documents import JOB, JOB_EXAMPLE, Answer, Described
from tandemq.http.schemas import Limits, Schema, ref

_PAGING: Final[Mapping[str, Schema]] = {
    "limit": schemas.integer(1, 1000, default=filters.DEFAULT_LIMIT, description="Tasks on a page, at most."),
    "after": schemas.text(fields.ID_PATTERN, description="The next of the page before."),
}
_ERROR_TYPE: Final = schemas.text(minLength=1, maxLength=fields.MAX_ERROR_TYPE, description="Of its last error.")
OF_JOBS: Final[Mapping[str, Schema]] = {
    "status": schemas.text(enum=list(filters.STATUSES)),
    "state": schemas.text(enum=list(filters.STATES), description="As status, but pending is told apart."),
    "queue": schemas.QUEUE,
    "type": schemas.TASK_TYPE,
    "worker_id": schemas.WORKER_ID | {"description": "Of the worker that holds it or ran it last."},
    "error_type": _ERROR_TYPE,
    "key": schemas.KEY | {"description": "Its idempotency key."},
}
OF_DEAD: Final[Mapping[str, Schema]] = {
    "queue": schemas.QUEUE,
    "type": schemas.TASK_TYPE,
    "error": schemas.text(minLength=1, maxLength=fields.MAX_ERROR_TEXT, description="Its last error contains this."),
    "error_type": _ERROR_TYPE,
    "reason": schemas.text(enum=list(filters.REASONS), description="Why it is dead."),
    "state": schemas.text(enum=list(filters.ENDED_BADLY), default="dead"),
}
_SHORT: Final = "Newest first. A page may have fewer tasks than asked for, or none, and go on: next is null at the end."
_WORD: Final = schemas.text(enum=["ok", "away"])


def _ready(status: str) -> Schema:
    return schemas.record({"status": schemas.text(enum=[status]), "database": _WORD, "redis": _WORD}, required=None)


def described(limits: Limits) -> Mapping[str, Described]:
    """By the name of the route."""
    return {
        "list_jobs": Described(
            tag="looking",
            summary="List tasks",
            text=_SHORT,
            query=OF_JOBS | _PAGING,  # type: ignore[operator]  # both are dicts
            answers={200: Answer(text="A page.", schema=ref("JobPage"))},
        ),
        "show_job": Described(
            tag="looking",
            summary="Show a task with its failed attempts",
            answers={200: Answer(text="The task.", schema=JOB, example=JOB_EXAMPLE)},
            problems=(404,),
        ),
        "stats": Described(
            tag="looking",
            summary="Count tasks",
            text="Open ones by queue and state, ended ones by outcome, the ids in Redis, and what is paused."
            " Never counts a big table.",
            answers={200: Answer(text="The counts.", schema=ref("Stats"))},
        ),
        "list_dead": Described(
            tag="looking",
            summary="List dead letters",
            text=_SHORT,
            query=OF_DEAD | _PAGING,  # type: ignore[operator]  # both are dicts
            answers={200: Answer(text="A page.", schema=ref("JobPage"))},
        ),
        "show_replay": Described(
            tag="looking",
            summary="Show a replay run",
            text="What it was told, how far it has come, and why tasks were not moved.",
            answers={200: Answer(text="The run.", schema=ref("ReplayRun"))},
            problems=(404,),
        ),
        "live": Described(
            tag="health",
            summary="Is the process alive?",
            answers={
                200: Answer(text="It is.", schema=schemas.record({"status": schemas.text(enum=["ok"])}, required=None))
            },
        ),
        "ready": Described(
            tag="health",
            summary="Can tasks be accepted?",
            text="With Redis away they can be.",
            answers={
                200: Answer(text="They can.", schema=_ready("ok")),
                503: Answer(text="The database is away.", schema=_ready("unavailable")),
            },
        ),
        "metrics": Described(
            tag="health",
            summary="Counters for Prometheus",
            answers={200: Answer(text="Prometheus text.", others={"text/plain": schemas.text()})},
            problems=(404,),
        ),
        "openapi": Described(
            tag="looking",
            summary="This document",
            answers={200: Answer(text="OpenAPI 3.1.", schema={"type": "object", "required": ["openapi", "paths"]})},
        ),
    }
