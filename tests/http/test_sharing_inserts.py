"""``POST /jobs``: requests that share an INSERT without knowing it, and those that must not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from tandemq import EnqueueUnknown, Filter, StoreRefused, StoreUnavailable
from tandemq.core.settings import Settings
from tandemq.core.task import Inserted, NewRow
from tandemq.http import enqueuing
from tandemq.store import engines
from tests import recipes
from tests.api import ServedApi, served
from tests.proxy import Proxy
from tests.scenarios.sizes import size
from tests.scenarios.truth import redis_ids
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather

WAITING = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"


class Inserts:
    """Sees every INSERT of the API's store; the first can be held until ``go`` is set."""

    def __init__(self, api: ServedApi, enqueuer: enqueuing.Enqueuer, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.go, self.held = threading.Event(), threading.Event()
        self.fails: Callable[[Sequence[NewRow]], Exception | None] = lambda rows: None
        self._api, self._enqueuer = api, enqueuer
        real = api.app.store.insert

        def insert(rows: Sequence[NewRow], **options: Any) -> list[Inserted]:
            self.sizes.append(len(rows))
            if len(self.sizes) == 1:
                self.held.set()
                assert self.go.wait(60)
            if (error := self.fails(rows)) is not None:
                raise error
            return real(rows, **options)

        patch.setattr(api.app.store, "insert", insert)

    def behind_one_another(self, pool: ThreadPoolExecutor, *bodies: Any) -> list[Future[httpx.Response]]:
        """The first is held while the others arrive; then all go on."""
        first = pool.submit(self._post, bodies[0])
        assert self.held.wait(60)
        others = [pool.submit(self._post, body) for body in bodies[1:]]
        eventually(lambda: len(self._enqueuer._asked) == len(others))
        self.go.set()
        return [first, *others]

    def _post(self, body: Any) -> httpx.Response:
        with self._api.client() as client:
            return client.post("/jobs", json=body)


@pytest.fixture(autouse=True)
def enqueuers(monkeypatch: pytest.MonkeyPatch) -> list[enqueuing.Enqueuer]:
    """Those that were made since."""
    made: list[enqueuing.Enqueuer] = []
    plain = enqueuing.Enqueuer.__init__

    def init(self: enqueuing.Enqueuer, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(enqueuing.Enqueuer, "__init__", init)
    return made


@pytest.fixture
def inserts(enqueuers: list[enqueuing.Enqueuer], api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inserts]:
    """The API's INSERTs, seen."""
    made = Inserts(api, enqueuers[0], monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Clients at once."""
    with ThreadPoolExecutor(40) as made:
        yield made


def test_requests_that_come_while_another_is_stored_share_one_insert(
    api: ServedApi, inserts: Inserts, pool: ThreadPoolExecutor
) -> None:
    times: list[dict[str, Any]] = [{}, {"delay": 60}, {"delay": 90}, {"expires": 30}, {"expires": 95, "delay": 80}]
    bodies = [{"type": "a", "payload": {"n": n}, **times[n % len(times)]} for n in range(31)]
    asked = inserts.behind_one_another(pool, *bodies)
    answers = [future.result() for future in asked]
    assert inserts.sizes == [1, 30]
    assert [answer.status_code for answer in answers] == [201] * 31
    assert [answer.json()["payload"]["n"] for answer in answers] == list(range(31))
    for answer in answers:
        stored = api.app.get(answer.json()["id"])
        assert stored is not None
        assert answer.json() == stored.to_json()
    assert redis_ids(api.app) == sorted(answer.json()["id"] for answer in answers)


def test_a_request_that_is_refused_takes_no_neighbour_along(
    api: ServedApi, inserts: Inserts, pool: ThreadPoolExecutor
) -> None:
    good: list[Any] = [{"type": "a", "payload": {"n": n}} for n in range(10)]
    bad: list[Any] = [
        {"type": "a", "delay": 5, "expires": 1},
        {"type": "a", "payload": {"text": "x" * api.app.settings.max_payload_bytes}},
        {"type": "refuse.me"},
    ]
    inserts.fails = lambda rows: (
        StoreRefused("it says no") if any(row.task_type == "refuse.me" for row in rows) else None
    )
    asked = inserts.behind_one_another(pool, *good[:4], bad[0], *good[4:7], bad[1], bad[2], *good[7:])
    statuses = [future.result().status_code for future in asked]
    assert statuses == [201] * 4 + [400] + [201] * 3 + [413, 500] + [201] * 3
    assert [json_of(future)["field"] for future in (asked[4], asked[8])] == ["expires", "payload"]
    assert "says no" not in asked[9].result().text
    assert len(api.app.admin.find(Filter()).items) == 10


def json_of(future: Future[httpx.Response]) -> Any:
    return future.result().json()


def test_what_nobody_knows_is_no_promise_and_no_refusal(inserts: Inserts, pool: ThreadPoolExecutor) -> None:
    inserts.fails = lambda rows: EnqueueUnknown("the answer to COMMIT was lost") if len(inserts.sizes) == 2 else None
    first, *others = inserts.behind_one_another(pool, *[{"type": "a"}] * 5)
    assert first.result().status_code == 201
    for future in others:
        answer = future.result()
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unknown-outcome")
        assert int(answer.headers["retry-after"]) > 0


def test_those_who_waited_behind_a_request_that_met_no_database_are_not_made_to_wait_as_long_again(
    api: ServedApi, inserts: Inserts, pool: ThreadPoolExecutor
) -> None:
    inserts.fails = lambda rows: StoreUnavailable("away") if len(inserts.sizes) == 1 else None
    asked = inserts.behind_one_another(pool, *[{"type": "a"}] * 5)
    answers = [future.result() for future in asked]
    assert {(answer.status_code, answer.json()["type"]) for answer in answers} == {
        (503, "urn:tandemq:problem:unavailable")
    }
    assert inserts.sizes == [1]
    assert inserts._post({"type": "a"}).status_code == 201


def test_where_no_thread_can_be_had_nobody_is_left_without_an_answer(
    api: ServedApi, inserts: Inserts, enqueuers: list[enqueuing.Enqueuer], pool: ThreadPoolExecutor
) -> None:
    (enqueuer,) = enqueuers
    first = pool.submit(inserts._post, {"type": "a"})
    assert inserts.held.wait(60)
    # Two groups: what is too much for the one waits for the next.
    big = {"type": "a", "payload": {"text": "x" * (enqueuing.MAX_BYTES * 2 // 3)}}
    others = [pool.submit(inserts._post, big) for _ in range(2)]
    eventually(lambda: len(enqueuer._asked) == 2)
    enqueuer._thread.shutdown(wait=False)
    inserts.go.set()
    assert first.result().status_code == 201
    kinds = sorted(future.result().json()["type"].rpartition(":")[2] for future in others)
    assert kinds == ["unavailable", "unknown-outcome"]
    assert len(api.app.admin.find(Filter()).items) == 1


def test_a_client_that_goes_away_takes_no_neighbour_along(
    api: ServedApi, inserts: Inserts, pool: ThreadPoolExecutor
) -> None:
    host, port = api.url.removeprefix("http://").split(":")
    body = b'{"type": "gone"}'
    head = f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    first = pool.submit(inserts._post, {"type": "a"})
    assert inserts.held.wait(60)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        eventually(lambda: len(inserts._enqueuer._asked) == 1)
    others = [pool.submit(inserts._post, {"type": "a"}) for _ in range(3)]
    eventually(lambda: len(inserts._enqueuer._asked) == 4)
    inserts.go.set()
    assert [future.result().status_code for future in [first, *others]] == [201] * 4
    assert inserts.sizes == [1, 4]


def test_more_than_may_wait_is_told_to_come_back(
    api: ServedApi, inserts: Inserts, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueuing, "MAX_WAITING", 4)
    first = pool.submit(inserts._post, {"type": "a"})
    assert inserts.held.wait(60)
    others = [pool.submit(inserts._post, {"type": "a"}) for _ in range(3)]
    eventually(lambda: len(inserts._enqueuer._asked) == 3)
    answer = inserts._post({"type": "a"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unavailable")
    assert int(answer.headers["retry-after"]) > 0
    monkeypatch.setattr(enqueuing, "MAX_WAITING", 1000)
    monkeypatch.setattr(enqueuing, "MAX_WAITING_BYTES", 100)
    assert inserts._post({"type": "a", "payload": {"text": "x" * 100}}).status_code == 503
    inserts.go.set()
    assert [future.result().status_code for future in [first, *others]] == [201] * 4
    assert inserts._post({"type": "a"}).status_code == 201
    assert len(api.app.admin.find(Filter()).items) == 5


def test_a_key_that_somebody_holds_makes_nobody_else_wait(
    api: ServedApi, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueuing, "KEY_WAIT_S", 60.0)

    def post(body: Any) -> httpx.Response:
        with api.client() as client:
            return client.post("/jobs", json=body)

    def post_until_it_is_free(body: Any) -> httpx.Response:
        while (answer := post(body)).status_code == 503:  # it is held for longer than a request waits
            pass
        return answer

    keyed = [{"type": "a", "idempotency_key": "held"}] * 20
    engine = sa.create_engine(recipes.administrator(api.app.settings.database_url))  # who may see others' locks
    # InnoDB: who waits for a key holds up what belongs right before it, and before the first key come those without.
    api.app.enqueue("a", {}, idempotency_key="before")
    with engine.connect() as first:
        held = api.app.enqueue("a", {}, idempotency_key="held", connection=first)
        waiting = [pool.submit(post_until_it_is_free, body) for body in keyed]
        seen: list[int] = []

        def one_waits() -> bool:
            with engine.connect() as looking:
                seen.append(looking.execute(sa.text(WAITING)).scalar() or 0)
            return seen[-1] > 0

        # Asked more often than ten times a second, the server would answer from an old copy for ever.
        eventually(one_waits, every_s=0.2)
        assert [post({"type": "a"}).status_code for _ in range(5)] == [201] * 5
        assert post({"type": "a", "idempotency_key": "later"}).status_code == 201
        assert seen[-1] == 1  # for all of them
        assert not any(future.done() for future in waiting)
        first.commit()
    engine.dispose()
    answers = [future.result() for future in waiting]
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {(200, held.id)}


def test_those_who_wait_for_a_key_too_long_are_told_to_come_back(
    api: ServedApi, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueuing, "KEY_WAIT_S", 0.2)

    def post() -> httpx.Response:
        with api.client() as client:
            return client.post("/jobs", json={"type": "a", "idempotency_key": "held"})

    engine = sa.create_engine(api.app.settings.database_url)
    with engine.connect() as first:
        held = api.app.enqueue("a", {}, idempotency_key="held", connection=first)
        waiting = [pool.submit(post) for _ in range(4)]
        eventually(lambda: sum(future.done() for future in waiting) == 3)
        first.commit()
    engine.dispose()
    answers = sorted((future.result() for future in waiting), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 503, 503, 503]
    assert answers[0].json()["id"] == held.id
    assert answers[1].json()["type"] == "urn:tandemq:problem:unavailable"


def test_without_the_database_503_and_with_it_again_201(
    own_mysql: Callable[..., MySQLServer], settings_for: Callable[..., Settings], redis_url: str
) -> None:
    server = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url)
    with served(settings) as api, api.client() as client:
        assert client.post("/jobs", json={"type": "a"}).status_code == 201
        server.kill9()
        for body in ({"type": "a"}, {"type": "a", "idempotency_key": "k"}):
            answer = client.post("/jobs", json=body)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:tandemq:problem:unavailable"), answer.text
            assert int(answer.headers["retry-after"]) > 0
            assert str(server.port) not in answer.text
        server.start()
        eventually(lambda: client.post("/jobs", json={"type": "b"}).status_code == 201, 60)
        assert [task.task_type for task in api.app.admin.find(Filter()).items] == ["b", "a"]


def test_an_answer_to_commit_that_is_lost_is_looked_up(
    mysql_server: MySQLServer, mysql_url: str, settings_for: Callable[..., Settings], redis_url: str
) -> None:
    with Proxy("127.0.0.1", mysql_server.port) as proxy:
        settings = settings_for(mysql_url.replace(f":{mysql_server.port}/", f":{proxy.port}/"), redis_url)
        with served(settings) as api, api.client() as client:
            assert client.post("/jobs", json={"type": "a"}).status_code == 201
            for body in ({"type": "a"}, {"type": "a", "idempotency_key": "k", "delay": 60}):
                proxy.swallow(b"COMMIT")
                answer = client.post("/jobs", json=body)
                assert answer.status_code == 201, answer.text
                stored = api.app.get(answer.json()["id"])
                assert stored is not None
                assert answer.json() == stored.to_json()
            assert proxy.hits == 2
            assert len(api.app.admin.find(Filter()).items) == 3


def test_a_frozen_database_is_503_within_a_minute_for_all_who_wait(
    own_mysql: Callable[..., MySQLServer],
    settings_for: Callable[..., Settings],
    redis_url: str,
    pool: ThreadPoolExecutor,
    weather: Weather,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How long an answer of the database may take; in earnest it is ten seconds.
    monkeypatch.setitem(engines.build.__kwdefaults__, "read_timeout_s", size(1, 10))
    server = own_mysql()
    settings = settings_for(server.url(server.create_database()), redis_url)
    with served(settings) as api:

        def post(n: int) -> tuple[int, float]:
            body = {"type": "a"} | ({"idempotency_key": f"k{n}"} if n % 2 else {})
            begun = time.monotonic()
            with api.client() as client:
                client.timeout = 200
                return client.post("/jobs", json=body).status_code, time.monotonic() - begun

        assert post(0)[0] == 201
        server.sigstop()
        answers = [future.result() for future in [pool.submit(post, n) for n in range(40)]]
        server.sigcont()
        print(f"longest {max(took for _, took in answers):.1f} s")
        assert {status for status, _ in answers} == {503}
        assert max(took for _, took in answers) < 60 + weather.slack_s
        eventually(lambda: post(0)[0] == 201, 60)
