"""B34 over HTTP: many requests with one idempotency key at the same moment.

One row per key; every request gets its id, exactly one of them as 201, the others as 200, none an error. When the
first caller rolls back, exactly one of those who waited creates the task; when it commits, all get its task. A request
with another payload gets 409, which names the first id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tests.api import ServedApi, served
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.test_b34_one_key_many_callers import CALLERS, at_once, run_all
from tests.scenarios.truth import row_count, sql
from tests.waiting import eventually
from tests.workers import Bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300), pytest.mark.usefixtures("calm")]

KEYS = size(3, 100)


@pytest.fixture
def api(work: Bench) -> Iterator[ServedApi]:
    with served(work.settings) as made:
        yield made


@pytest.fixture
def clients(api: ServedApi) -> Iterator[list[httpx.Client]]:
    """A connection for each caller."""
    made = [api.client() for _ in range(CALLERS)]
    yield made
    for client in made:
        client.close()


@pytest.fixture
def crowd() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(CALLERS) as pool:
        yield pool


def calls(clients: list[httpx.Client], body: Callable[[int], dict[str, Any]]) -> list[Callable[[], httpx.Response]]:
    return [partial(client.post, "/jobs", json=body(number)) for number, client in enumerate(clients)]


def test_one_task_per_key(work: Bench, probe: Probe, clients: list[httpx.Client], crowd: ThreadPoolExecutor) -> None:
    ids = []
    for n in range(KEYS):
        body = {"type": "b.noop", "payload": {"n": n}, "idempotency_key": f"order-{n}"}
        answers = [future.result() for future in at_once(crowd, calls(clients, lambda _, body=body: body))]
        assert Counter(answer.status_code for answer in answers) == {201: 1, 200: CALLERS - 1}
        (task_id,) = {answer.json()["id"] for answer in answers}
        ids.append(task_id)
    assert row_count(work) == len(set(ids)) == KEYS
    run_all(work, probe, ids)


def test_two_processes_of_the_api_agree(
    work: Bench, probe: Probe, clients: list[httpx.Client], crowd: ThreadPoolExecutor
) -> None:
    # Within a process requests of one key queue up; between two of them the database decides.
    ids = []
    with served(work.settings) as other, other.client() as there:
        for n in range(size(5, 100)):
            body = {"type": "b.noop", "payload": {"n": n}, "idempotency_key": f"order-{n}"}
            pair = [partial(client.post, "/jobs", json=body) for client in (clients[0], there)]
            batches = [
                partial(client.post, "/jobs/batch", json=[body, {"type": "b.noop", "payload": {}}])
                for client in (clients[1], clients[2])
            ]
            answers = [future.result() for future in at_once(crowd, pair + batches)]
            found = [(answer.status_code, answer.json()["id"]) for answer in answers[:2]]
            items = [answer.json()["items"] for answer in answers[2:]]
            found += [(item["status"], item["id"]) for item, _ in items]
            assert Counter(status for status, _ in found) == {201: 1, 200: 3}, found
            (task_id,) = {task_id for _, task_id in found}
            ids += [task_id, *(item["id"] for _, item in items)]
    assert row_count(work) == len(set(ids)) == len(ids)
    run_all(work, probe, ids)


@pytest.mark.parametrize("ending", ["rollback", "commit"])
def test_those_who_wait_for_the_first_caller_agree_on_one_task_whatever_becomes_of_it(
    work: Bench, probe: Probe, clients: list[httpx.Client], crowd: ThreadPoolExecutor, mysql_url: str, ending: str
) -> None:
    ids = []
    engine = sa.create_engine(mysql_url)
    for n in range(size(1, 10)):
        body = {"type": "b.noop", "payload": {"n": n}, "idempotency_key": f"{ending}-{n}"}
        with engine.connect() as first:
            held = work.app.enqueue("b.noop", {"n": n}, idempotency_key=f"{ending}-{n}", connection=first)
            futures = at_once(crowd, calls(clients[:20], lambda _, body=body: body))
            waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
            eventually(lambda waiting=waiting: sql(work, waiting)[0][0] > 0, every_s=0.2)
            assert not any(future.done() for future in futures)
            getattr(first, ending)()
        answers = [future.result() for future in futures]
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses == ({200: 20} if ending == "commit" else {201: 1, 200: 19})
        (task_id,) = {answer.json()["id"] for answer in answers}
        assert (task_id == held.id) == (ending == "commit")
        ids.append(task_id)
    engine.dispose()
    assert row_count(work) == len(ids)
    run_all(work, probe, ids)


def test_another_payload_is_a_conflict_that_names_the_first_id(
    work: Bench, clients: list[httpx.Client], crowd: ThreadPoolExecutor
) -> None:
    for n in range(KEYS):

        def body(number: int, n: int = n) -> dict[str, Any]:
            return {"type": "b.noop", "payload": {"n": n, "odd": number % 2}, "idempotency_key": f"order-{n}"}

        answers = [future.result() for future in at_once(crowd, calls(clients[:20], body))]
        statuses = [[a.status_code for a in answers[side::2]] for side in (0, 1)]
        won = 0 if statuses[0][0] != 409 else 1
        assert Counter(statuses[won]) == {201: 1, 200: 9}
        assert Counter(statuses[1 - won]) == {409: 10}
        (winner,) = {answer.json()["id"] for answer in answers[won::2]}
        for answer in answers[1 - won :: 2]:
            assert answer.json()["task_id"] == winner
            assert str(winner) in answer.json()["detail"]
    assert row_count(work) == KEYS
