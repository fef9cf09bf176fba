"""Pause, resume and drain with real workers: obeyed within two seconds, durable, and nothing is lost by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.clock import SystemClock
from tandemq.core.settings import Settings
from tandemq.core.task import Level
from tandemq.pausing import OBEYED_S
from tandemq.reconciler.window import DUE_FOR_S, Window
from tests.contract.store_contract import claim, fail, settle
from tests.probe import Probe
from tests.scenarios.command_line import tandemq
from tests.servers import RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, Worker, bench

QUICK = {"reconcile_s": 0.3, "mover_s": 0.05, "heartbeat_s": 1.0, "grace_s": 1.0}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **QUICK), tmp_path, probe.environ) as made:
        yield made


def cpu_s(worker: Worker) -> float:
    return sum(child.cpu_times().user + child.cpu_times().system for child in worker.children())


def test_nothing_of_a_paused_queue_begins_and_all_of_it_after(work: Bench, probe: Probe, weather: Weather) -> None:
    work.worker("-q", "default,mail", "-c", "2").ready()
    work.app.pauses.pause("mail", reason="the relay is down")
    time.sleep(OBEYED_S + weather.slack_s)  # the promise itself
    held = work.ids("noop", 20, queue="mail")
    assert work.ended(work.ids("noop", 20)) == {"succeeded": 20}  # the other queue goes on meanwhile
    assert probe.marks("start", held[0]) == []
    assert work.statuses(held) == {"pending": 20}
    assert "queue 'mail' is paused" in work.app.why(held[0])
    work.app.close()  # it is in the database, in nobody's memory

    resumed_at = time.time()
    assert work.app.pauses.resume("mail")
    assert work.ended(held) == {"succeeded": 20}
    (first,) = probe.marks("start", held[0])
    assert first.at - resumed_at < OBEYED_S + weather.slack_s


def test_all_queues_paused_and_one_runs_out_by_itself(work: Bench, probe: Probe) -> None:
    worker = work.worker("-q", "default,mail", "-c", "2").ready()
    work.app.pauses.pause("mail")
    work.app.pauses.pause("default", for_=6.0)
    time.sleep(OBEYED_S)
    before, began = cpu_s(worker), time.monotonic()
    time.sleep(2.0)
    assert cpu_s(worker) - before < 0.3 * (time.monotonic() - began), "it turns in circles"
    ids = work.ids("noop", 5)
    assert work.ended(ids) == {"succeeded": 5}
    until = work.app.store.audit().items[0].at.timestamp() + 6.0
    assert all(probe.marks("start", task_id)[0].at > until - 1.0 for task_id in ids)
    assert worker.process.poll() is None


def test_a_type_is_paused_in_all_queues_and_nothing_is_lost(work: Bench, probe: Probe, weather: Weather) -> None:
    work.worker("-q", "default,mail", "-c", "2").ready()
    work.app.pauses.pause(task_type="noop")
    time.sleep(OBEYED_S + weather.slack_s)
    held = work.ids("noop", 30) + work.ids("noop", 30, queue="mail", priority="high")
    other = [work.app.enqueue("sleep", {"seconds": 0.01}).id for _ in range(5)]
    assert work.ended(other) == {"succeeded": 5}
    eventually(lambda: all(work.app.get(i).state == "scheduled" for i in held), 30)  # type: ignore[union-attr]
    assert probe.marks("start", held[0]) == []
    assert "type 'noop' is paused" in work.app.why(held[0])
    before = {i: work.app.get(i).attempts for i in held}  # type: ignore[union-attr]
    assert set(before.values()) == {0}

    assert work.app.pauses.resume(task_type="noop")
    assert work.ended(held) == {"succeeded": 60}
    assert {probe.marks("start", i)[0].attempt for i in held} == {1}


def test_a_type_whose_pause_ends_while_nobody_looks_is_woken_by_the_reconciler(work: Bench) -> None:
    work.worker("-c", "2").ready()
    work.app.pauses.pause(task_type="noop")
    time.sleep(OBEYED_S)
    held = work.ids("noop", 30)
    eventually(lambda: all(work.app.get(i).state == "scheduled" for i in held), 30)  # type: ignore[union-attr]
    from tandemq.acting import acting
    from tandemq.core.pausing import PauseKind

    work.app.store.resume(PauseKind.TYPE, "noop", deed=acting("resume", None, ""))  # and dies before it wakes them
    assert work.ended(held) == {"succeeded": 30}


def test_drain_waits_for_what_runs_and_a_burst_ends_beside_a_paused_queue(
    work: Bench, probe: Probe, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    work.worker("-c", "2").ready()
    running = work.app.enqueue("hold", {"until": str(go)})
    eventually(lambda: probe.marks("start", running.id), 30)
    answer = tandemq(work.settings, "drain", "default", "--timeout", "2.5", code=1)
    assert "still run after 2.5s" in answer.err
    waiting = work.ids("noop", 3)
    go.touch()
    answer = tandemq(work.settings, "drain", "default", "--reason", "maintenance")
    assert "nothing of it runs" in answer.out
    assert work.statuses([running.id]) == {"succeeded": 1}
    assert work.statuses(waiting) == {"pending": 3}
    work.burst("-q", "default")  # a second worker, which ends at once
    assert tandemq(work.settings, "pause", "--list", "--json").json["items"][0]["reason"] == "maintenance"
    assert "default (paused)" in tandemq(work.settings, "stats").out
    tandemq(work.settings, "resume", "default")
    assert work.ended(waiting) == {"succeeded": 3}
    tandemq(work.settings, "resume", "default", code=1)


def test_a_flood_of_a_paused_type_does_not_keep_the_others_waiting(work: Bench, probe: Probe, weather: Weather) -> None:
    work.app.pauses.pause(task_type="noop")
    flood = work.ids("noop", 10_000)
    other = [work.app.enqueue("sleep", {"seconds": 0.01}).id for _ in range(3)]
    work.worker("-c", "2").ready()
    began = time.monotonic()
    assert work.ended(other) == {"succeeded": 3}
    assert time.monotonic() - began < 10.0 + 2 * weather.slack_s, "one by one it took half a minute"
    assert probe.marks("start", flood[0]) == []
    work.app.pauses.resume(task_type="noop")
    assert work.ended(flood[:500]) == {"succeeded": 500}


def test_a_row_of_a_paused_queue_in_a_wrong_list_goes_to_its_own(work: Bench, probe: Probe, weather: Weather) -> None:
    work.app.pauses.pause("mail")
    (held,) = work.ids("noop", 1, queue="mail")
    work.worker("-q", "default,mail", "-c", "2").ready()
    work.app.broker.push(Level("default", 0), [held])
    assert work.ended(work.ids("noop", 5)) == {"succeeded": 5}  # it lay before them
    eventually(lambda: work.app.broker.depth(Level("mail", 0)) == 2, 30)
    assert (work.statuses([held]), probe.marks("start", held)) == ({"pending": 1}, [])
    work.app.pauses.resume("mail")
    assert work.ended([held]) == {"succeeded": 1}
    assert probe.marks("start", held)[0].attempt == 1


def test_a_burst_ends_beside_a_task_of_a_paused_type_that_has_run_before(work: Bench) -> None:
    (retrying,) = work.ids("noop", 1, max_retries=5)
    settle(work.app.store, (claim(work.app.store, [retrying]).leases[0], fail(0.1)))
    work.app.pauses.pause(task_type="noop")
    work.burst("-q", "default")
    assert (work.app.get(retrying).state, work.app.get(retrying).attempts) == ("retrying", 1)  # type: ignore[union-attr]
    work.app.pauses.resume(task_type="noop")
    work.burst("-q", "default")
    assert work.statuses([retrying]) == {"succeeded": 1}


def test_without_redis_a_worker_goes_on_but_for_what_is_paused(
    settings_for: Callable[..., Settings], mysql_url: str, own_redis: Callable[..., RedisServer], tmp_path: Path,
    probe: Probe, weather: Weather,
) -> None:  # fmt: skip
    server = own_redis()
    settings = settings_for(mysql_url, server.url(), **QUICK, redis_away_s=0.5)
    with bench(settings, tmp_path, probe.environ) as work:
        work.worker("-q", "mail,default", "-c", "2").ready()
        work.app.pauses.pause("mail")
        work.app.pauses.pause(task_type="sleep")
        time.sleep(OBEYED_S + weather.slack_s)
        queue = work.ids("noop", 10, queue="mail")
        kind = [work.app.enqueue("sleep", {"seconds": 0.01}).id for _ in range(1000)]
        server.stop()
        assert work.ended(work.ids("noop", 10)) == {"succeeded": 10}
        assert [probe.marks("start", i) for i in (*queue, kind[0], kind[-1])] == [[]] * 12
        work.app.pauses.resume("mail")
        work.app.pauses.resume(task_type="sleep")
        assert work.ended(queue + kind[:20]) == {"succeeded": 30}


def test_what_is_released_lies_behind_what_waits_and_is_not_taken_for_lost(work: Bench) -> None:
    store, broker, level = work.app.store, work.app.broker, Level("default", 0)
    window = Window(store, broker, SystemClock())
    held = work.ids("noop", 1500)
    work.app.pauses.pause(task_type="noop")
    while ids := broker.pop([level], limit=500, wait_s=0).ids:
        for row in store.hold(list(ids), {"noop"}):
            broker.delay(row.level, {row.id: row.due_ms})
    waiting = [r.id for r in (work.app.enqueue("sleep", {"seconds": 0.01}) for _ in range(4500))]
    work.app.pauses.resume(task_type="noop")
    time.sleep(DUE_FOR_S + 0.5)
    for _ in range(3):
        assert window.look(level).missing == 0
        time.sleep(0.3)
    listed = list(broker.pop([level], limit=500, wait_s=0).ids)
    assert listed == waiting[:500]
    assert broker.depth(level) == len(held) + len(waiting) - 500


def test_json(work: Bench) -> None:
    name = {"kind": "queue", "name": "mail"}
    assert tandemq(work.settings, "pause", "mail", "--for", "40d", "--json").json == name | {"for_s": 40 * 86400.0}
    assert tandemq(work.settings, "pause", "mail", "--for", "40d").out == "queue mail is paused for 40d\n"
    assert tandemq(work.settings, "pause", "mail", "--for", "90s").out == "queue mail is paused for 90s\n"
    assert tandemq(work.settings, "resume", "mail", "--json").json == name | {"resumed": True}
    assert tandemq(work.settings, "resume", "mail", "--json", code=1).json == name | {"resumed": False}
    assert tandemq(work.settings, "drain", "mail", "--json").json == name | {"drained": True}
    kind = {"kind": "type", "name": "noop"}
    assert tandemq(work.settings, "pause", "--type", "noop", "--json").json == kind | {"for_s": None}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause",), "name a queue"),
        (("pause", "mail", "--type", "noop"), "name a queue"),
        (("pause", "no queue"), "no queue"),
        (("pause", "mail", "--for", "soon"), "soon"),
        (("pause", "mail", "--for", "0"), "more than 0"),
        (("resume",), "name a queue"),
    ],
)
def test_bad_input_is_refused(env: Settings, arguments: tuple[str, ...], said: str) -> None:
    assert said in tandemq(env, *arguments, code=2).err
