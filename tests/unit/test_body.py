"""A task as JSON."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tandemq.core.body import new_task, parse_json
from tandemq.core.errors import InvalidTask
from tandemq.core.task import NewTask


def test_every_field_of_a_body_reaches_the_task() -> None:
    body = {
        "type": "order.process",
        "payload": {"order_id": 1},
        "queue": "q",
        "priority": "high",
        "delay": None,
        "run_at": "2026-11-30T12:00:00+01:00",
        "expires": "2026-11-30T12:00:00Z",
        "max_retries": 0,
        "idempotency_key": "k",
    }

    assert new_task(body) == NewTask(
        "order.process",
        {"order_id": 1},
        queue="q",
        priority="high",
        run_at=datetime(2026, 11, 30, 11, tzinfo=UTC),
        expires=datetime(2026, 11, 30, 12, tzinfo=UTC),
        max_retries=0,
        idempotency_key="k",
    )


def test_seconds_for_delay_and_expires_stay_seconds() -> None:
    new = new_task({"type": "t", "delay": 1.5, "expires": 60})

    assert (new.delay, new.expires, new.payload) == (1.5, 60, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be a JSON object, not an array"),
        ("x", "must be a JSON object, not text"),
        (None, "must be a JSON object, not null"),
        ({}, "'type' is missing"),
        ({"type": None}, "'type' is missing"),
        ({"type": "t", "prioritty": 1}, "unknown field 'prioritty'; use type, payload"),
        ({"type": "t", "run_at": "tomorrow"}, "run_at 'tomorrow' is no RFC 3339 time"),
        ({"type": "t", "run_at": "2026-11-30T12:00:00"}, "no time zone"),
        ({"type": "t", "run_at": 12}, "run_at must be an RFC 3339 time"),
        ({"type": "t", "expires": "soon"}, "expires 'soon' is no RFC 3339 time"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: object, message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        new_task(body)


def test_a_payload_of_null_is_passed_on_to_be_refused() -> None:
    assert new_task({"type": "t", "payload": None}).payload is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "the line is not JSON"),
        (b"\xff", "the line is not UTF-8 \\(byte 1\\)"),
        (b"NaN", "NaN is not JSON"),
        (b"[" * 200_000, "the line is nested too deeply"),
        (b"1" * 5000, "the line is not JSON"),
    ],
)
def test_text_that_is_no_json_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        parse_json(text, "the line")
