"""B44 over HTTP: odd due times.

A due time is stored as the one right instant in UTC, or refused with 400 naming the field and nothing stored; alone and
in a batch. Times in the past mean now. Tasks with ordinary delays still run on time.
"""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from tests.api import served
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.test_b44_odd_due_times import LINES
from tests.scenarios.truth import PACE, SLACK, row_count
from tests.weather import Weather
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

APP = "tests.apps.scenarios_b:app"
#: As text, for what JSON cannot say and some writers send: the fields, and the instant or "refused".
RAW: list[tuple[str, str, Any]] = [(json.dumps(fields), next(iter(fields)), means) for fields, means in LINES]
RAW += [
    ('{"delay": NaN}', "body", "refused"),
    ('{"delay": Infinity}', "body", "refused"),
    ('{"delay": 1e999}', "delay", "refused"),
    ('{"delay": -1e9}', "delay", "refused"),
    ('{"delay": 1%s}' % ("0" * 400), "delay", "refused"),
    ('{"delay": 1%s}' % ("0" * 5000), "body", "refused"),
    ('{"expires": -1}', "expires", "refused"),
    ('{"expires": "0300-01-01T00:00:00Z"}', "expires", "refused"),
    ('{"delay": 10, "expires": 5}', "expires", "refused"),
    ('{"run_at": "1018-06-01T00:00:00Z"}', "run_at", None),
    ('{"run_at": "2040-01-01T00:00:00Z"}', "run_at", datetime(2040, 1, 1, tzinfo=UTC)),
    ('{"run_at": "2027-10-31T01:30:00+01:00"}', "run_at", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
    ('{"run_at": "2027-10-31T01:30:00+00:00"}', "run_at", datetime(2027, 10, 31, 1, 30, tzinfo=UTC)),
    ('{"run_at": "2040-01-01T00:00:00Z", "delay": 5}', "delay", "refused"),
]
JSON = {"Content-Type": "application/json"}


def assert_means(job: dict[str, Any], means: Any, began: datetime, ended: datetime) -> None:
    run_at = datetime.fromisoformat(job["run_at"])
    if means is None:
        assert began <= run_at <= ended
        assert job["state"] == "ready"
    else:
        assert (run_at, job["state"]) == (means, "scheduled")


def test_every_due_time_is_stored_right_or_refused(work: Bench) -> None:
    texts = [f'{{"type": "b.noop", {fields[1:]}' for fields, _, _ in RAW]
    with served(work.settings) as api, api.client() as client:
        began = work.app.store.now()
        answers = [client.post("/jobs", content=text, headers=JSON) for text in texts]
        lines = client.post("/jobs/batch", content="\n".join(texts), headers={"Content-Type": "application/x-ndjson"})
        ended = work.app.store.now()
        items = [json.loads(line) for line in lines.text.splitlines()]
    good = [means != "refused" for _, _, means in RAW]
    assert [answer.status_code for answer in answers] == [201 if fine else 400 for fine in good]
    assert [item["status"] for item in items] == [201 if fine else 400 for fine in good]
    for (_, field, means), answer, item in zip(RAW, answers, items, strict=True):
        if means == "refused":
            assert answer.json()["field"] == item["problem"]["field"] == field
            continue
        stored = work.app.get(item["id"])
        assert stored is not None
        for job in (answer.json(), stored.to_json()):
            assert_means(job, means, began, ended)
    assert row_count(work) == 2 * sum(good)


def test_ordinary_delays_keep_their_time_beside_odd_ones(work: Bench, probe: Probe, weather: Weather) -> None:
    worker = work.worker("-c", "4", app=APP).ready()
    chance = random.Random(44)
    made: dict[int, float] = {}  # id -> when the request had been answered
    with served(work.settings) as api, api.client() as client:
        odd = [client.post("/jobs", content=f'{{"type": "b.noop", {fields[1:]}', headers=JSON) for fields, _, _ in RAW]
        now = [answer.json()["id"] for answer in odd if answer.json().get("state") == "ready"]
        for _ in range(50):
            body = {"type": "b.noop", "delay": chance.uniform(0.1, size(1.0, 10.0))}
            answer: httpx.Response = client.post("/jobs", json=body)
            made[answer.json()["id"]] = time.time()
    ordinary = list(made)
    assert work.ended(ordinary) == {"succeeded": 50}
    due = {i: work.app.get(i).run_at.timestamp() for i in ordinary}  # type: ignore[union-attr]
    begun = {mark.task_id: mark.at for mark in probe.marks("start")}
    assert min(begun[i] - due[i] for i in ordinary) >= -0.005
    lateness = sorted(begun[i] - max(due[i], made[i]) for i in ordinary)
    assert lateness[-1] <= PACE["mover_s"] + 0.3 + SLACK + weather.slack_s, lateness[-5:]
    probe.assert_once([*ordinary, *now])
    assert "ERROR" not in worker.text()
    assert "Traceback" not in worker.text()
