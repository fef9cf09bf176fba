"""The one JSON shape of a task."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tandemq.core.lifecycle import Status
from tandemq.core.task import UNSET, FailedAttempt, Task

T0 = datetime(2026, 11, 30, 12, tzinfo=UTC)
TASK = Task(
    id=2**63,
    task_type="order.process",
    queue="default",
    payload='{"order_id":1}',
    options="",
    priority=20,
    status=Status.PENDING,
    state="retrying",
    attempts=2,
    max_retries=3,
    replays=0,
    fence=2,
    worker_id=None,
    idempotency_key=None,
    run_at=T0,
    expires_at=None,
    cancel_requested_at=None,
    started_at=T0,
    completed_at=None,
    created_at=T0,
    updated_at=T0,
    lease_expires_at=None,
    result=None,
    last_error="boom",
    error_type="OSError",
    dead_reason=None,
)
FIELDS = [
    *("id", "id_str", "type", "queue", "payload", "priority", "priority_label", "status", "state", "attempts"),
    *("retry_count", "max_retries", "replays", "idempotency_key", "run_at", "next_attempt_at", "claimed_at"),
    *("started_at", "completed_at", "created_at", "worker_id", "error", "error_type", "dead_reason", "result"),
    "attempts_log",
]


def test_the_fields_are_the_contract() -> None:
    assert list(TASK.to_json()) == FIELDS


def test_a_retrying_task() -> None:
    shape = TASK.to_json()

    assert (shape["id"], shape["id_str"]) == (2**63, str(2**63))
    assert (shape["priority"], shape["priority_label"]) == (20, "high")
    assert (shape["attempts"], shape["retry_count"]) == (2, 1)
    assert shape["payload"] == {"order_id": 1}
    assert shape["next_attempt_at"] == "2026-11-30T12:00:00.000000Z"
    assert shape["claimed_at"] is None
    assert (shape["error"], shape["error_type"]) == ("boom", "OSError")


def test_a_running_and_an_ended_task() -> None:
    running = replace(TASK, status=Status.RUNNING, state="running", priority=15).to_json()
    done = replace(TASK, status=Status.SUCCEEDED, state="succeeded", result="[1]", completed_at=T0).to_json()

    assert running["claimed_at"] == "2026-11-30T12:00:00.000000Z"
    assert running["next_attempt_at"] is None
    assert running["priority_label"] is None
    assert done["result"] == [1]
    assert done["completed_at"] == "2026-11-30T12:00:00.000000Z"


@pytest.mark.parametrize("text", ["{", "NaN", "", "[" * 100_000])
def test_a_row_of_other_sql_that_holds_no_json_can_still_be_shown(text: str) -> None:
    shape = replace(TASK, payload=text, result=text).to_json()

    assert (shape["payload"], shape["result"]) == (text, text)


def test_a_failed_attempt() -> None:
    attempt = FailedAttempt(1, 0, 1, "timeout", "", None, T0, "TaskTimeout", "too slow", "")

    assert replace(TASK, attempts_log=(attempt,)).to_json()["attempts_log"] == [
        {
            "attempt": 1,
            "replays": 0,
            "outcome": "timeout",
            "worker_id": None,
            "started_at": None,
            "ended_at": "2026-11-30T12:00:00.000000Z",
            "error_type": "TaskTimeout",
            "error": "too slow",
            "traceback": None,
        }
    ]


def test_no_runs_are_no_retries() -> None:
    assert replace(TASK, attempts=0).retry_count == 0
    assert repr(UNSET) == "UNSET"
