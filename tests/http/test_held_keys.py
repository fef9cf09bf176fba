"""Keys that an open transaction of somebody else holds: who waits, how long, and who does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq import NewTask, StoreBusy, StoreUnavailable
from tandemq.core.task import NewRow
from tandemq.http import batch, enqueuing
from tandemq.producer import KEYED, Stored, Waits
from tests.api import ServedApi
from tests.http.batches import send, stored

UNAVAILABLE = "urn:tandemq:problem:unavailable"
Hold = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def held(api: ServedApi) -> Hold:
    """Keys in a transaction that stays open meanwhile; others sort before them (else all without one would wait)."""

    @contextmanager
    def hold(*keys: str) -> Iterator[None]:
        engine = sa.create_engine(api.app.settings.database_url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            for key in keys:
                api.app.enqueue("held", {}, idempotency_key=key, connection=connection)
            yield
            connection.rollback()

    api.app.enqueue("first", {}, idempotency_key="a")
    return hold


def test_an_item_of_a_batch_whose_key_is_held_takes_nobody_along(
    api: ServedApi, client: httpx.Client, held: Hold
) -> None:
    keys = [None, "k1", "held", "k2", None, "k3"]
    items = [{"type": "mail", "payload": {"n": n}, "idempotency_key": key} for n, key in enumerate(keys)]
    more = [{"type": "mail", "payload": {"n": n}} for n in range(6, 1500)]
    with held("held"):
        answers = send(client, "lines", [*items, *more])
    assert [one["status"] for one in answers] == [201, 201, 503] + [201] * 1497
    assert answers[2]["problem"]["type"] == UNAVAILABLE
    assert "another transaction" in answers[2]["problem"]["detail"]
    found = stored(api)
    assert [found[one["id"]] for one in answers if "id" in one] == [n for n in range(1500) if n != 2]
    assert [one["status"] for one in send(client, "lines", items[1:4])] == [200, 201, 200]


def test_a_batch_waits_for_so_many_keys_and_no_more(
    client: httpx.Client, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "KEY_WAITS", 3)
    tried = _insert_refuses(api, monkeypatch, lambda row: StoreBusy("held") if row.task_type == "held" else None)
    items: list[Any] = [{"type": "held", "idempotency_key": f"k{n}"} for n in range(5)]
    items += [{"type": "free", "idempotency_key": f"l{n}"} for n in range(1)] + [{"type": "free"}] * 3
    answers = send(client, "lines", items)
    # Those without a key come first; then all with one, then two of them by themselves: none is left for the others.
    assert [len(rows) for rows in tried] == [3, 6, 1, 1]
    assert [one["status"] for one in answers] == [503] * 6 + [201] * 3


def test_keyed_tasks_are_stored_a_few_at_a_time_and_answered_in_input_order(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = _insert_refuses(api, monkeypatch, lambda row: None)
    count = 2 * KEYED + 10
    news = [NewTask("a", {"n": n}, idempotency_key=f"{n * 7919 % count:04}" if n % 2 else None) for n in range(count)]
    done = api.app.producer.enqueue_each(news, Waits(1))
    assert [len(rows) for rows in tried] == [count // 2, KEYED, count // 2 - KEYED]
    keys = [str(row.idempotency_key) for rows in tried[1:] for row in rows]
    assert keys == sorted(keys)
    found = stored(api)
    assert [found[one.done.id] for one in done if isinstance(one, Stored)] == list(range(count))


def test_where_the_database_is_away_nothing_is_tried_after_it(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _insert_refuses(api, monkeypatch, lambda row: StoreUnavailable("away"))
    news = [NewTask("a", {}, idempotency_key=f"k{n}") for n in range(3 * KEYED)]
    done = api.app.producer.enqueue_each(news, Waits(9))
    assert {type(one) for one in done} == {StoreUnavailable}
    assert len(tried) == 1


def test_held_keys_give_their_places_back(
    api: ServedApi, held: Hold, monkeypatch: pytest.MonkeyPatch, client: httpx.Client
) -> None:
    waits: list[bool] = []
    real = api.app.store.insert

    def insert(rows: Sequence[NewRow], **options: Any) -> Any:
        if "patient" in options:
            waits.append(options["patient"])
        return real(rows, **options)

    monkeypatch.setattr(api.app.store, "insert", insert)
    # All places are taken by keys that are held; the next one waits for one of them longer than they wait in all.
    monkeypatch.setattr(enqueuing, "KEY_WAIT_S", 60.0)
    api.api.enqueuer._turns._value = 2

    def post(key: str) -> httpx.Response:
        with api.client() as other:
            return other.post("/jobs", json={"type": "a", "idempotency_key": key})

    with held("held0", "held1"), ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(post, f"held{n}") for n in range(2)]
        assert client.post("/jobs", json={"type": "a"}).status_code == 201
        assert post("z").status_code == 201
        answers = [future.result() for future in waiting]
    assert [(one.status_code, one.json()["type"]) for one in answers] == [(503, UNAVAILABLE)] * 2
    assert all(int(one.headers["retry-after"]) > 0 for one in answers)
    assert "another transaction" in json.loads(answers[0].text)["detail"]
    assert sorted(waits) == [False] * 3 + [True]


def _insert_refuses(
    api: ServedApi, patch: pytest.MonkeyPatch, why: Callable[[NewRow], Exception | None]
) -> list[Sequence[NewRow]]:
    """The rows of every INSERT; one with a row that is refused raises instead."""
    tried: list[Sequence[NewRow]] = []
    real = api.app.store.insert

    def insert(rows: Sequence[NewRow], **options: Any) -> Any:
        tried.append(rows)
        for error in filter(None, map(why, rows)):
            raise error
        return real(rows, **options)

    patch.setattr(api.app.store, "insert", insert)
    return tried
