"""Real workers on real servers: the whole life of a task, stops, kills, time limits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq import NewTask
from tandemq.core.settings import Settings
from tests.probe import Probe
from tests.scenarios.blocked import wait_until_blocked
from tests.servers import MySQLServer, RedisServer
from tests.waiting import eventually
from tests.weather import Weather
from tests.workers import Bench, bench

#: A lease that no stall of the machine outlasts.
FAST = {"lease_s": 10.0, "heartbeat_s": 1.0, "reconcile_s": 0.5, "grace_s": 2.0}
#: For workers whose leases are to run out.
SHORT_LEASE_S = 3.0
SHORT_LEASE = {"TANDEMQ_LEASE_S": f"{SHORT_LEASE_S}"}


@pytest.fixture
def work(
    settings_for: Callable[..., Settings], mysql_url: str, redis_url: str, tmp_path: Path, probe: Probe
) -> Iterator[Bench]:
    with bench(settings_for(mysql_url, redis_url, **FAST), tmp_path, probe.environ) as made:
        yield made


def ready_keys(redis_server: RedisServer, settings: Settings) -> dict[str, int]:
    """Every list and sorted set of the namespace that holds something."""
    client = redis_server.client()
    found = {}
    for key in client.scan_iter(f"{settings.namespace}:*"):
        if client.type(key) == b"list":
            found[key.decode()] = client.llen(key)
        elif client.type(key) == b"zset":
            found[key.decode()] = client.zcard(key)
    return found


def test_every_task_ends_once_and_redis_is_empty_afterwards(
    work: Bench, probe: Probe, redis_server: RedisServer
) -> None:
    ids = work.ids("noop", 1000)
    work.burst("-p", "2", "-c", "8")
    assert work.statuses(ids) == {"succeeded": 1000}
    probe.assert_once(ids)
    assert ready_keys(redis_server, work.settings) == {}
    assert work.app.store.expired_claims(10) == []


def test_claims_are_by_id_only_and_workers_block_on_brpop(
    work: Bench, mysql_server: MySQLServer, redis_server: RedisServer
) -> None:
    ids = work.ids("noop", 300)
    mysql_server.general_log(True)
    work.burst("-c", "8", "--no-reconcile")
    log = mysql_server.read_general_log()
    mysql_server.general_log(False)
    locking = [line for line in log.splitlines() if "FOR UPDATE" in line and "_tasks" in line]
    assert locking
    assert all(" id IN (" in line for line in locking), locking[:3]
    claims = [line for line in log.splitlines() if "status = 'running'" in line and line.find("UPDATE") >= 0]
    assert all(" id IN (" in line or " id = " in line for line in claims), claims[:3]
    assert redis_server.client().info("commandstats")["cmdstat_brpop"]["calls"] > 0
    assert work.statuses(ids) == {"succeeded": 300}


def test_retries_then_death_with_every_attempt_on_record(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("fail", {}, max_retries=3)
    work.burst()
    task = work.app.get(handle.id)
    assert task is not None
    assert probe.starts()[handle.id] == 4
    assert (task.status, task.attempts, task.dead_reason) == ("dead", 4, "retries_exhausted")
    assert task.last_error == "no luck, attempt 4"
    assert [(a.attempt, a.outcome, a.error) for a in task.attempts_log] == [
        (n, "failed", f"no luck, attempt {n}") for n in (1, 2, 3, 4)
    ]


def test_a_dead_letter_is_replayed_with_new_attempts_and_old_history(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("fail", {}, max_retries=0)
    work.burst()
    assert work.app.dead.replay([handle.id]).moved == 1
    work.burst()
    task = work.app.get(handle.id)
    assert task is not None
    assert (task.status, task.attempts, task.replays) == ("dead", 1, 1)
    assert probe.starts()[handle.id] == 2
    assert len(task.attempts_log) == 2


def test_strict_priority_and_first_in_first_out_with_one_slot(work: Bench, probe: Probe) -> None:
    order = []
    for label in ("low", 15, "critical", "medium", "high"):
        order.append((label, [work.app.enqueue("noop", {"n": n}, priority=label).id for n in range(5)]))
    work.burst("-c", "1")
    ids = dict(order)
    assert probe.order() == [*ids["critical"], *ids["high"], *ids[15], *ids["medium"], *ids["low"]]


def test_a_row_by_foreign_sql_and_a_bare_lpush_of_an_unregistered_level_run(
    work: Bench, mysql_server: MySQLServer, mysql_url: str, redis_server: RedisServer, probe: Probe
) -> None:
    work.worker("-c", "1").ready()
    database = mysql_url.rsplit("/", 1)[1]
    mysql_server.sql(
        "INSERT INTO tandemq_tasks (task_type, payload, priority) VALUES ('echo', '{\"a\":1}', 7)", database=database
    )
    ((task_id,),) = mysql_server.sql("SELECT MAX(id) FROM tandemq_tasks", database=database)
    redis_server.client().lpush(f"{work.settings.namespace}:{{default}}:ready:7", task_id)
    assert work.ended([task_id]) == {"succeeded": 1}
    assert work.app.store.ending(task_id)[1] == '{"a":1}'
    probe.assert_once([task_id])


def test_async_and_def_handlers_share_the_slots(work: Bench, probe: Probe) -> None:
    ids = work.ids("noop", 5)
    for name in ("sleep", "asleep"):
        ids += [work.app.enqueue(name, {"seconds": 0.2}).id for _ in range(6)]
    started = time.monotonic()
    work.burst("-c", "4")
    assert work.statuses(ids) == {"succeeded": 17}
    assert time.monotonic() - started > 12 * 0.2 / 4
    marks = sorted((m.at, 1 if m.what == "start" else -1) for m in probe.marks())
    running = most = 0
    for _, step in marks:
        running += step
        most = max(most, running)
    assert most <= 4


def test_snooze_comes_back_without_using_an_attempt(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("snooze", {"delay": 0.1}, max_retries=0)
    work.worker("-c", "1").ready()
    assert handle.result(timeout=60) == 1
    assert probe.starts()[handle.id] == 3


def test_sigterm_finishes_the_short_task_and_hands_back_the_long_one(
    work: Bench, probe: Probe, redis_server: RedisServer, tmp_path: Path, weather: Weather
) -> None:
    gate, grace_s = tmp_path / "gate", 4.0
    short = work.app.enqueue("hold", {"until": str(gate)})
    long = work.app.enqueue("sleep", {"seconds": 200})
    waiting = work.ids("noop", 20)
    worker = work.worker("-c", "2", "--grace", f"{grace_s}").ready()
    eventually(lambda: len(probe.starts()) >= 2, message=worker.text)
    worker.signal(signal.SIGTERM)
    started = time.monotonic()
    eventually(lambda: " stops: " in worker.text(), message=worker.text)
    gate.touch()
    assert worker.wait() == 0
    assert time.monotonic() - started < grace_s + 2 + weather.slack_s
    assert short.state() == "succeeded"
    task = work.app.get(long.id)
    assert task is not None
    assert (task.status, task.attempts) == ("pending", 0)
    assert [a.outcome for a in task.attempts_log] == ["interrupted"]
    begun = set(probe.starts())
    second = work.worker("-c", "30").ready()
    with redis_server.client() as client:
        wait_until_blocked(client, second)
    listening = time.time()
    eventually(lambda: probe.starts()[long.id] == 2, message=second.text)
    assert probe.marks("start", long.id)[1].at - listening < 2 + weather.slack_s
    work.ended(waiting)
    probe_starts = probe.starts()
    assert all(probe_starts[i] == 1 for i in waiting)
    assert short.id in begun


def test_a_second_signal_stops_at_once(work: Bench, probe: Probe, weather: Weather) -> None:
    handle = work.app.enqueue("sleep", {"seconds": 200})
    worker = work.worker("-c", "1", "--grace", "200").ready()
    eventually(probe.starts, message=worker.text)
    worker.signal(signal.SIGINT)
    eventually(lambda: " stops: " in worker.text(), message=worker.text)
    worker.signal(signal.SIGINT)
    started = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - started < 4 + weather.slack_s
    assert handle.state() == "ready"


@pytest.mark.parametrize("how", ["term", "limit", "kill", "neighbour"])
def test_max_retries_0_is_begun_once_and_never_again(work: Bench, probe: Probe, how: str) -> None:
    timeout = 0.3 if how == "limit" else 300
    lease = SHORT_LEASE if how == "kill" else {}
    handle = work.app.enqueue("sleep", {"seconds": 200}, max_retries=0, timeout=timeout)
    worker = work.worker("-c", "2", "--grace", "0", **lease).ready()
    eventually(probe.starts, message=worker.text)
    if how == "term":
        worker.signal(signal.SIGTERM)
        worker.wait()
    elif how == "kill":
        worker.kill_group()
    elif how == "neighbour":
        work.app.enqueue("poison", {}, max_retries=0)
    reasons = {"term": "interrupted", "limit": "timeout", "kill": "lease_lost", "neighbour": "lease_lost"}
    if how == "kill":
        work.worker("-c", "1", **lease).ready()
    assert work.ended([handle.id]) == {"dead": 1}
    task = work.app.get(handle.id)
    assert task is not None
    assert (task.dead_reason, task.attempts) == (reasons[how], 1)
    assert probe.starts()[handle.id] == 1


def test_kill_9_of_the_whole_worker_in_the_middle_loses_nothing(work: Bench, probe: Probe, tmp_path: Path) -> None:
    ids, gate = work.ids("noop", 2000, max_retries=5), tmp_path / "gate"
    last = work.app.enqueue("hold", {"until": str(gate)}, max_retries=5)
    worker = work.worker("-p", "2", "-c", "4", **SHORT_LEASE).ready()
    eventually(lambda: len(probe.starts()) > 100, message=worker.text)
    worker.kill_group()
    assert last.id not in probe.ends()
    gate.touch()
    work.worker("-p", "2", "-c", "4", **SHORT_LEASE).ready()
    assert work.ended([*ids, last.id]) == {"succeeded": 2001}
    starts = probe.starts()
    for task_id in [*ids, last.id]:
        if starts[task_id] > 1:
            assert starts[task_id] <= work.app.get(task_id).attempts
    assert sum(starts.values()) - 2001 <= 2 * 4 + 2 * 500


def test_kill_9_of_the_supervisor_alone_ends_its_children_within_the_lease(
    work: Bench, probe: Probe, weather: Weather
) -> None:
    work.app.enqueue("sleep", {"seconds": 200})
    worker = work.worker("-p", "2", "-c", "1", **SHORT_LEASE).ready()
    eventually(lambda: probe.starts() and len(worker.children()) == 2, message=worker.text)
    children = worker.children()
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.wait()
    started = time.monotonic()
    eventually(lambda: not any(p.is_running() and p.status() != "zombie" for p in children), message=worker.text)
    assert time.monotonic() - started <= SHORT_LEASE_S + 0.5 + weather.slack_s


def test_kill_9_of_one_child_starts_its_begun_tasks_again_at_once(
    work: Bench, probe: Probe, redis_server: RedisServer, weather: Weather
) -> None:
    handle = work.app.enqueue("sleep", {"seconds": 200})
    worker = work.worker("-p", "2", "-c", "2").ready()
    with redis_server.client() as client:
        wait_until_blocked(client, worker, 2)
    eventually(lambda: probe.starts()[handle.id] == 1, message=worker.text)
    (busy,) = (child for child in worker.children() if child.pid in probe.pids())
    busy.kill()
    killed = time.time()
    eventually(lambda: probe.starts()[handle.id] == 2, message=worker.text)
    assert probe.marks("start", handle.id)[1].at - killed < min(2.5 + weather.slack_s, 0.8 * work.settings.lease_s)
    task = work.app.get(handle.id)
    assert task is not None
    assert [a.outcome for a in task.attempts_log] == ["lease_lost"]


def test_flushall_in_the_middle_loses_nothing(work: Bench, probe: Probe, redis_server: RedisServer) -> None:
    ids = work.ids("noop", 3000)
    later = [work.app.enqueue("noop", {}, delay=2).id for _ in range(20)]
    running = work.app.enqueue("sleep", {"seconds": 2})
    worker = work.worker("-c", "2").ready()
    eventually(lambda: probe.starts()[running.id] or len(probe.starts()) > 20, message=worker.text)
    for _ in range(3):
        redis_server.flush()
    assert work.ended([*ids, *later, running.id]) == {"succeeded": 3021}
    probe.assert_once([*ids, *later, running.id])


def test_a_poison_task_dies_and_takes_no_neighbour_with_it(work: Bench, probe: Probe) -> None:
    # Only who runs beside it when the process dies loses the attempt: any of them may have killed it.
    before = work.ids("noop", 100, max_retries=5)
    poison = work.app.enqueue("poison", {}, max_retries=3)
    after = work.ids("noop", 100, max_retries=5)
    worker = work.worker("-p", "2", "-c", "4").ready()
    assert work.ended([*before, *after, poison.id]) == {"succeeded": 200, "dead": 1}
    task = work.app.get(poison.id)
    assert task is not None
    assert (task.dead_reason, task.attempts) == ("lease_lost", 4)
    assert probe.starts()[poison.id] == 4
    assert worker.process.poll() is None


def test_a_handler_that_holds_the_interpreter_past_its_limit_costs_only_its_process(work: Bench, probe: Probe) -> None:
    wedged = work.app.enqueue("wedge", {"seconds": 200}, max_retries=0)
    worker = work.worker("-c", "3").ready()
    eventually(lambda: probe.starts()[wedged.id] == 1, message=worker.text)
    others = work.ids("noop", 5)
    assert work.ended([wedged.id, *others]) == {"dead": 1, "succeeded": 5}
    task = work.app.get(wedged.id)
    assert task is not None
    assert task.dead_reason == "timeout"


def test_a_handler_that_holds_the_interpreter_longer_than_the_lease_is_not_run_twice(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("wedge", {"seconds": 7}, timeout=100)
    for _ in range(2):
        work.worker("-c", "1", TANDEMQ_LEASE_S="5").ready()
    assert work.ended([handle.id]) == {"succeeded": 1}
    probe.assert_once([handle.id])


def test_cancel_of_a_running_task_is_a_request_that_the_handler_sees(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("obedient", {})
    worker = work.worker("-c", "1").ready()
    eventually(probe.starts, message=worker.text)
    assert handle.cancel() == "requested"
    assert work.ended([handle.id]) == {"succeeded": 1}


def test_on_dead_letter_runs_after_retries_and_after_a_lost_lease(work: Bench, probe: Probe) -> None:
    order = work.app.enqueue("order", {"order_id": 1})
    poison = work.app.enqueue("poison_order", {"order_id": 2})
    worker = work.worker("-c", "1").ready()
    work.ended([order.id, poison.id])
    eventually(lambda: {m.task_id for m in probe.marks("dead-letter")} == {order.id, poison.id}, message=worker.text)


def test_validation_by_default_refuses_an_empty_payload_for_good(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("order", {})
    work.burst()
    task = work.app.get(handle.id)
    assert task is not None
    assert (task.status, task.dead_reason, task.attempts) == ("dead", "validation", 1)
    assert probe.starts() == {}


def test_children_are_replaced_after_so_many_tasks(work: Bench, probe: Probe) -> None:
    ids = [work.app.enqueue("sleep", {"seconds": 0.02}).id for _ in range(60)]
    work.burst("-c", "1", "--max-tasks", "20")
    assert work.statuses(ids) == {"succeeded": 60}
    assert len(probe.pids()) >= 3


def test_an_application_that_cannot_be_loaded_ends_the_worker_with_exit_2(work: Bench) -> None:
    worker = work.worker(app="tests.apps.nowhere:app")
    assert worker.wait() == 2
    assert "tests.apps.nowhere" in worker.text()
    assert "Traceback" not in worker.text()


def test_expired_tasks_end_dead_without_a_run(work: Bench, probe: Probe) -> None:
    handle = work.app.enqueue("noop", {}, expires=0.05)
    task = work.app.get(handle.id)
    assert task is not None
    eventually(lambda: work.app.store.now() > task.expires_at)
    work.worker("-c", "1").ready()
    assert work.ended([handle.id]) == {"dead": 1}
    assert work.app.store.ending(handle.id)[3] == "expired"
    assert probe.starts() == {}


def test_two_workers_share_the_work_and_are_both_listed(work: Bench, probe: Probe, tmp_path: Path) -> None:
    first = work.worker("-c", "1", "--name", "same").ready()
    second = work.worker("-c", "1", "--name", "same").ready()
    gate = tmp_path / "gate"
    ids = [h.id for h in work.app.enqueue_many([NewTask("hold", {"until": str(gate)})] * 2)]
    ids += work.ids("noop", 40)
    eventually(lambda: len(probe.starts()) == 2, 60, second.text)  # one slot each: nobody takes both
    gate.touch()
    assert work.ended(ids) == {"succeeded": 42}
    probe.assert_once(ids)
    assert len(probe.pids()) == 2
    names = [w for w in work.app.workers() if w.alive]
    assert len({w.id for w in names}) == 2
    assert {w.name for w in names} == {"same"}
    for worker in (first, second):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert not [w for w in work.app.workers() if w.alive]
