"""B01: an id that was popped and never claimed comes back by itself.

Required: whatever takes a pop's answer away - the connection is cut after the command ran, the network falls silent,
the worker is stopped while it waits and killed with the id in its socket - the task runs once, within the recovery
time, without an operator. A worker that was only stopped wakes up with an old id in its hand and does not run it again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tandemq import NewTask
from tests.probe import Probe
from tests.proxy import Proxy
from tests.scenarios.blocked import wait_until_blocked
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import SLACK, T_REC, assert_settled, redis_ids, sql
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import APP, Bench, Worker

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900), pytest.mark.usefixtures("calm")]

FIRST, REST = b"\r\nBRPOP", b"\r\nRPOP"
LOST_POPS = size(5, 10)
WAITING = 50
#: So long that a worker fetches for its free slots only, by many small pops.
RUN_S = 0.11
#: Of the workers behind the proxy: the shortest that their pops of half a second allow.
SOCKET_TIMEOUT_S = 1.2
#: A pop that ends by its own time-out just then takes no id with it: one tries again.
TRIES = 50
ALONE = ["--no-mover", "--no-reconcile"]


@pytest.fixture
def relay(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy


def popping(client: redis.Redis, *, blocked: bool = False) -> set[str]:
    """The ids of the connections that pop, or of those of them that wait in a pop right now."""
    found = (c for c in client.client_list() if c["name"] == "tandemq-block")
    return {c["id"] for c in found if "b" in c["flags"] or not blocked}


def lost(work: Bench) -> set[int]:
    """What Redis does not know of any more; waits until nothing runs, so that nothing else is pending."""
    eventually(lambda: not redis_ids(work) and not sql(work, "SELECT id FROM {t}tasks WHERE status = 'running'"), 60)
    return {task_id for (task_id,) in sql(work, "SELECT id FROM {t}tasks WHERE status = 'pending'")}


def swallow_pops(work: Bench, relay: Proxy, command: bytes, times: int) -> list[int]:
    """Lose the answers of so many pops that found something, one by one; all that was enqueued for it."""
    ids: list[int] = []

    def struck() -> int:
        if len(redis_ids(work)) < WAITING // 2:
            more = work.app.enqueue_many([NewTask("sleep", {"seconds": RUN_S})] * WAITING)
            ids.extend(handle.id for handle in more)
        return relay.struck[command.lower()]

    hits = 0
    while hits < times:
        before = struck()
        relay.swallow(command)
        eventually(lambda before=before: struck() > before, 60, every_s=0.005)
        hits += bool(redis_ids(work))  # on an empty list it has lost nothing
    return ids


def catch_in_a_pop(
    work: Bench, client: redis.Redis, queue: str, stop: Callable[[], None], go_on: Callable[[], None]
) -> tuple[int, list[int]]:
    """Stop whoever waits for work, then enqueue one, until it went out to somebody who does not see it.

    Its id, and those of the tries before, which have run.
    """
    ran: list[int] = []
    for _ in range(TRIES):
        eventually(lambda: popping(client, blocked=True), 60)
        stop()
        (task_id,) = work.ids("noop", 1, queue=queue)
        if not redis_ids(work) and work.statuses([task_id]) == {"pending": 1}:
            return task_id, ran
        go_on()
        ran.append(task_id)
        assert work.ended(ran) == {"succeeded": len(ran)}
    raise AssertionError("nobody was ever stopped in the middle of a pop")


def assert_back_in_time(probe: Probe, ids: set[int], since: float, weather: Weather) -> None:
    late = {task_id: mark.at - since for task_id in ids for mark in probe.marks("start", task_id)}
    assert max(late.values()) < T_REC + SLACK + weather.slack_s, late


def test_answers_of_pops_are_lost(
    work: Bench, probe: Probe, relay: Proxy, redis_client: redis.Redis, weather: Weather
) -> None:
    url = f"redis://127.0.0.1:{relay.port}/0?socket_timeout={SOCKET_TIMEOUT_S}"
    for _ in range(2):
        # Nor may a worker that takes Redis for away find them in the database: only the reconciler, later.
        work.worker("-c", "4", *ALONE, TANDEMQ_REDIS_URL=url, TANDEMQ_REDIS_AWAY_S="600").ready()
    ids = work.ids("noop", 2)
    assert work.ended(ids) == {"succeeded": 2}
    tandemq(work.settings, "-A", APP, "reconcile", "--once")  # from here on the lists count as whole

    ids += swallow_pops(work, relay, FIRST, LOST_POPS)
    firsts = lost(work)
    assert len(firsts) >= LOST_POPS
    ids += swallow_pops(work, relay, REST, LOST_POPS)
    assert len(lost(work) - firsts) >= LOST_POPS

    connected = popping(redis_client)

    def silence() -> None:
        relay.silent = True

    def speak() -> None:
        relay.silent = False

    unheard, heard = catch_in_a_pop(work, redis_client, "default", silence, speak)
    eventually(lambda: not popping(redis_client) & connected, 60)  # all have given up on their answers
    speak()
    ids += [unheard, *heard]
    gone = lost(work)
    assert unheard in gone
    assert not gone & set(probe.starts())

    healing = time.time()
    work.worker(verb="reconcile")
    assert work.ended(ids) == {"succeeded": len(ids)}

    assert_back_in_time(probe, gone, healing, weather)
    probe.assert_once(ids)
    assert_settled(work, probe, ids)


def stopped_in_a_pop(work: Bench, client: redis.Redis, queue: str) -> tuple[Worker, int, list[int]]:
    """A worker that is stopped as a whole with an id in its socket; the id, and those that it has run."""
    worker = work.worker("-q", queue, "-c", "2", *size(ALONE, [])).ready()
    wait_until_blocked(client, worker)
    unseen, ran = catch_in_a_pop(
        work,
        client,
        queue,
        stop=lambda: os.killpg(worker.pid, signal.SIGSTOP),
        go_on=lambda: os.killpg(worker.pid, signal.SIGCONT),
    )
    return worker, unseen, ran


@pytest.mark.parametrize("turn", range(size(1, 10)))
def test_workers_are_stopped_in_their_pops(
    work: Bench, probe: Probe, redis_client: redis.Redis, tmp_path: Path, weather: Weather, turn: int
) -> None:
    """One is killed with the id in its socket, the other wakes up when its id has run elsewhere."""
    killed, in_its_socket, first = stopped_in_a_pop(work, redis_client, "a")
    killed.kill_group()
    work.workers.remove(killed)
    woken, old, second = stopped_in_a_pop(work, redis_client, "b")
    other = work.worker("-q", "a,b", "-c", "2").ready()
    wait_until_blocked(redis_client, other)
    listening = time.time()

    assert work.ended([in_its_socket, old]) == {"succeeded": 2}

    assert_back_in_time(probe, {in_its_socket, old}, listening, weather)
    os.killpg(woken.pid, signal.SIGCONT)
    gate = tmp_path / "gate"
    held = work.app.enqueue_many([NewTask("hold", {"until": str(gate)}, queue="b")] * 4)
    ids = [in_its_socket, old, *first, *second, *(handle.id for handle in held)]
    eventually(lambda: set(ids) <= set(probe.starts()), 60, woken.text)  # both of them work
    gate.touch()
    assert work.ended(ids) == {"succeeded": len(ids)}
    probe.assert_once(ids)
    assert_settled(work, probe, ids)
