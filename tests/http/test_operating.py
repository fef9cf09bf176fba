"""Cancel and replay: outcomes, the audit log, runs, and every field refused by name."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq import Filter, NewTask, StoreRefused, StoreUnavailable, StoreUnknown
from tandemq.core.lifecycle import Bury, DeadReason, Failure
from tandemq.replaying import Keeper
from tandemq.store.answers import Settlement
from tests import recipes
from tests.api import ServedApi
from tests.waiting import eventually


def claim(api: ServedApi, task_id: int, token: int = 77) -> Any:
    """Claim it, as a worker would."""
    (lease,) = api.app.store.claim(
        [task_id], worker_id="w", token=token, lease_s=60.0, free=1, known=None, unknown_task_s=60.0
    ).leases
    return lease


def bury(api: ServedApi, task_id: int) -> None:
    """Let it run once and die."""
    verdict = Bury(DeadReason.NON_RETRYABLE, Failure("Boom", "it broke"))
    token = 1000 + task_id
    settlement = Settlement(claim(api, task_id, token), verdict)
    api.app.store.finish([settlement], closing=[token], worker_id="w")
    assert api.app.admin.show(task_id).state == "dead"


@pytest.fixture
def dead(api: ServedApi) -> list[int]:
    """Four dead tasks, three in queue a and one in b."""
    news = [NewTask("fragile", {"n": n, "old": True}, queue="b" if n == 3 else "a") for n in range(4)]
    ids = [handle.id for handle in api.app.enqueue_many(news)]
    for task_id in ids:
        bury(api, task_id)
    return ids


def carry_out(api: ServedApi) -> None:
    """What the reconciler of a worker does about runs, until nothing is left."""
    keeper = Keeper(api.app.store, lambda moved: None, api.app.clock, "keeper", 1_000_000)

    def is_idle() -> bool:
        keeper.turn(pytest.fail)
        return not keeper.is_busy

    eventually(is_idle)


# cancel


def test_a_waiting_task_is_cancelled_and_again_is_the_same(client: httpx.Client, api: ServedApi) -> None:
    task_id = api.app.enqueue("t", {}).id

    for _ in range(2):
        answer = client.post(f"/jobs/{task_id}/cancel", json={"reason": "not wanted"})
        assert (answer.status_code, answer.json()["outcome"]) == (200, "cancelled"), answer.text
        assert answer.json()["job"] == api.app.admin.show(task_id).to_json()
    entry = api.app.audit(task_id=task_id).items[-1]
    assert (entry.action, entry.who, entry.reason) == ("cancel", "local", "not wanted")


def test_a_running_task_is_asked_to_end(client: httpx.Client, api: ServedApi) -> None:
    task_id = api.app.enqueue("t", {}).id
    claim(api, task_id)

    answer = client.post(f"/jobs/{task_id}/cancel", json={})

    assert (answer.status_code, answer.json()["outcome"]) == (202, "requested")
    assert answer.json()["job"]["status"] == "running"
    assert api.app.admin.show(task_id).cancel_requested_at is not None


def test_what_has_ended_is_not_cancelled(client: httpx.Client, dead: list[int]) -> None:
    answer = client.post(f"/jobs/{dead[0]}/cancel", json={"reason": None})

    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (409, "urn:tandemq:problem:wrong-state")
    assert (problem["task_id"], problem["task_state"]) == (dead[0], "dead")
    assert client.post("/jobs/99999/cancel", json={}).status_code == 404


# replay of one


def test_a_dead_task_is_replayed_once(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    answer = client.post(f"/jobs/{dead[0]}/replay", json={"queue": "later", "priority": "high", "reason": "fixed"})

    assert answer.status_code == 200, answer.text
    job = answer.json()
    assert (job["status"], job["queue"], job["priority"], job["replays"]) == ("pending", "later", 20, 1)
    entry = api.app.audit(task_id=dead[0]).items[0]
    assert (entry.action, entry.who, entry.reason) == ("replay", "local", "fixed")
    again = client.post(f"/jobs/{dead[0]}/replay", json={})
    assert (again.status_code, again.json()["task_state"]) == (409, "ready")
    assert client.post("/jobs/99999/replay", json={}).status_code == 404


def test_an_edit_changes_the_payload(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    edit = {"n": 5, "old": None, "nested": {"city": "Bern"}}

    job = client.post(f"/jobs/{dead[0]}/replay", json={"edit": edit}).json()

    assert job["payload"] == {"n": 5, "nested": {"city": "Bern"}}
    assert api.app.admin.show(dead[0]).to_json()["payload"] == job["payload"]


def test_an_edit_that_makes_it_too_large_is_refused(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    size = api.app.settings.max_payload_bytes
    answer = client.post(f"/jobs/{dead[0]}/replay", json={"edit": {"x": "y" * size}})

    assert (answer.status_code, answer.json()["field"]) == (400, "edit"), answer.text
    assert str(size) in answer.json()["detail"]
    assert api.app.admin.show(dead[0]).state == "dead"


# replay of many


def test_a_few_ids_are_replayed_at_once(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    alive = api.app.enqueue("t", {}).id

    answer = client.post("/dead/replay", json={"ids": [dead[0], str(dead[1]), dead[1], alive, 99999]})

    assert answer.status_code == 200, answer.text
    shape = answer.json()
    assert (shape["moved"], shape["skipped"], shape["failed"], shape["left"]) == (2, 2, 0, 0)
    assert (shape["run_id"], sum(one["n"] for one in shape["reasons"])) == (None, 2)
    assert [api.app.admin.show(i).state for i in dead] == ["ready", "ready", "dead", "dead"]


@pytest.mark.parametrize("more", [{}, {"rate": "500/s", "limit": 3, "stop_if_failing": 1}])
def test_a_filter_is_a_run_that_can_be_followed(
    client: httpx.Client, api: ServedApi, dead: list[int], more: dict[str, Any]
) -> None:
    ask = {"filter": {"queue": "a", "error_type": "Boom"}, "reason": "fixed", "priority": 5, **more}
    answer = client.post("/dead/replay", json=ask)

    assert answer.status_code == 202, answer.text
    shape = answer.json()
    where = answer.headers["location"]
    assert where == f"/dead/replays/{shape['run_id']}"
    assert where in shape["follow"]
    assert f"tandemq dead replays show {shape['run_id']}" in shape["follow"]
    begun = client.get(where).json()
    assert (begun["state"], begun["created_by"], begun["reason"], begun["moved"]) == ("selecting", "local", "fixed", 0)
    assert not begun["is_held"], "the API process does not carry it out"

    carry_out(api)
    done = client.get(where).json()
    assert (done["moved"], done["left"]) == (3, 0), done
    assert [(t.queue, t.priority) for t in api.app.admin.find(Filter(state="ready")).items] == [("a", 5)] * 3


def test_many_ids_are_a_run_too(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    ids = [dead[0], *range(100_000, 100_600)]

    run = client.post("/dead/replay", json={"ids": ids})
    assert run.status_code == 202, run.text
    carry_out(api)
    done = client.get(run.headers["location"]).json()
    assert (done["state"], done["moved"], done["selection"]) == ("done", 1, {"ids": 601})


def test_a_dry_run_counts_and_moves_nothing(client: httpx.Client, api: ServedApi, dead: list[int]) -> None:
    for chosen in ({"filter": {"state": "dead"}}, {"ids": dead}):
        answer = client.post("/dead/replay", json={**chosen, "dry_run": True, "rate": "1/s"})
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"found": 4, "kinds": [{"task_type": "fragile", "error_type": "Boom", "n": 4}]}
    assert {api.app.admin.show(i).state for i in dead} == {"dead"}
    assert api.app.dead.replays.list() == []


def test_what_was_done_before_the_database_went_away_is_not_said_to_be_undone(
    client: httpx.Client, api: ServedApi, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(task_id: int) -> Any:
        raise StoreUnavailable("away")

    waiting = api.app.enqueue("a", {})
    monkeypatch.setattr(api.app.admin, "show", show)
    for path, says in [(f"/jobs/{waiting.id}/cancel", "is cancelled"), (f"/jobs/{dead[0]}/replay", "was replayed")]:
        answer = client.post(path, json={})
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unknown-outcome")
        assert says in answer.json()["detail"]
    assert [str(task.state) for task in map(api.app.get, (waiting.id, dead[0])) if task] == ["cancelled", "ready"]


def test_a_commit_without_an_answer_is_not_said_to_be_undone(
    client: httpx.Client, api: ServedApi, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_run(*args: Any, **options: Any) -> Any:
        raise StoreUnknown("the answer to COMMIT was lost")

    monkeypatch.setattr(api.app.store, "create_run", create_run)
    answer = client.post("/dead/replay", json={"filter": {"state": "dead"}})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unknown-outcome")
    assert int(answer.headers["retry-after"]) > 0


def test_what_the_database_refuses_is_no_fault_of_the_request_and_its_words_stay_here(
    client: httpx.Client, api: ServedApi, dead: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    prefix = api.app.settings.table_prefix
    engine = sa.create_engine(recipes.administrator(api.app.settings.database_url), poolclass=sa.NullPool)
    refuse = f"UPDATE ON {prefix}tasks FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the trigger says no'"
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TRIGGER {prefix}no BEFORE {refuse}"))
    alone = client.post(f"/jobs/{dead[0]}/replay", json={})
    edited = client.post(f"/jobs/{dead[0]}/replay", json={"edit": {"n": 1}})
    paced = client.post("/dead/replay", json={"ids": dead[1:2], "rate": 1000})
    carry_out(api)
    assert (alone.status_code, alone.json()["type"]) == (500, "urn:tandemq:problem:internal")
    assert (edited.status_code, edited.json()["field"]) == (400, "edit")
    run = client.get(paced.headers["location"])
    assert "refused" in run.text
    assert [text for text in (alone.text, edited.text, run.text) if "says no" in text] == []
    assert "the trigger says no" in caplog.text


def test_a_run_that_the_database_refuses_does_not_repeat_its_words(
    client: httpx.Client, api: ServedApi, dead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def candidates(*args: Any, **options: Any) -> Any:
        raise StoreRefused("the database refused a statement: it says no")

    monkeypatch.setattr(api.app.store, "candidates", candidates)
    run = client.post("/dead/replay", json={"ids": dead, "rate": 1000}).headers["location"]
    alarms: list[str] = []
    keeper = Keeper(api.app.store, lambda moved: None, api.app.clock, "keeper", 1_000_000)
    eventually(lambda: keeper.turn(alarms.append) >= 0 and client.get(run).json()["state"] == "paused")
    assert "says no" in alarms[0]
    assert "refused a statement" in client.get(run).json()["note"]
    assert "says no" not in client.get(run).text


def test_an_unknown_run_is_404(client: httpx.Client) -> None:
    for path in ("/dead/replays/1", "/dead/replays/9223372036854775807"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["field"]) == (404, "id"), answer.text


BODIES: list[tuple[str, Any, str]] = [
    ("/jobs/{id}/cancel", [], "body"),
    ("/jobs/{id}/cancel", {"why": "x"}, "why"),
    ("/jobs/{id}/cancel", {"reason": 5}, "reason"),
    ("/jobs/{id}/cancel", {"reason": "x" * 4001}, "reason"),
    ("/jobs/{id}/replay", {"reason": {}}, "reason"),
    ("/jobs/{id}/replay", {"queue": "a b"}, "queue"),
    ("/jobs/{id}/replay", {"priority": 1001}, "priority"),
    ("/jobs/{id}/replay", {"priority": "urgent"}, "priority"),
    ("/jobs/{id}/replay", {"edit": []}, "edit"),
    ("/jobs/{id}/replay", {"edit": "{}"}, "edit"),
    ("/dead/replay", {}, "ids"),
    ("/dead/replay", {"ids": [1], "filter": {"queue": "a"}}, "ids"),
    ("/dead/replay", {"ids": []}, "ids"),
    ("/dead/replay", {"ids": [1] * 1001}, "ids"),
    ("/dead/replay", {"ids": 1}, "ids"),
    ("/dead/replay", {"ids": [1, True]}, "ids[1]"),
    ("/dead/replay", {"ids": [1, 2.5]}, "ids[1]"),
    ("/dead/replay", {"ids": ["1", "01"]}, "ids[1]"),
    ("/dead/replay", {"ids": [2**63]}, "ids[0]"),
    ("/dead/replay", {"filter": {}}, "filter"),
    ("/dead/replay", {"filter": None}, "filter"),
    ("/dead/replay", {"filter": []}, "filter"),
    ("/dead/replay", {"filter": {"queue": None}}, "filter.queue"),
    ("/dead/replay", {"filter": {"status": "dead"}}, "filter.status"),
    ("/dead/replay", {"filter": {"state": "ready"}}, "filter.state"),
    ("/dead/replay", {"filter": {"error": ""}}, "filter.error"),
    ("/dead/replay", {"ids": [1], "edit": {}}, "edit"),
    ("/dead/replay", {"ids": [1], "rate": 0}, "rate"),
    ("/dead/replay", {"ids": [1], "rate": "fast"}, "rate"),
    ("/dead/replay", {"ids": [1], "limit": 0}, "limit"),
    ("/dead/replay", {"ids": [1], "limit": 2.5}, "limit"),
    ("/dead/replay", {"ids": [1], "canary": "0%"}, "canary"),
    ("/dead/replay", {"ids": [1], "canary": 0.5}, "canary"),
    ("/dead/replay", {"ids": [1], "stop_if_failing": 1.5}, "stop_if_failing"),
    ("/dead/replay", {"ids": [1], "canary_wait": -1}, "canary_wait"),
    ("/dead/replay", {"ids": [1], "canary_wait": 1e308}, "canary_wait"),
    ("/dead/replay", {"ids": [1], "dry_run": 1}, "dry_run"),
    ("/dead/replay", {"ids": [1], "detach": True}, "detach"),
]


def test_a_fault_is_named_and_nothing_is_done(api: ServedApi, client: httpx.Client, dead: list[int]) -> None:
    for path, body, culprit in BODIES:
        answer = client.post(path.replace("{id}", str(dead[0])), json=body)
        assert (answer.status_code, answer.json()["field"]) == (400, culprit), (path, body, answer.text)

    assert {api.app.admin.show(i).state for i in dead} == {"dead"}
    assert api.app.audit().items == ()
