"""The broker against a Redis that loses answers, freezes, dies, changes its role or refuses."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tandemq.broker.client import Connections, Role
from tandemq.broker.commands import ask
from tandemq.broker.keys import Keys
from tandemq.broker.redis_broker import RedisBroker
from tandemq.core.clock import SystemClock
from tandemq.core.errors import BrokerUnavailable
from tandemq.core.task import Level
from tests.contract.broker_bed import HandClock
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather

LEVEL = Level("default", 10)
READY = "t:{default}:ready:10"

OwnRedis = Callable[..., RedisServer]


def make_broker(url: str, clock: object = None) -> RedisBroker:
    return RedisBroker(Connections(url), Keys("t"), clock or SystemClock())  # type: ignore[arg-type]


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy


def times(raw: redis.Redis, command: str) -> int:
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


# An answer that is lost

CALLS: dict[str, tuple[str, Callable[[RedisBroker], object]]] = {
    "push": ("lpush", lambda b: b.push(LEVEL, [9])),
    "push_next": ("rpush", lambda b: b.push_next(LEVEL, [9])),
    "delay": ("zadd", lambda b: b.delay(LEVEL, {9: 1})),
    "pop": ("brpop", lambda b: b.pop([LEVEL], limit=2, wait_s=1)),
    "pop at once": ("rpop", lambda b: b.pop([LEVEL], limit=2, wait_s=0)),
    "promote": ("evalsha", lambda b: b.promote(LEVEL, now_ms=99, limit=1)),
    "advance": ("evalsha", lambda b: b.advance_generation("default", old=None, new="x")),
    "depth": ("llen", lambda b: b.depth(LEVEL)),
}


@pytest.mark.parametrize("options", ["", "?retry_on_timeout=yes&retry_on_error=x&health_check_interval=1&protocol=3"])
@pytest.mark.parametrize("call", CALLS)
def test_a_command_whose_answer_is_lost_has_run_once_and_is_reported(
    proxy: Proxy, raw: redis.Redis, call: str, options: str
) -> None:
    command, run = CALLS[call]
    broker = make_broker(f"redis://127.0.0.1:{proxy.port}/0{options}")
    for warm in CALLS.values():
        broker.push(LEVEL, [1, 2, 3])
        warm[1](broker)
    broker.push(LEVEL, [4, 5, 6])
    before = times(raw, command)

    proxy.swallow(command.encode())
    with pytest.raises(BrokerUnavailable):
        run(broker)

    assert proxy.hits == 1
    assert times(raw, command) == before + 1
    assert broker.pop([LEVEL], limit=1, wait_s=1).ids != ()
    broker.close()


def test_a_lost_fill_of_a_batch_keeps_the_id_in_hand(proxy: Proxy, raw: redis.Redis) -> None:
    broker = make_broker(f"redis://127.0.0.1:{proxy.port}/0")
    broker.push(LEVEL, [1, 2, 3])
    before = times(raw, "rpop")

    proxy.swallow(b"\r\nRPOP")
    popped = broker.pop([LEVEL], limit=2, wait_s=1)

    assert popped.ids == (1,)
    assert times(raw, "rpop") == before + 1
    assert raw.lrange(READY, 0, -1) == [b"3"]
    broker.close()


def wait_until_seen_cut(connections: Connections, role: Role) -> None:
    with connections.use(role) as client:
        idle = client.connection_pool._available_connections
        sockets = [connection._sock for connection in idle]
    eventually(lambda: len(select.select(sockets, [], [], 0)[0]) == len(sockets))


def test_connections_cut_while_idle_are_replaced_without_an_error(proxy: Proxy) -> None:
    connections = Connections(f"redis://127.0.0.1:{proxy.port}/0")
    broker = RedisBroker(connections, Keys("t"), SystemClock())
    for n in range(1, 4):
        broker.push(LEVEL, [n])
        assert broker.depth(LEVEL) == 1
        assert broker.pop([LEVEL], limit=5, wait_s=1).ids == (n,)
        proxy.cut()
        for role in Role:
            wait_until_seen_cut(connections, role)
    broker.close()


# Time-outs


def test_an_idle_pop_ends_before_the_time_out_of_the_url_and_is_sent_once(raw: redis.Redis, redis_url: str) -> None:
    broker = make_broker(f"{redis_url}?socket_timeout=2")
    before = times(raw, "brpop")

    for _ in range(2):
        assert broker.pop([LEVEL], limit=5, wait_s=30).ids == ()

    assert times(raw, "brpop") == before + 2
    broker.push(LEVEL, [1])
    assert broker.pop([LEVEL], limit=5, wait_s=30).ids == (1,)
    broker.close()


def test_a_frozen_server_costs_a_producer_one_time_out_and_then_nothing(own_redis: OwnRedis) -> None:
    server = own_redis()
    clock = HandClock()
    broker = make_broker(server.url(), clock)
    broker.push(LEVEL, [1])
    server.sigstop()

    with Weather() as weather:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            broker.push(LEVEL, [2])
        first_s = time.monotonic() - started
        for _ in range(100):
            with pytest.raises(BrokerUnavailable, match="not tried again"):
                broker.push(LEVEL, [3])
            with pytest.raises(BrokerUnavailable, match="not tried again"):
                broker.delay(LEVEL, {4: 1})
        rest_s = time.monotonic() - started - first_s

    assert first_s < 2 + weather.slack_s
    assert rest_s < 1 + weather.slack_s
    server.sigcont()
    clock.time += 1.0
    broker.push(LEVEL, [5])
    assert 5 in broker.window(LEVEL, 10).ids
    broker.close()


def test_a_new_producer_gets_its_answer_within_2_s_when_the_server_is_frozen(own_redis: OwnRedis) -> None:
    server = own_redis()
    server.sigstop()
    broker = make_broker(server.url())

    with Weather() as weather:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            broker.push(LEVEL, [2])
        took_s = time.monotonic() - started

    assert took_s < 2 + weather.slack_s
    broker.close()


def test_a_dead_server_fails_at_once_and_everything_works_when_it_is_back(own_redis: OwnRedis) -> None:
    server = own_redis()
    clock = HandClock()
    broker = make_broker(server.url(), clock)
    broker.push(LEVEL, [1])
    server.kill9()

    for call in (broker.ping, lambda: broker.push(LEVEL, [2]), lambda: broker.pop([LEVEL], limit=1, wait_s=1)):
        with pytest.raises(BrokerUnavailable, match="Redis: "):
            call()
    server.start()
    broker.ping()
    assert broker.pop([LEVEL], limit=1, wait_s=0.01).ids == ()
    with pytest.raises(BrokerUnavailable, match="not tried again"):
        broker.push(LEVEL, [3])
    clock.time += 1.0
    broker.push(LEVEL, [4])
    broker.push(LEVEL, [5])
    assert broker.pop([LEVEL], limit=9, wait_s=1).ids == (4, 5)
    broker.close()


# Roles and refusals


def blocked(raw: redis.Redis) -> bool:
    return bool(raw.info("clients")["blocked_clients"])


def test_a_blocked_pop_that_is_killed_is_reported_and_the_next_one_works(own_redis: OwnRedis) -> None:
    server = own_redis()
    broker = make_broker(f"{server.url()}?socket_timeout=20")
    with server.client() as raw, ThreadPoolExecutor(1) as pool:
        for n in range(1, 4):
            waiting = pool.submit(broker.pop, [LEVEL], limit=1, wait_s=9)
            eventually(lambda: blocked(raw))
            raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with pytest.raises(BrokerUnavailable):
                waiting.result()

            broker.push(LEVEL, [n])
            assert broker.pop([LEVEL], limit=1, wait_s=1).ids == (n,)
    broker.close()


def ids_of_clients(raw: redis.Redis) -> set[str]:
    return {client["id"] for client in raw.client_list() if client["name"].startswith("tandemq-")}


def test_a_server_that_becomes_a_replica_is_unavailable_until_its_role_returns(own_redis: OwnRedis) -> None:
    server = own_redis()
    clock = HandClock()
    broker = make_broker(f"{server.url()}?socket_timeout=20", clock)
    broker.delay(LEVEL, {1: 1})
    broker.promote(LEVEL, now_ms=0, limit=1)
    with server.client() as raw, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(broker.pop, [LEVEL], limit=1, wait_s=9)
        eventually(lambda: blocked(raw))
        raw.execute_command("REPLICAOF", "127.0.0.1", "1")
        before = ids_of_clients(raw)

        with pytest.raises(BrokerUnavailable, match="UNBLOCKED"):
            waiting.result()
        for call in (
            lambda: broker.push(LEVEL, [2]),
            lambda: broker.push_next(LEVEL, [2]),
            lambda: broker.pop([LEVEL], limit=1, wait_s=0.1),
            lambda: broker.promote(LEVEL, now_ms=9, limit=1),
            lambda: broker.advance_generation("default", old=None, new="x"),
            lambda: broker.register([LEVEL]),
        ):
            with pytest.raises(BrokerUnavailable, match="READONLY"):
                call()

        eventually(lambda: not ids_of_clients(raw) & before, message="every connection dropped")
        raw.execute_command("REPLICAOF", "NO", "ONE")
    clock.time += 1.0
    broker.push(LEVEL, [3])
    assert broker.promote(LEVEL, now_ms=9, limit=1) == 1
    assert broker.pop([LEVEL], limit=9, wait_s=1).ids == (3, 1)
    broker.close()


def test_at_maxmemory_a_push_is_refused_and_nothing_delayed_is_lost(own_redis: OwnRedis) -> None:
    server = own_redis()
    broker = make_broker(server.url())
    broker.delay(LEVEL, {1: 1, 2: 2})
    broker.promote(LEVEL, now_ms=0, limit=1)
    with server.client() as raw:
        raw.config_set("maxmemory", "1")

        with pytest.raises(BrokerUnavailable, match=r"OOM .*maxmemory"):
            broker.promote(LEVEL, now_ms=9, limit=9)
        with pytest.raises(BrokerUnavailable, match="OOM"):
            broker.push(LEVEL, [3])
        assert broker.delayed(LEVEL) == 2

        raw.config_set("maxmemory", "0")
    assert broker.promote(LEVEL, now_ms=9, limit=9) == 2
    broker.close()


def test_a_server_that_cannot_write_its_disk_is_unavailable(own_redis: OwnRedis) -> None:
    server = own_redis("--dbfilename", "x")
    broker = make_broker(server.url())
    with server.client() as raw:
        raw.config_set("save", "1 1")
        (server.folder / "x").mkdir()
        raw.set("t", "dirty")
        eventually(lambda: raw.info("persistence")["rdb_last_bgsave_status"] == "err", message="a failed save")

        with pytest.raises(BrokerUnavailable, match=r"MISCONF .*disk"):
            broker.push(LEVEL, [1])
    broker.close()


def test_a_hundred_and_twenty_threads_may_wait_at_once(redis_url: str) -> None:
    broker = make_broker(redis_url)
    with ThreadPoolExecutor(120) as pool:
        popped = list(pool.map(lambda _: broker.pop([LEVEL], limit=1, wait_s=0.5), range(120)))

    assert {p.ids for p in popped} == {()}
    broker.close()


def test_an_answer_left_on_a_connection_by_an_interrupted_call_is_never_read_as_another_s(redis_url: str) -> None:
    connections = Connections(redis_url)

    def interrupted() -> None:
        with connections.use(Role.SERVE) as client:
            ask(client, "PING")
            client.connection_pool._available_connections[0].send_command("ECHO", "late")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    with connections.use(Role.SERVE) as client:
        assert client.connection_pool._available_connections[0]._sock is None
        assert ask(client, "ECHO", "mine") == b"mine"
    connections.close()
