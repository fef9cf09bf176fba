"""B08: a Redis that evicts, shared with a cache, throws the queue itself away; no task is lost, and that is named.

Required: with ``maxmemory`` just above use and ``allkeys-lru``, 400 ids, ready and delayed ones, go when a cache writes
20,000 keys. The worker names the unsafe policy when it starts, ``tandemq doctor`` calls it a fault, and all 400 tasks
run once within the recovery time, while the cache goes on writing and Redis goes on evicting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.scenarios.sizes import size
from tests.scenarios.truth import CALM, SLACK, T_REC, assert_settled
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

READY, DELAYED = 200, 200
JUNK_KEYS = 20_000
#: What Redis may grow by, for the connections of the worker and some keys of the cache.
ROOM = 2_000_000
DELAY_S = size(6.0, 10.0)


@pytest.fixture
def cache(own_redis: Callable[..., RedisServer]) -> RedisServer:
    """A Redis that was set up as a cache, without a limit as yet."""
    return own_redis("--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "10")


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, cache: RedisServer, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, cache.url(), **CALM), tmp_path, probe.environ) as made:
        yield made


def write_junk(client: redis.Redis, first: int, n: int) -> None:
    pipe = client.pipeline(transaction=False)
    for i in range(first, first + n):
        pipe.set(f"page:{i}", b"x" * 400)
    pipe.execute()


class Traffic:
    """The cache's own clients, who go on writing."""

    def __init__(self, client: redis.Redis) -> None:
        self.written = 0
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        while not self._over.wait(0.05):
            write_junk(self._client, 10**6 + self.written, 50)
            self.written += 50

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def keys_of(client: redis.Redis, settings: Settings) -> set[str]:
    return {key.decode().rpartition(":")[0] for key in client.keys(f"{settings.namespace}:{{default}}:*:0")}


def idle_of(client: redis.Redis, settings: Settings) -> list[int]:
    return [int(client.object("idletime", f"{key}:0")) for key in keys_of(client, settings)]


def test_a_queue_that_was_evicted(work: Bench, probe: Probe, cache: RedisServer, weather: Weather) -> None:
    ids = work.ids("noop", READY)
    due_at = time.time() + DELAY_S
    ids += [h.id for h in work.app.enqueue_many([NewTask("noop", {"n": n}, delay=DELAY_S) for n in range(DELAYED)])]
    with cache.client() as client:
        assert len(keys_of(client, work.settings)) == 2
        client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM)
        # The clock of its LRU counts seconds: before, a page would go as readily as the queue.
        eventually(lambda: min(idle_of(client, work.settings)) >= 2)
        for first in range(0, JUNK_KEYS, 500):
            write_junk(client, first, 500)
        evicted = client.info("stats")["evicted_keys"]
        assert not keys_of(client, work.settings), "the list or the sorted set was not evicted"

        told = tandemq(work.settings, "doctor", "--json", code=1)
        (finding,) = [f for f in told.json["findings"] if f["name"] == "redis.eviction"]
        assert finding["level"] == "fault"
        assert "maxmemory-policy is allkeys-lru, wanted noeviction" in finding["says"]
        assert "CONFIG SET maxmemory-policy noeviction" in finding["remedy"]

        with Traffic(client) as traffic:
            worker = work.worker("-c", "4").ready()
            listening = time.time()
            health = tandemq(work.settings, "health", "--all", "--json").json
            assert work.ended(ids) == {"succeeded": READY + DELAYED}
        assert "maxmemory-policy is allkeys-lru" in " ".join(health["warnings"])
        assert traffic.written
        assert client.info("stats")["evicted_keys"] > evicted, "nothing more was evicted while the worker ran"

    warned = [line for line in worker.text().splitlines() if "maxmemory-policy is allkeys-lru" in line]
    assert len(warned) == 1, worker.text()
    assert " WARNING " in warned[0]
    probe.assert_once(ids)
    could_run = dict.fromkeys(ids[:READY], listening) | dict.fromkeys(ids[READY:], max(listening, due_at))
    late = [mark.at - could_run[mark.task_id] for mark in probe.marks("start")]
    assert max(late) < T_REC + SLACK + weather.slack_s
    assert_settled(work, probe, ids)
