"""B42 over HTTP: as many runs as were asked for, not one more and not one less.

Required: a task that always fails with ``max_retries`` of 0, 1, 2, 24 or 299 is claimed 1, 2, 3, 25 or 300 times and is
then dead with that many attempts; the answers to the claims count them in the same words. A replay gives exactly as
many runs again. A ``max_retries`` that is negative, a text, a fraction, a boolean or a list is refused by name and
nothing is stored; null counts as left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tandemq.core.settings import Settings
from tandemq.mover import Mover
from tests.api import ServedApi, served
from tests.http.hands import claim, enqueue, send
from tests.scenarios.sizes import FULL
from tests.scenarios.test_b42_counting_attempts import REFUSED, RETRIES, SKIPPED
from tests.scenarios.truth import CALM

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]


#: The newest so many failed attempts are shown with a job.
SHOWN = 100


@pytest.fixture
def api(settings_for: Callable[..., Settings], mysql_url: str, redis_url: str) -> Iterator[ServedApi]:
    with served(settings_for(mysql_url, redis_url, **CALM)) as made:
        yield made


@pytest.fixture
def client(api: ServedApi) -> Iterator[httpx.Client]:
    with api.client() as made:
        yield made


def fail_all(api: ServedApi, client: httpx.Client, ids: list[int]) -> dict[int, list[int]]:
    """Claim and fail until all of these are dead; the attempts that were claimed, by task."""
    app, seen = api.app, dict[int, list[int]]()
    mover = Mover(app.store, app.broker, app.clock, holder="mover", settings=app.settings)
    give_up_at = time.monotonic() + 200
    while any(app.get(i).status != "dead" for i in ids):
        assert time.monotonic() < give_up_at, seen
        mover.step()
        for job in claim(client, max=10):
            seen.setdefault(job["id"], []).append(job["attempts"])
            assert job["retry_count"] == job["attempts"] - 1
            body = {"lease_token": job["lease_token"], "error": f"attempt {job['attempts']}", "retry_after": 0}
            assert send(client, "fail", job["id"], body)[0] == 200
    return seen


def test_exactly_so_many_runs_and_as_many_again_after_a_replay(api: ServedApi, client: httpx.Client) -> None:
    ids = {n: enqueue(client, "b.fail", max_retries=n) for n in RETRIES}
    prefix = api.app.settings.table_prefix
    with api.app.store.db.engine.begin() as connection:  # the longest life is taken as half done when scaled down
        connection.exec_driver_sql(f"UPDATE {prefix}tasks SET attempts = {SKIPPED} WHERE id = {ids[299]}")
    first = {n: SKIPPED + 1 if n == 299 else 1 for n in RETRIES}

    seen = fail_all(api, client, list(ids.values()))

    assert {n: seen[i] for n, i in ids.items()} == {n: list(range(first[n], n + 2)) for n in RETRIES}
    for n, task_id in ids.items():
        job = client.get(f"/jobs/{task_id}").json()
        assert (job["status"], job["attempts"], job["max_retries"], job["retry_count"]) == ("dead", n + 1, n, n)
        assert (job["dead_reason"], job["error"]) == ("retries_exhausted", f"attempt {n + 1}")
        assert [a["attempt"] for a in job["attempts_log"]] == seen[task_id][-SHOWN:]
    assert claim(client) == []

    again = ids if FULL else {n: i for n, i in ids.items() if n < 299}
    for task_id in again.values():
        assert client.post(f"/jobs/{task_id}/replay", json={}).status_code == 200
    seen = fail_all(api, client, list(again.values()))

    assert {n: seen[i] for n, i in again.items()} == {n: list(range(1, n + 2)) for n in again}
    for n, task_id in again.items():
        job = client.get(f"/jobs/{task_id}").json()
        assert (job["attempts"], job["replays"]) == (n + 1, 1)
        assert len(job["attempts_log"]) == min(SHOWN, n + 1 + n + 2 - first[n])
        assert Counter(a["outcome"] for a in job["attempts_log"]) == {"failed": len(job["attempts_log"])}


def test_bad_values_are_refused_by_name(api: ServedApi, client: httpx.Client) -> None:
    refused: dict[str, Any] = {name: value for name, value in REFUSED.items() if name != "whole fraction"}
    for name, value in refused.items():
        answer = client.post("/jobs", json={"type": "b.fail", "payload": {}, "max_retries": value})
        assert (answer.status_code, answer.json()["field"]) == (400, "max_retries"), name
    assert client.get("/jobs").json()["items"] == []
    whole = client.post("/jobs", json={"type": "b.fail", "payload": {}, "max_retries": 2.0})
    assert (whole.status_code, whole.json()["max_retries"]) == (201, 2), "a whole number, as in JSON Schema"
    null = client.post("/jobs", json={"type": "b.fail", "payload": {}, "max_retries": None})
    assert (null.status_code, null.json()["max_retries"]) == (201, 3)
    zero = client.post("/jobs", json={"type": "b.fail", "payload": {}, "max_retries": 0})
    assert (zero.status_code, zero.json()["max_retries"]) == (201, 0)
