"""The page and its parts without servers: bounded in labels and in requests, and never broken by one part."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tandemq import metrics
from tandemq.core.errors import ConfigurationError, StoreUnavailable
from tandemq.monitoring import Exposition, Listener, Reading, Ticks, server
from tandemq.monitoring.server import REQUESTS
from tandemq.series import OTHER
from tandemq.service import Loop
from tandemq.testing import FakeClock
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    metrics._forget()
    yield
    metrics._forget()


# Loops


class Turning:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def step(self) -> float:
        if self.error is not None:
            raise self.error
        return 0.01


def test_a_loop_whose_turns_fail_is_late_and_one_that_turns_no_more_hangs() -> None:
    clock, service = FakeClock(), Turning()
    loop = Loop(service, clock, Random(1), "mover")
    ticks = Ticks({loop: 0.2}, clock)
    assert ticks.not_live() == ["the thread of the mover is gone"]
    loop.start()
    try:
        eventually(lambda: loop.last_turn_at is not None)
        assert ticks.not_live() == ticks.not_ready() == []
        service.error = StoreUnavailable("gone")
        eventually(lambda: loop._failures)
        clock.advance(20)
        eventually(lambda: loop.last_turn_at == clock.monotonic())
        assert ticks.not_live() == []
        assert ticks.not_ready() == ["the mover has had no good turn for 19 s"]
        (age,) = ticks()
        assert age.value == pytest.approx(20, abs=0.01)
    finally:
        loop.stop(30)


def test_a_thread_that_hangs_in_a_turn_is_told() -> None:
    clock, gate = FakeClock(), threading.Event()

    class Hanging:
        def step(self) -> float:
            gate.wait(30)
            return 0.0

    loop = Loop(Hanging(), clock, Random(1), "reconciler")
    ticks = Ticks({loop: 2.0}, clock)
    loop.start()
    try:
        clock.advance(60)
        assert ticks.not_live() == []
        clock.advance(10)
        assert ticks.not_live() == ["the reconciler hangs: its last turn ended 64 s ago"]
    finally:
        loop._stop.set()
        gate.set()
        loop.stop(30)


# The page and the listener


class Well:
    def __init__(self, *wrong: str) -> None:
        self.wrong = list(wrong)

    def not_live(self) -> list[str]:
        return []

    def not_ready(self) -> list[str]:
        return self.wrong


def get(listener: Listener, path: str) -> tuple[int, bytes]:
    host, port = listener.address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


@pytest.fixture
def serve() -> Iterator[Callable[..., Listener]]:
    made: list[Listener] = []

    def start(*sources: Any, health: Well | None = None) -> Listener:
        made.append(listener := Listener("127.0.0.1", 0, Exposition(sources), health or Well()))
        listener.start()
        return listener

    yield start
    for listener in made:
        listener.stop()


def test_a_source_that_breaks_costs_only_its_part(serve: Callable[..., Listener]) -> None:
    def broken() -> Iterator[Reading]:
        yield Reading("tandemq_dead_tasks", 3)
        raise RuntimeError("no")

    metrics.fenced(2)
    status, body = get(serve(broken, lambda: [Reading("tandemq_slots", 1, ("busy",))]), "/metrics")
    assert status == 200
    for line in (b"tandemq_dead_tasks 3.0", b'tandemq_slots{state="busy"} 1.0', b"tandemq_fenced_total 2.0"):
        assert line in body.splitlines()


def test_every_series_has_a_help_and_its_own_name(serve: Callable[..., Listener]) -> None:
    metrics.ran([("q", "t", 0.1, 0.2, 3)])
    _, body = get(serve(), "/metrics")
    names = {line.split(b"{")[0].split(b" ")[0] for line in body.splitlines() if not line.startswith(b"#")}
    helped = {line.split(b" ")[2] for line in body.splitlines() if line.startswith(b"# HELP")}
    ends = (b"_bucket", b"_count", b"_sum", b"_created")
    for name in names:
        stem = next((name.removesuffix(end) for end in ends if name.endswith(end)), name)
        assert name.startswith(b"tandemq_")
        assert helped & {name, stem, stem + b"_total"}


def test_probes_say_what_is_wrong_and_other_paths_are_not_there(serve: Callable[..., Listener]) -> None:
    listener = serve(health=Well("redis does not answer"))
    assert get(listener, "/health/live") == (200, b'{"status": "ok", "wrong": []}\n')
    assert get(listener, "/health/ready")[0] == 503
    assert b"redis does not answer" in get(listener, "/health/ready")[1]
    assert get(listener, "/")[0] == get(listener, "/metrics/x")[0] == 404


def test_clients_that_say_nothing_do_not_fill_the_listener_for_ever(
    serve: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 2.0)
    listener = serve()
    began = time.monotonic()
    idle = [socket.create_connection(listener.address, timeout=10) for _ in range(3 * REQUESTS)]
    try:
        for oldest in idle[: 2 * REQUESTS]:
            assert oldest.recv(1) == b""
        assert time.monotonic() - began < 2.0  # at once, not when their time is up
        for newest in idle[2 * REQUESTS :]:
            assert newest.recv(1) == b""
    finally:
        for s in idle:
            s.close()


def test_a_probe_is_answered_while_as_many_as_may_trickle(
    serve: Callable[..., Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 2.0)
    listener = serve()
    slow = [socket.create_connection(listener.address, timeout=10) for _ in range(REQUESTS)]
    began, closed = time.monotonic(), set[int]()
    try:
        while len(closed) < REQUESTS:
            for n, each in enumerate(slow):
                try:
                    each.send(b"G")
                except OSError:
                    closed.add(n)
            assert get(listener, "/health/live")[0] == 200
            assert time.monotonic() - began < 60  # each byte comes in time, the request does not
            time.sleep(0.1)
    finally:
        for s in slow:
            s.close()


def test_it_listens_on_ipv6_and_asks_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name was asked for"))
    listener = Listener("::", 0, Exposition([]), Well())
    listener.start()
    try:
        for host in ("[::1]", "127.0.0.1"):
            with urllib.request.urlopen(f"http://{host}:{listener.address[1]}/health/live", timeout=10) as answer:
                assert answer.status == 200
    finally:
        listener.stop()


def test_a_port_that_is_not_to_be_had_is_named(serve: Callable[..., Listener]) -> None:
    host, port = serve().address
    with pytest.raises(ConfigurationError, match=f"--metrics-port {port}"):
        Listener(host, port, Exposition([]), Well())
    with pytest.raises(ConfigurationError, match=r"no\.such\.host\.invalid"):
        Listener("no.such.host.invalid", 0, Exposition([]), Well())


# Times of single tasks


def value(name: str, **labels: str) -> float | None:
    registry = metrics.registry()
    assert registry is not None
    return registry.get_sample_value(f"tandemq_{name}", labels)


def test_a_time_counts_for_as_many_tasks_as_it_stands_for() -> None:
    metrics.ran([("q", "t", 0.3, 0.02, 4)])
    metrics.ran([("q", "t", 0.3, 0.02, 4), ("q", "t", 0.3, 0.02, 3), ("q", "u", 70.0, 9.0, 1)])
    assert value("run_seconds_count", type="t") == 11
    assert value("run_seconds_sum", type="t") == pytest.approx(0.22)
    assert value("run_seconds_bucket", type="t", le="0.01") == 0
    assert value("run_seconds_bucket", type="t", le="0.05") == 11
    assert value("queue_latency_seconds_count", queue="q") == 12
    assert value("queue_latency_seconds_bucket", queue="q", le="0.5") == 11
    assert value("queue_latency_seconds_bucket", queue="q", le="+Inf") == 12


def test_a_time_on_a_bound_belongs_below_it_as_in_the_library() -> None:
    metrics.ran([("q", "t", 21600.0, 0.001, 1), ("q", "v", 99_999.0, 1e9, 1)])
    assert value("run_seconds_bucket", type="t", le="0.001") == 1
    assert value("queue_latency_seconds_bucket", queue="q", le="21600.0") == 1
    assert value("run_seconds_bucket", type="v", le="+Inf") == 1


def test_types_beyond_the_bound_are_timed_together() -> None:
    from tandemq.timing import MAX_TIMED

    for n in range(MAX_TIMED + 5):
        metrics.ran([("q", f"t{n}", 0.1, 0.1, 1)])
    assert value("run_seconds_count", type=f"t{MAX_TIMED - 1}") == 1
    assert value("run_seconds_count", type=f"t{MAX_TIMED}") is None
    assert value("run_seconds_count", type=OTHER) == 5


def test_of_a_big_flush_some_are_timed_for_all_and_every_slow_one_for_itself() -> None:
    from types import SimpleNamespace

    from tandemq.core.lifecycle import Succeed
    from tandemq.core.task import Lease
    from tandemq.worker.acker import MAX_TIMED, NEVER_BEGAN, _timed
    from tandemq.worker.inbox import Held

    batch: Any = SimpleNamespace(sent_at=10.0)

    def item(n: int, ran_s: float, kind: str = "t") -> Any:
        held = Held(Lease(n, "q", 0, kind, "{}", "", 1, 3, 0, 1, 7, waited_us=2_000_000), batch)
        return held, Succeed(), 10.5, 10.5 + ran_s

    handed_back = (item(301, 0)[0], Succeed(), 0.0, NEVER_BEGAN)
    items = [*[item(n, 0.001) for n in range(203)], item(300, 5.0, "slow"), handed_back]
    found = _timed(items)
    assert sum(n for *_, n in found) == 204
    assert len(found) <= MAX_TIMED + 2
    assert [(n, round(ran_s)) for _, kind, _, ran_s, n in found if kind == "slow"] == [(1, 5)]
    assert all(waited_s == pytest.approx(2.5) for _, _, waited_s, _, _ in found)
    assert sum(n for *_, n in _timed(items[:5])) == 5
