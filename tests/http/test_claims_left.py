"""Claims whose client goes away, claims at the end of the API, and very many that wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
import redis

from tandemq.core.settings import Settings
from tandemq.store.answers import Filter
from tests import recipes
from tests.api import ServedApi, app_of, served
from tests.healing import Tapped
from tests.http.hands import claim, enqueue, gone_client, is_untouched, listed, polls, request, room
from tests.scenarios.sizes import size
from tests.waiting import eventually


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """For requests that take their time."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def has_connection(port: int) -> bool:
    """Whether this process has a socket whose other end is at this port."""
    return any(c.raddr and c.raddr.port == port for c in psutil.Process().net_connections("tcp"))


def test_a_client_that_goes_while_it_waits_is_given_nothing(api: ServedApi, client: httpx.Client) -> None:
    with gone_client(api, wait=25):
        eventually(lambda: len(room(api)) == 1)
    eventually(lambda: len(room(api)) == 0)
    task_id = enqueue(client)
    assert is_untouched(api, task_id)
    assert [job["id"] for job in claim(client)] == [task_id]


@pytest.mark.parametrize("wait", [0, 25])
@pytest.mark.parametrize("step", ["claim", "get"])
def test_a_client_that_goes_before_its_answer_hands_its_task_back(
    api: ServedApi, client: httpx.Client, wait: int, step: str
) -> None:
    plain, reached, go = api.app.store, threading.Event(), threading.Event()
    store = api.app._links._given_store = Tapped(plain)

    def hold(*_: Any, **__: Any) -> None:
        if reached.is_set() or (step == "claim" and wait and not len(room(api))):
            return  # once, and not when its first try finds nothing
        reached.set()
        go.wait(30)

    store.after[step] = hold
    first = None if wait else enqueue(client)
    with gone_client(api, wait=wait) as connection:
        if wait:
            eventually(lambda: len(room(api)) == 1)
            first = enqueue(client)
        assert reached.wait(30)
        assert plain.get(first).status == "running"
        port = connection.getsockname()[1]
        connection.close()
        eventually(lambda: not has_connection(port))  # the server has heard of it
    behind = enqueue(client)
    go.set()
    eventually(lambda: is_untouched(api, first))
    assert listed(api) == [first, behind]
    assert api.app.get(first).attempts_log == ()


# the end of the API


def test_when_the_api_ends_whoever_waits_goes_home(env: Settings, threads: ThreadPoolExecutor) -> None:
    with served(env) as api:
        waits = [polls(api, threads) for _ in range(5)]
        began = time.monotonic()
    assert [wait.result(60) for wait in waits] == [[]] * 5
    assert time.monotonic() - began < 20, "they would have waited for 25 s"


def test_what_is_claimed_when_the_api_ends_is_answered(env: Settings, threads: ThreadPoolExecutor) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(*_: Any, **__: Any) -> None:
        reached.set()
        go.wait(30)

    with served(env) as api:
        store = Tapped(api.app.store)
        store.after["claim"] = hold
        api.app._links._given_store = store
        waits = polls(api, threads)
        with api.client() as client:
            task_id = enqueue(client)
        assert reached.wait(30)
        threading.Timer(0.5, go.set).start()
    assert [job["id"] for job in waits.result(60)] == [task_id]


def test_what_takes_too_long_to_be_answered_at_the_end_is_handed_back(env: Settings) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(*_: Any, **__: Any) -> None:
        reached.set()
        go.wait(30)

    with served(env, grace_s=0.2) as api:
        store = api.app._links._given_store = Tapped(api.app.store)
        store.after["claim"] = hold
        with api.client() as client:
            task_id = enqueue(client)
        with gone_client(api) as connection:
            assert reached.wait(30)
            api.server.should_exit = True
            assert connection.recv(100)[:12] in {b"", b"HTTP/1.1 503", b"HTTP/1.1 500"}, "it is cut off"
            go.set()
    with app_of(env) as after:
        task = after.get(task_id)
        assert task is not None
        assert (task.state, task.attempts) == ("ready", 0)


# very many


async def wait_at_once(api: ServedApi, n: int, then: Callable[[], None]) -> list[bytes]:
    """``n`` long polls, each on its own connection; what they are answered after ``then``."""
    host, port = api.url.removeprefix("http://").split(":")
    streams = []
    for _ in range(n):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request(wait=29))
        streams.append((reader, writer))
        if len(streams) % 50 == 0:
            await asyncio.to_thread(eventually, lambda: len(room(api)) == len(streams), 60)
    await asyncio.to_thread(eventually, lambda: len(room(api)) == n, 60)
    await asyncio.to_thread(then)
    answers = [await asyncio.wait_for(reader.read(12), 60) for reader, _ in streams]
    for _, writer in streams:
        writer.close()
    return answers


def test_very_many_waiting_claims_cost_neither_threads_nor_connections_nor_processor_time(env: Settings) -> None:
    n, watch_s = size(200, 1000), size(2.0, 10.0)
    process, figures = psutil.Process(), dict[str, float]()

    def look() -> None:
        with redis.Redis.from_url(recipes.administrator(env.redis_url)) as client:
            figures["connections"] = len(client.client_list())
        figures["threads"] = process.num_threads()
        began = time.process_time()
        time.sleep(watch_s)  # the thing to be measured is what happens while nothing happens
        figures["share"] = (time.process_time() - began) / watch_s
        with api.client() as client:
            answer = client.post("/jobs/batch", json=[{"type": "a"}] * n)
            assert answer.status_code == 200, answer.text

    with served(env) as api:
        answers = asyncio.run(wait_at_once(api, n, look))
        running = len(api.app.admin.find(Filter(state="running"), limit=1000).items)
    print(f"{n} waiting claims: {figures}")
    assert answers == [b"HTTP/1.1 200"] * n
    assert running == n
    assert figures["share"] < 0.3
    assert figures["connections"] < 45
    assert figures["threads"] < 60
