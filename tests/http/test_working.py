"""Heartbeat, complete, fail over HTTP: every status, every field by name, and races between two who want the task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq.core.settings import Settings
from tandemq.http import calls, working
from tandemq.store.answers import Settled
from tests.api import ServedApi, served
from tests.healing import Tapped
from tests.http.hands import ME, claim, enqueue, expire, held, send
from tests.waiting import eventually


def retried(job: dict[str, Any]) -> float:
    """Seconds from the end of the last attempt to the next one."""
    ended = datetime.fromisoformat(job["attempts_log"][-1]["ended_at"])
    return (datetime.fromisoformat(job["next_attempt_at"]) - ended).total_seconds()


def test_a_task_is_claimed_kept_and_completed(client: httpx.Client) -> None:
    task_id, proof = held(client, lease=20)
    status, beat = send(client, "heartbeat", task_id, {**proof, "lease": 60})
    assert (status, beat["id"], beat["id_str"], beat["cancel_requested"]) == (200, task_id, str(task_id), False)
    assert beat["lease_token"].split("-") == [proof["lease_token"].split("-")[0], "60"]
    ends = [datetime.fromisoformat(send(client, "heartbeat", task_id, proof)[1]["lease_expires_at"])]
    ends.append(datetime.fromisoformat(beat["lease_expires_at"]))
    assert 35 < (ends[1] - ends[0]).total_seconds() < 45, "the token says 20 s, the other call 60 s"

    again = {"lease_token": beat["lease_token"], "result": 1}
    for body in ({**proof, "result": {"sum": 5}}, again, {"worker_id": ME}):
        status, job = send(client, "complete", task_id, body)
        assert (status, job["status"], job["result"], job["worker_id"]) == (200, "succeeded", {"sum": 5}, ME)
    status, problem = send(client, "fail", task_id, proof)
    assert (status, problem["type"]) == (409, "urn:tandemq:problem:lease-lost")


def test_a_worker_may_prove_itself_by_its_name_alone_or_not_at_all(client: httpx.Client) -> None:
    task_id, proof = held(client)
    for what in ("heartbeat", "complete", "fail"):
        status, problem = send(client, what, task_id, {})
        assert (status, problem["field"]) == (400, "lease_token")
        assert send(client, what, task_id, {"lease_token": None, "worker_id": None})[0] == 400
        assert send(client, what, task_id, {"worker_id": "another"})[0] == 409
        assert send(client, what, task_id, {**proof, "worker_id": "another"})[0] == 409
        for wrong in (0, 1, -1, 2**80, "", "x", proof["lease_token"] + " ", "0" * 16 + "-30"):
            assert send(client, what, task_id, {"lease_token": wrong})[0] == 409, wrong
        for wrong in (True, [], {}, 1.5):
            status, problem = send(client, what, task_id, {"lease_token": wrong})
            assert (status, problem["field"]) == (400, "lease_token")
        assert send(client, what, 2**62, proof)[0] == 404
        assert send(client, what, 0, proof)[0] == 400
    assert send(client, "heartbeat", task_id, {"worker_id": ME})[0] == 200
    status, job = send(client, "complete", task_id, {"worker_id": ME})
    assert (status, job["attempts_log"]) == (200, []), "what was refused has left no trace"


def test_a_failure_is_retried_or_final(client: httpx.Client) -> None:
    task_id, proof = held(client, max_retries=1)
    failure = {**proof, "error": "no route", "error_type": "Timeout", "traceback": "at line 1"}
    for _ in range(2):
        status, job = send(client, "fail", task_id, failure)
        assert (status, job["status"], job["state"], job["attempts"]) == (200, "pending", "retrying", 1)
    (attempt,) = job["attempts_log"]
    assert (attempt["outcome"], attempt["worker_id"], attempt["error"]) == ("failed", ME, "no route")
    assert 4 <= retried(job) <= 6

    task_id, proof = held(client)
    status, job = send(client, "fail", task_id, {**proof, "error": "bad card", "retryable": False})
    assert (status, job["status"], job["dead_reason"], job["error"]) == (200, "dead", "non_retryable", "bad card")

    task_id, proof = held(client)
    assert send(client, "fail", task_id, {**proof, "retryable": None})[1]["error"] == "<Error without a message>"


def test_when_to_try_again(client: httpx.Client) -> None:
    for given, least, most in [
        (90, 90, 90),
        (0.5, 0.5, 0.5),
        ("120", 120, 120),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 3e8, 3.2e8),  # ten years are the most
        (None, 4, 6),
    ]:
        task_id, proof = held(client)
        status, job = send(client, "fail", task_id, {**proof, "retry_after": given})
        assert status == 200
        assert least - 5 <= retried(job) <= most + 0.001  # the end is noted a moment after the next time is set


#: In UTC it is of the year 10000.
LATEST = '"Fri, 31 Dec 9999 23:59:59 -0100"'
#: What must be refused by name; a body is JSON text, so that it may be what no client of ours would send.
FAULTS = [
    (
        "fail",
        "retry_after",
        ("-1", '"soon"', '"Mon, 31 Feb 2026 00:00:00 GMT"', LATEST, "true", "1e300", "1e400", "[]"),
    ),
    ("fail", "retryable", ('"no"', "0")),
    ("fail", "error", ("5", "[]", "true")),
    ("fail", "error_type", ("5", "{}")),
    ("fail", "traceback", ("5", "{}")),
    ("fail", "result", ("1",)),
    ("complete", "error", ('"x"',)),
    ("complete", "worker_id", ('" x"', '"x "', '""', f'"{"x" * 65}"', '"\u00e4"', '"\\u0000"', "5")),
    ("complete", "result", ('"\\ud800"', f"{'[' * 150}{']' * 150}")),
    ("heartbeat", "lease", ("0", "0.09", "86401", "-1", '"30"', "true", "1e400")),
    ("heartbeat", "colour", ("1",)),
]


def test_a_fault_is_named_and_changes_nothing(client: httpx.Client) -> None:
    task_id, proof = held(client)
    for what, field, values in FAULTS:
        for value in values:
            content = f'{{"lease_token": "{proof["lease_token"]}", "{field}": {value}}}'
            answer = client.post(
                f"/jobs/{task_id}/{what}", content=content.encode(), headers={"Content-Type": "application/json"}
            )
            assert (answer.status_code, answer.json()["field"][: len(field)]) == (400, field), (what, content)
    assert send(client, "complete", task_id, proof)[1]["attempts_log"] == []


def test_bodies_that_are_no_object_and_queries_are_refused(client: httpx.Client) -> None:
    task_id, proof = held(client)
    for what in ("heartbeat", "complete", "fail"):
        path = f"/jobs/{task_id}/{what}"
        for body in ("[]", '"x"', "null", "5", "", "{"):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["field"]) == (400, "body")
        assert client.post(path, content=b"{").status_code == 415
        assert client.post(path, json=proof, params={"force": 1}).json()["field"] == "force"


def test_a_result_over_the_limit_is_not_kept_but_the_work_is_done(env: Settings, client: httpx.Client) -> None:
    limit = env.max_result_bytes
    for size in (limit - 2, limit - 1, 3 * limit):
        task_id, proof = held(client)
        status, job = send(client, "complete", task_id, {**proof, "result": "x" * size})
        assert (status, job["status"]) == (200, "succeeded")
        fits = size + 2 <= limit
        assert (job["result"] is not None, job["error_type"]) == (fits, None if fits else "ResultNotStorable")
    task_id, proof = held(client)
    answer = client.post(f"/jobs/{task_id}/complete", json={**proof, "result": "x" * (32 * 1024 * 1024)})
    assert answer.status_code == 413
    assert send(client, "complete", task_id, proof)[0] == 200


# races: one is held at a point of its way, and the other one comes first


def before(api: ServedApi, method: str, act: Callable[[], object]) -> list[object]:
    """Just before the store is first asked for this, ``act`` is done by somebody else; what that answered."""
    store, answers = Tapped(api.app.store), list[object]()

    def call(*_: Any, **__: Any) -> None:
        del store.before[method]
        thread = threading.Thread(target=lambda: answers.append(act()))
        thread.start()
        thread.join(60)

    store.before[method] = call
    api.app._links._given_store = store
    return answers


def counts(api: ServedApi) -> dict[str, int]:
    found: dict[str, int] = api.app.store.counts()["ended"]
    return {name: n for name, n in found.items() if name in {"succeeded", "retried", "dead", "cancelled"} and n}


def run_out(api: ServedApi, client: httpx.Client, **options: Any) -> tuple[int, dict[str, Any]]:
    """A task whose lease is over but not ended."""
    task_id, proof = held(client, lease=0.1, **options)

    def is_over() -> bool:
        return any(claim.ids == (task_id,) for claim in api.app.store.expired_claims(100))

    eventually(is_over)
    return task_id, proof


@pytest.mark.parametrize("what", ["complete", "fail", "heartbeat"])
def test_the_lease_is_ended_first(api: ServedApi, client: httpx.Client, what: str) -> None:
    task_id, proof = run_out(api, client)
    ended = before(api, "renew" if what == "heartbeat" else "finish", lambda: expire(api.app, task_id))
    status, problem = send(client, what, task_id, proof)

    assert (ended, status, problem["type"]) == ([True], 409, "urn:tandemq:problem:lease-lost")
    task = api.app.get(task_id)
    assert task is not None
    assert (task.status.value, task.attempts) == ("pending", 1)
    fenced = [] if what == "heartbeat" else ["fenced"]
    assert sorted(a.outcome for a in task.attempts_log) == [*fenced, "lease_lost"]


@pytest.mark.parametrize(("what", "state"), [("complete", "succeeded"), ("fail", "retrying"), ("heartbeat", "running")])
def test_the_worker_comes_before_its_lease_is_ended(
    api: ServedApi, client: httpx.Client, what: str, state: str
) -> None:
    task_id, proof = run_out(api, client)
    if what == "heartbeat":
        proof["lease"] = 30
    came_first = before(api, "end_lease", lambda: send(client, what, task_id, proof)[0])
    assert not expire(api.app, task_id)
    assert came_first == [200]
    task = api.app.get(task_id)
    assert task is not None
    assert (task.state, task.attempts, "lease_lost" in {a.outcome for a in task.attempts_log}) == (state, 1, False)


@pytest.mark.parametrize(("first", "second", "statuses", "counted"), [
    ("complete", "complete", (200, 200), {"succeeded": 1}),
    ("fail", "fail", (200, 200), {"retried": 1}),
    ("complete", "fail", (409, 200), {"retried": 1}),
    ("fail", "complete", (409, 200), {"succeeded": 1}),
])  # fmt: skip
def test_two_verdicts_at_once(
    api: ServedApi, client: httpx.Client, first: str, second: str, statuses: tuple[int, int], counted: dict[str, int]
) -> None:
    task_id, proof = held(client)
    overtakes = before(api, "finish", lambda: send(client, second, task_id, proof)[0])
    assert (send(client, first, task_id, proof)[0], *overtakes) == statuses
    assert counts(api) == counted


@pytest.mark.parametrize(("what", "state", "counted"), [
    ("complete", "succeeded", {"succeeded": 1}),
    ("fail", "cancelled", {"cancelled": 1}),
])  # fmt: skip
def test_a_cancel_request_comes_in_between(
    api: ServedApi, client: httpx.Client, what: str, state: str, counted: dict[str, int]
) -> None:
    task_id, proof = held(client)
    asked = before(api, "finish", lambda: api.app.cancel(task_id))
    status, job = send(client, what, task_id, proof)
    assert (asked, status, job["status"]) == (["requested"], 200, state)
    assert send(client, what, task_id, proof)[0] == 200
    assert counts(api) == counted


def test_a_late_worker_cannot_end_what_another_one_has_claimed(api: ServedApi, client: httpx.Client) -> None:
    task_id, proof = run_out(api, client)
    assert expire(api.app, task_id)
    with api.app.store.db.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {api.app.settings.table_prefix}tasks SET run_at = UTC_TIMESTAMP(6)")
    api.app.push([task_id])
    (job,) = claim(client, worker_id="another")
    assert (job["id"], job["attempts"]) == (task_id, 2)
    for what in ("heartbeat", "complete", "fail"):
        assert send(client, what, task_id, proof)[0] == 409
    assert send(client, "complete", task_id, {"lease_token": job["lease_token"]})[0] == 200


def test_a_row_that_somebody_holds_is_waited_for(env: Settings, client: httpx.Client) -> None:
    task_id, proof = held(client)
    engine = sa.create_engine(env.database_url, poolclass=sa.NullPool)
    with engine.connect() as operator:
        operator.execute(sa.text(f"SELECT 1 FROM {env.table_prefix}tasks WHERE id = {task_id} FOR UPDATE"))
        release = threading.Timer(3.5, operator.rollback)  # longer than the server waits for a lock
        release.start()
        status, job = send(client, "complete", task_id, proof)
        release.join()
    assert (status, job["status"]) == (200, "succeeded")


def test_many_that_meet_locked_rows_leave_threads_for_everything_else(api: ServedApi, client: httpx.Client) -> None:
    jobs = [held(client) for _ in range(40)]
    other = enqueue(client)
    store = api.app._links._given_store = Tapped(api.app.store)
    release, reached = threading.Event(), threading.Semaphore(0)

    def locked(*_: Any, **__: Any) -> None:
        reached.release()
        release.wait(60)

    def complete(job: tuple[int, dict[str, Any]]) -> int:
        with api.client() as own:
            return send(own, "complete", *job)[0]

    store.before["finish"] = locked
    with ThreadPoolExecutor(len(jobs)) as pool:
        ends = [pool.submit(complete, job) for job in jobs]
        try:
            assert all(reached.acquire(timeout=30) for _ in range(16))
            assert not reached.acquire(timeout=1), "half of the threads"
            assert client.get(f"/jobs/{other}", timeout=15).status_code == 200
        finally:
            release.set()
    assert [end.result() for end in ends] == [200] * len(jobs)


def test_a_locked_row_is_not_waited_for_in_a_thread(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "LOCKED_AGAIN_S", 0.01)
    task_id, proof = held(client)
    real = api.app.store.finish
    store = api.app._links._given_store = Tapped(api.app.store)
    tries = list[bool]()

    def finish(*given: Any, again: bool, **more: Any) -> Settled:
        tries.append(again)
        is_free = len(tries) > working.LOCKED_TRIES + 1
        return real(*given, again=again, **more) if is_free else Settled(locked=(task_id,))

    store.finish = finish
    status, problem = send(client, "complete", task_id, proof)
    assert (status, problem["type"]) == (503, "urn:tandemq:problem:unavailable")
    assert len(tries) == working.LOCKED_TRIES
    assert send(client, "complete", task_id, proof)[0] == 200


def test_large_bodies_are_parsed_beside_the_event_loop(
    api: ServedApi, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, threads = calls.parse_json, list[str]()

    def parsed(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*given)

    monkeypatch.setattr(calls, "parse_json", parsed)
    for size in (10, calls.BIG_BODY):
        task_id, proof = held(client)
        del threads[:]
        assert send(client, "complete", task_id, {**proof, "result": "x" * size})[0] == 200
        assert (threads == ["api"]) == (size == 10), threads


def test_what_a_worker_process_holds_in_a_batch_is_not_ended_over_http(api: ServedApi, client: httpx.Client) -> None:
    ids = [enqueue(client), enqueue(client)]
    api.app.store.claim(ids, token=4711, worker_id="batch", lease_s=30.0, free=2, known=None, unknown_task_s=60.0)
    for what in ("heartbeat", "complete", "fail"):
        status, problem = send(client, what, ids[0], {"worker_id": "batch"})
        assert (status, "worker process" in problem["detail"]) == (409, True)


def test_with_the_database_away_it_is_503_and_the_same_call_works_later(
    own_mysql: Callable[..., Any], redis_url: str, settings_for: Callable[..., Settings]
) -> None:
    server = own_mysql()
    with served(settings_for(server.url(server.create_database()), redis_url)) as api, api.client() as client:
        task_id, proof = held(client)
        server.stop()
        for what in ("heartbeat", "complete", "fail"):
            answer = client.post(f"/jobs/{task_id}/{what}", json=proof)
            assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
        server.start()
        eventually(lambda: send(client, "complete", task_id, {**proof, "result": 7})[0] == 200, 60)
        assert send(client, "complete", task_id, proof)[1]["result"] == 7
