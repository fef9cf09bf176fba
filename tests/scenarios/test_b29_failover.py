"""B29: after a failover of the database nobody stays on the server that has become read-only.

Required, with a user that may not write to a read-only server, under load: read_only=1 for a while, and then the
server stopped for as long: nothing is accepted meanwhile (the caller is told that the database is unavailable), no
attempt is used, no task fails or is dead, no process exits; five seconds after the end everything goes on. Every
connection that was open when the server became read-only is gone afterwards: after a failover it would be one to the
old primary.

Over HTTP: 503 with Retry-After meanwhile, and neither an error of another kind nor a request that hangs; at most five
seconds after the end POST /jobs answers 201 again, from the same process. What was answered with 201, and nothing else,
is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tandemq.core.errors import EnqueueUnknown, StoreUnavailable
from tandemq.core.settings import Settings
from tests import recipes
from tests.apiprocess import running
from tests.probe import Probe
from tests.scenarios.sizes import size
from tests.scenarios.truth import PACE, SLACK, assert_settled, row_count
from tests.servers import MySQLServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

#: Longer than a lease.
AWAY_S = size(4.0, 10.0)
GOES_ON_S = 5.0
#: Tasks that run over the beginning of the outage, and some of them over its end.
SLOW_S = [0.5, 2.0, AWAY_S + 3.0]


@pytest.fixture
def server(own_mysql: Callable[..., MySQLServer]) -> MySQLServer:
    return own_mysql()


@pytest.fixture
def work(
    server: MySQLServer, settings_for: Callable[..., Settings], redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    name = server.create_database()
    settings = settings_for(server.url(name), redis_url, **PACE)
    if not recipes.is_limited(settings):
        settings = recipes.limited(settings)  # an administrator may write to a server that is read-only
    with bench(settings, tmp_path, probe.environ) as made:
        yield made


def _connections(server: MySQLServer) -> set[int]:
    return {int(i) for (i,) in server.sql("SELECT id FROM information_schema.processlist WHERE user = 'tandemq_app'")}


def _load(work: Bench, seconds: float, ids: list[int]) -> int:
    """Enqueue all the time; how many were refused. Raises what no caller should have to expect."""
    refused = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            ids.append(work.app.enqueue("noop", {}).id)
        except EnqueueUnknown:
            raise
        except StoreUnavailable:
            refused += 1
        time.sleep(0.02)
    return refused


@pytest.mark.parametrize("how", ["read-only", "stopped"])
def test_a_database_that_is_away_for_longer_than_a_lease(
    work: Bench, server: MySQLServer, probe: Probe, weather: Weather, how: str
) -> None:
    work.worker("-c", "8").ready()
    ids = work.ids("noop", 10)
    assert work.ended(ids) == {"succeeded": 10}
    slow = [work.app.enqueue("sleep", {"seconds": s}, max_retries=0).id for s in SLOW_S]
    ids += slow
    eventually(lambda: all(probe.starts()[task_id] for task_id in slow), message=work.workers[0].text)
    assert _load(work, 1.0, ids) == 0

    before = _connections(server)
    assert len(before) >= 3, "of the worker's two processes and of the test"
    if how == "read-only":
        server.sql("SET GLOBAL read_only = 1")
    else:
        server.stop()
    accepted = len(ids)
    refused = _load(work, AWAY_S, ids)
    assert refused
    if how == "read-only":
        assert len(ids) == accepted, "accepted by a read-only server"
        server.sql("SET GLOBAL read_only = 0")
    else:
        server.start()
    back_at = time.time()

    first = eventually(lambda: _try(work), GOES_ON_S + SLACK + weather.slack_s)
    ids += first
    eventually(lambda: set(first) <= set(probe.ends()), 60, work.workers[0].text)
    goes_on_s = max(mark.at for mark in probe.marks("end") if mark.task_id in first) - back_at
    print(f"{how}: {refused} calls refused in {AWAY_S:g} s, all goes on {goes_on_s:.2f} s after the end")
    assert goes_on_s < GOES_ON_S + SLACK + weather.slack_s
    assert work.ended(ids) == {"succeeded": len(ids)}
    assert len(ids) == row_count(work)
    probe.assert_once(ids)
    assert {mark.attempt for mark in probe.marks("start")} == {1}
    assert_settled(work, probe, ids)
    if how == "read-only":
        eventually(lambda: not before & _connections(server), message=lambda: before & _connections(server))


def _try(work: Bench) -> list[int]:
    try:
        return work.ids("noop", 8)
    except StoreUnavailable:
        return []


@pytest.mark.parametrize("how", ["read-only", "stopped"])
def test_over_http_it_is_503_meanwhile_and_201_right_after(
    work: Bench, server: MySQLServer, weather: Weather, tmp_path: Path, how: str
) -> None:
    with running(work.settings, tmp_path) as api, api.client() as client:

        def post() -> httpx.Response:
            return client.post("/jobs", json={"type": "noop"})

        def load(seconds: float) -> list[httpx.Response]:
            answers, end = [post()], time.monotonic() + seconds
            while time.monotonic() < end:
                answers.append(post())
                time.sleep(0.02)
            return answers

        before = load(1.0)
        assert {answer.status_code for answer in before} == {201}
        if how == "read-only":
            server.sql("SET GLOBAL read_only = 1")
        else:
            server.stop()
        meanwhile = load(AWAY_S)
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").json()["database"] == ("ok" if how == "read-only" else "away")
        if how == "read-only":
            server.sql("SET GLOBAL read_only = 0")
        else:
            server.start()
        back_at = time.monotonic()
        first = eventually(
            lambda: (answer := post()).status_code == 201 and answer, GOES_ON_S + SLACK + weather.slack_s
        )
        goes_on_s = time.monotonic() - back_at
        after = load(1.0)

        refused = [answer for answer in meanwhile if answer.status_code != 201]
        assert {answer.status_code for answer in refused} == {503}
        longest_s = max(answer.elapsed.total_seconds() for answer in refused)
        print(f"{how}: {len(refused)} requests refused, the slowest in {longest_s:.2f} s; 201 {goes_on_s:.2f} s after")
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["type"] == "urn:tandemq:problem:unavailable", "nothing was stored, which is known"
            assert answer.headers["content-type"] == "application/problem+json"
        assert refused == meanwhile, "accepted by a database that takes nothing"
        assert {answer.status_code for answer in after} == {201}
        accepted = [answer.json()["id"] for answer in (*before, first, *after)]
        assert len(set(accepted)) == len(accepted) == row_count(work)
        api.process.terminate()
        assert api.wait() == 0
