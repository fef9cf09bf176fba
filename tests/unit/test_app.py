"""The application object: registering, enqueueing, running, looking; SQLite and a Redis look-alike in this process."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tandemq import (
    AsyncTask,
    Filter,
    NonRetryable,
    RetryPolicy,
    Settings,
    TandemQ,
    Task,
    TaskCancelled,
    TaskDead,
    TaskHandler,
    TaskNotFound,
    current_task,
)
from tandemq.acting import os_user
from tandemq.app import load_app
from tandemq.core import crash
from tandemq.core.errors import ConfigurationError, InvalidTask
from tandemq.replaying import Replayed
from tandemq.store.answers import WorkerRecord
from tandemq.testing import FakeClock, run_until_idle


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


# Registering and calling


def test_a_task_is_still_a_function(tandemq_app: TandemQ) -> None:
    task = tandemq_app.task(add)

    assert isinstance(task, Task)
    assert task(2) == 3
    assert (task.name, task.__doc__) == (f"{__name__}.add", "Adds.")
    assert task.__wrapped__ is add
    assert repr(task) == f"<Task {__name__}.add>"
    with pytest.raises(TypeError):
        task()  # type: ignore[call-arg]


def test_the_decorator_takes_options_bare_or_called(tandemq_app: TandemQ) -> None:
    assert tandemq_app.task()(add).name == f"{__name__}.add"
    assert tandemq_app.task(name="sum", queue="math", timeout=None)(add).name == "sum"
    registered = tandemq_app.registry.get("sum")

    assert registered is not None
    assert (registered.queue, registered.timeout_s) == ("math", None)
    assert tandemq_app.registry.names() == {"sum", f"{__name__}.add"}
    assert repr(tandemq_app) == "<TandemQ embedded, 2 tasks>"


def test_a_misspelt_option_is_refused(tandemq_app: TandemQ) -> None:
    with pytest.raises(TypeError, match="retries"):
        tandemq_app.task(name="x", retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="prio"):
        tandemq_app.task(add).using(prio="high")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="prio"):
        tandemq_app.enqueue("x", {}, prio="high")  # type: ignore[call-arg]


def test_an_inline_call_has_a_current_task_of_its_own(tandemq_app: TandemQ) -> None:
    @tandemq_app.task(name="who", queue="q")
    def who() -> tuple[int, str, int, bool]:
        task = current_task()
        return task.id, task.queue, task.attempt, task.cancelled

    @tandemq_app.task(name="awho")
    async def awho() -> str:
        return current_task().task_type

    assert who() == (0, "q", 1, False)
    assert isinstance(awho, AsyncTask)
    assert asyncio.run(awho()) == "awho"


def test_a_handler_class_stays_a_class(tandemq_app: TandemQ) -> None:
    @tandemq_app.handler
    class One(TaskHandler):
        name = "one"

        def process(self, payload: dict[str, Any]) -> Any:
            return payload["n"] + 1

    @tandemq_app.task(name="two", max_retries=0)
    class Two(One): ...

    assert issubclass(Two, One)
    assert Two().process({"n": 1}) == 2
    handle = tandemq_app.enqueue("two", {"n": 5})
    run_until_idle(tandemq_app)
    assert handle.result() == 6


# A task's life


def test_a_task_runs_and_its_result_comes_back(tandemq_app: TandemQ) -> None:
    task = tandemq_app.task(add)
    handle = task.enqueue(2, b=3)

    assert handle.created
    assert (handle.state(), handle.status) == ("ready", "pending")
    assert run_until_idle(tandemq_app) == 1
    assert handle.result(timeout=0) == 5
    assert handle.state() == "succeeded"
    assert repr(handle) == f"Handle(id={handle.id}, created=True)"


def test_a_result_may_be_none(tandemq_app: TandemQ) -> None:
    handle = tandemq_app.task(name="nothing")(lambda: None).enqueue()
    run_until_idle(tandemq_app)

    assert handle.result(timeout=0) is None


def test_an_async_task_runs_too(tandemq_app: TandemQ) -> None:
    @tandemq_app.task(name="fetch")
    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        return url.upper()

    handle = fetch.enqueue("a")
    run_until_idle(tandemq_app)
    assert handle.result() == "A"


def test_a_delayed_task_waits_for_its_time(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    task = tandemq_app.task(add)
    handle = task.using(delay=timedelta(minutes=1)).enqueue(1)

    assert run_until_idle(tandemq_app) == 0
    assert handle.state() == "scheduled"
    tandemq_clock.advance(59)
    assert run_until_idle(tandemq_app) == 0
    tandemq_clock.advance(1)
    assert run_until_idle(tandemq_app) == 1
    assert handle.result() == 2


def test_a_failing_task_is_retried_and_dies_with_its_error(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    @tandemq_app.task(name="fails", retry=RetryPolicy(max_retries=2, backoff=10, jitter=0))
    def fails() -> None:
        raise OSError("disk on fire")

    handle = fails.enqueue()
    run_until_idle(tandemq_app)
    assert handle.state() == "retrying"
    for _ in range(2):
        tandemq_clock.advance(10)
        run_until_idle(tandemq_app)

    with pytest.raises(TaskDead, match=r"dead \(retries_exhausted\): .*disk on fire") as dead:
        handle.result()
    assert (dead.value.task_id, dead.value.reason) == (handle.id, "retries_exhausted")
    assert "disk on fire" in dead.value.error
    stored = tandemq_app.get(handle.id)
    assert stored is not None
    assert [a.attempt for a in stored.attempts_log] == [1, 2, 3]


def test_waiting_ends_at_the_timeout_and_each_pause_grows(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    handle = tandemq_app.task(add).enqueue(1)
    begun = tandemq_clock.monotonic()

    with pytest.raises(TimeoutError, match=f"task {handle.id} had not ended after 5 s"):
        handle.result(timeout=5)
    assert tandemq_clock.monotonic() - begun == pytest.approx(5)
    with pytest.raises(InvalidTask, match="timeout"):
        handle.result(timeout=-1)


def test_cancelling(tandemq_app: TandemQ) -> None:
    handle = tandemq_app.task(add).enqueue(1)

    assert handle.cancel() == "cancelled"
    assert tandemq_app.cancel(handle.id) == "cancelled"
    assert run_until_idle(tandemq_app) == 0
    with pytest.raises(TaskCancelled, match=str(handle.id)):
        handle.result()


def test_a_task_that_does_not_exist(tandemq_app: TandemQ) -> None:
    handle = tandemq_app.task(add).enqueue(1)
    handle.cancel()
    tandemq_app.dead.purge([handle.id])

    assert tandemq_app.get(handle.id) is None
    for look in (handle.state, handle.result, lambda: handle.status, lambda: tandemq_app.cancel(handle.id)):
        with pytest.raises(TaskNotFound):
            look()
    with pytest.raises(TaskNotFound):
        tandemq_app.admin.show(handle.id)


def test_the_async_twins_do_the_same(tandemq_app: TandemQ) -> None:
    task = tandemq_app.task(add)

    async def main() -> None:
        one = await task.aenqueue(1)
        two = await task.adelay(2)
        three = await tandemq_app.aenqueue(task.name, {"a": 3})
        (four,) = await tandemq_app.aenqueue_many([task.new(4)])
        assert await four.astate() == "ready"
        assert await four.acancel() == "cancelled"
        stored = await tandemq_app.aget(one.id)
        assert stored is not None
        assert stored.payload == '{"a":1}'
        assert await tandemq_app.apush([one.id]) == 1
        assert await tandemq_app.acancel(three.id) == "cancelled"
        await asyncio.to_thread(run_until_idle, tandemq_app)
        assert [await one.aresult(), await two.aresult(timeout=1)] == [2, 3]
        with pytest.raises(TaskCancelled):
            await three.aresult()

    asyncio.run(main())


# Looking


def test_why_tells_each_state_in_one_sentence(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    app = tandemq_app
    task = app.task(name="add", max_retries=1, retry=RetryPolicy(backoff=10, jitter=0), typed=False)(add)
    later = task.using(delay=60).enqueue(1)
    ready = task.enqueue(1)
    bad = app.enqueue("add", {"a": "x"}, max_retries=1)
    stranger = app.enqueue("stranger", {}, delay=5)

    assert app.why(later.id) == f"Task {later.id} is not due before 2030-01-01T00:01:00.000000Z."
    assert "but no live worker serves the queue 'default'" in app.why(ready.id)
    assert app.why(10**9) == "Task 1000000000 does not exist: it was never stored, was rolled back, or was purged."
    run_until_idle(app)
    assert f"Task {ready.id} succeeded at 2030-01-01T00:00:00.000000Z, in run 1." == app.why(ready.id)
    assert "waits for retry 1 of 1, due at 2030-01-01T00:00:10.000000Z: TypeError: " in app.why(bad.id)
    tandemq_clock.advance(10)
    run_until_idle(app)
    assert (
        f"Task {bad.id} is dead (retries_exhausted) since 2030-01-01T00:00:10.000000Z, after 2 of 2 runs: TypeError"
        in (app.why(bad.id))
    )
    assert "worker that knows its type 'stranger'" in app.why(stranger.id)
    later.cancel()
    assert app.why(later.id) == f"Task {later.id} was cancelled at 2030-01-01T00:00:10.000000Z by {os_user()}."


def test_why_of_a_running_task_names_its_worker_run_and_cancel_request(
    tandemq_app: TandemQ, tandemq_clock: FakeClock
) -> None:
    handle = tandemq_app.task(add).enqueue(1)
    tandemq_app.store.claim([handle.id], token=1, worker_id="w-1", lease_s=30, free=1, known=None, unknown_task_s=60)

    assert tandemq_app.why(handle.id) == (
        f"Task {handle.id} is running since 2030-01-01T00:00:00.000000Z on worker w-1, begun 1 of 4 runs;"
        " its lease ends at 2030-01-01T00:00:30.000000Z unless renewed."
    )
    tandemq_clock.advance(1)
    assert handle.cancel() == "requested"
    assert "asked to stop at 2030-01-01T00:00:01.000000Z" in tandemq_app.why(handle.id)
    assert tandemq_app.admin.find(Filter(worker_id="w-1")).items[0].id == handle.id


def test_why_of_a_ready_task_counts_live_workers_of_its_queue(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    def start(name: str, queues: str) -> None:
        now = tandemq_clock.now()
        record = WorkerRecord(name, name, "host", 1, queues, 8, 1, "running", now, now, True)
        tandemq_app.store.worker_started(record)

    handle = tandemq_app.task(add).enqueue(1)
    start("w-1", "other,default")
    start("w-2", "other")

    assert tandemq_app.why(handle.id).endswith(
        "waits its turn: no task is ahead of it in the queue 'default', which 1 live worker serves."
    )
    tandemq_clock.advance(tandemq_app.settings.lease_s + 1)
    assert "no live worker" in tandemq_app.why(handle.id)


def test_stats_count_open_and_ended_tasks_and_ids_in_redis(tandemq_app: TandemQ) -> None:
    task = tandemq_app.task(add)
    task.enqueue(1)
    run_until_idle(tandemq_app)
    task.enqueue(2)
    task.using(delay=60, queue="slow").enqueue(3)

    stats = tandemq_app.stats()

    assert stats["queues"]["default"]["ready"] == 1
    assert stats["queues"]["slow"]["scheduled"] == 1
    assert stats["ended"]["succeeded"] == 1
    assert stats["redis"]["default"] == {"ready": 1, "delayed": 0}
    assert stats["redis"]["slow"] == {"ready": 0, "delayed": 1}


def test_lists_come_in_pages_newest_first(tandemq_app: TandemQ) -> None:
    ids = [h.id for h in tandemq_app.enqueue_many([tandemq_app.task(add).new(n) for n in range(5)])]

    first = tandemq_app.admin.find(Filter(), limit=3)
    rest = tandemq_app.admin.find(Filter(), limit=3, after=first.next)

    assert [t.id for t in (*first.items, *rest.items)] == ids[::-1]
    assert rest.next is None
    for limit in (0, 1001):
        with pytest.raises(InvalidTask, match="limit"):
            tandemq_app.admin.find(Filter(), limit=limit)
    assert tandemq_app.workers() == []


# Dead letters


def bury(app: TandemQ, count: int, **options: Any) -> list[int]:
    @app.task(name="dies")
    def dies(n: int) -> int:
        if not revived:
            raise NonRetryable(f"number {n}")
        return n

    revived: list[bool] = []
    app.revived = revived  # type: ignore[attr-defined]
    ids = [h.id for h in app.enqueue_many([dies.using(**options).new(n) for n in range(count)])]
    run_until_idle(app)
    return ids


def outcomes(answer: Replayed) -> tuple[int, int]:
    assert (answer.failed, answer.left) == (0, 0)
    return answer.moved, answer.skipped


def test_dead_letters_are_found_shown_and_replayed_once(tandemq_app: TandemQ) -> None:
    ids = bury(tandemq_app, 3)
    dead = tandemq_app.dead

    assert [t.id for t in dead.search().items] == ids[::-1]
    assert [t.id for t in dead.search(Filter(error_text="number 1")).items] == [ids[1]]
    assert dead.show(ids[0]).attempts_log[0].error == "number 0"
    tandemq_app.revived.append(True)  # type: ignore[attr-defined]
    assert outcomes(dead.replay(ids[:2])) == (2, 0)
    assert outcomes(dead.replay(ids[:2])) == (0, 2)
    assert run_until_idle(tandemq_app) == 2
    assert outcomes(dead.replay([*ids, 10**9])) == (1, 3)
    assert run_until_idle(tandemq_app) == 1
    assert dead.search().items == ()
    stored = tandemq_app.get(ids[0])
    assert stored is not None
    assert (stored.state, stored.attempts, stored.replays, len(stored.attempts_log)) == ("succeeded", 1, 1, 1)
    with pytest.raises(TaskNotFound, match="it is succeeded"):
        dead.show(ids[0])


def test_a_replay_by_filter_takes_everything_in_pages(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemq.replaying.runner.PAGE", 4)
    monkeypatch.setattr("tandemq.replaying.runner.CHUNK", 3)
    ids = bury(tandemq_app, 10)

    # They die again at once: the wave takes each only once.
    assert outcomes(tandemq_app.dead.replay(where=Filter(task_type="dies"))) == (10, 0)
    assert run_until_idle(tandemq_app) == 10
    assert len(tandemq_app.dead.search(limit=100).items) == len(ids)


def test_a_wave_leaves_what_ended_after_it_began(
    tandemq_app: TandemQ, tandemq_clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.replaying.replays.PAGE", 1)
    monkeypatch.setattr("tandemq.replaying.runner.CHUNK", 1)
    (dead,) = bury(tandemq_app, 1)
    ready = tandemq_app.task(add).enqueue(1)

    def meanwhile(*_args: Any) -> None:
        tandemq_clock.advance(1)
        ready.cancel()

    monkeypatch.setattr("tandemq.replaying.replays.dispatch", meanwhile)
    answer = tandemq_app.dead.replay([dead, ready.id])
    assert outcomes(answer) == (1, 1)
    assert answer.reasons == {("skipped", "it ended after the replay began"): 1}
    assert ready.state() == "cancelled"


def test_cancelled_tasks_are_replayed_when_asked_for(tandemq_app: TandemQ) -> None:
    handle = tandemq_app.task(add).enqueue(1)
    handle.cancel()

    assert outcomes(tandemq_app.dead.replay(where=Filter())) == (0, 0)
    assert outcomes(tandemq_app.dead.replay(where=Filter(state="cancelled"))) == (1, 0)
    assert run_until_idle(tandemq_app) == 1


def test_purging_needs_to_be_told_what_and_takes_only_dead_ones(tandemq_app: TandemQ, tandemq_clock: FakeClock) -> None:
    ids = bury(tandemq_app, 3)
    done = tandemq_app.task(add).enqueue(1)
    run_until_idle(tandemq_app)
    ready = tandemq_app.task(add).enqueue(1)
    keyed = tandemq_app.task(add).using(idempotency_key="k").enqueue(1)
    keyed.cancel()

    for call in (tandemq_app.dead.purge, lambda: tandemq_app.dead.purge(where=Filter())):
        with pytest.raises(InvalidTask, match="deletes for good"):
            call()
    assert tandemq_app.dead.purge([ids[0], ready.id, done.id, keyed.id, 10**9]) == (1, 4)
    assert tandemq_app.dead.purge(where=Filter(state="dead")) == (2, 0)
    tandemq_clock.advance(25 * 3600)
    assert tandemq_app.dead.purge(where=Filter(state="cancelled")) == (1, 0)
    assert (ready.state(), done.state()) == ("ready", "succeeded")


def test_dead_letters_are_asked_for_in_one_way(tandemq_app: TandemQ) -> None:
    with pytest.raises(InvalidTask, match="one of the two"):
        tandemq_app.dead.replay()
    with pytest.raises(InvalidTask, match="one of the two"):
        tandemq_app.dead.replay([1], where=Filter())
    with pytest.raises(InvalidTask, match="dead or cancelled, not 'ready'"):
        tandemq_app.dead.search(Filter(state="ready"))


# Settings, connections, imports


def test_settings_come_from_arguments_and_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEMQ_NAMESPACE", "from-environ")
    monkeypatch.setenv("TANDEMQ_LEASE_S", "12")

    app = TandemQ(data_dir=tmp_path, lease_s=14)

    assert isinstance(app.settings, Settings)
    assert (app.settings.namespace, app.settings.lease_s) == ("from-environ", 14)
    with pytest.raises(ConfigurationError, match="leese_s=3 is no setting"):
        TandemQ(leese_s=3)


def test_nothing_is_made_before_the_first_use(tmp_path: Path) -> None:
    with TandemQ(data_dir=tmp_path / "d") as app:
        app.task(add)
    assert not (tmp_path / "d").exists()


def test_a_closed_app_opens_new_connections_when_it_is_used_again(tandemq_app: TandemQ) -> None:
    store = tandemq_app.store
    assert tandemq_app.store is store
    tandemq_app.close()
    tandemq_app.close()

    assert tandemq_app.store is not store
    assert tandemq_app.task(add).enqueue(1).created


def test_the_embedded_default_warns_once_per_app(tandemq_app: TandemQ, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tandemq"):
        tandemq_app.task(add).enqueue(1)
        tandemq_app.close()
        tandemq_app.task(add).enqueue(2)

    assert [r.message for r in caplog.records if "embedded default" in r.message][1:] == []
    assert "TANDEMQ_DATABASE_URL" in caplog.text


def test_an_unmigrated_database_is_refused_by_name_of_the_command(tmp_path: Path) -> None:
    app = TandemQ(f"sqlite:///{tmp_path / 'x.db'}", "redis://127.0.0.1:1/0")

    with pytest.raises(Exception, match="tandemq migrate"):
        app.enqueue("x", {})


def test_a_crash_point_that_does_not_exist_is_a_configuration_error() -> None:
    for spec in ("nowhere:1:kill9", "pop.after", "pop.after:x:exit", "pop.after:0:exit", "pop.after:1:explode"):
        with pytest.raises(ConfigurationError, match="TANDEMQ_CRASH"):
            TandemQ(crash=spec)


def test_a_crash_point_is_armed_by_the_app(tandemq_app: TandemQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_CRASH", "enqueue.after_commit:2:raise")
    task = tandemq_app.task(add)
    try:
        TandemQ()
        task.enqueue(1)
        with pytest.raises(RuntimeError, match="crash point"):
            task.enqueue(2)
    finally:
        crash.arm(None)
    assert run_until_idle(tandemq_app) == 1


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with modules; the current one, and not on sys.path yet."""
    (tmp_path / "tq_shop.py").write_text(
        "from tandemq import TandemQ\nclass nest:\n    app = TandemQ()\napp = nest.app\nnone = 7\n"
    )
    (tmp_path / "tq_broken.py").write_text("import tq_absent_module\n")
    (tmp_path / "tq_crash.py").write_text("1 / 0\n")
    (tmp_path / "tq_syntax.py").write_text("def (:\n")
    (tmp_path / "tq_config.py").write_text("from tandemq import TandemQ\napp = TandemQ(lease_s=-1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in {"", str(tmp_path)}])
    return tmp_path


def test_an_app_is_loaded_by_its_name_from_the_current_directory(shop: Path) -> None:
    assert isinstance(load_app("tq_shop:app"), TandemQ)
    assert load_app("tq_shop:nest.app") is load_app("tq_shop:app")


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("tq_shop", "must be module:attribute"),
        (":app", "must be module:attribute"),
        ("tq_nowhere:app", "there is no module 'tq_nowhere'"),
        ("tq_shop.sub:app", "there is no module"),
        ("tq_shop:missing", "has no 'missing'"),
        ("tq_shop:none", "is a int, not a TandemQ application"),
        ("tq_broken:app", "importing tq_broken failed.*tq_absent_module"),
        ("tq_crash:app", "importing tq_crash failed: ZeroDivisionError"),
        ("tq_syntax:app", "importing tq_syntax failed: SyntaxError"),
        ("tq_config:app", "TANDEMQ_LEASE_S=-1"),
    ],
)
def test_an_app_that_cannot_be_loaded_says_why(shop: Path, spec: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        load_app(spec)


def test_imports_register_tasks_of_other_modules(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(shop))
    (shop / "tq_tasks.py").write_text("from tq_main import app\n@app.task\ndef hello(): ...\n")
    (shop / "tq_main.py").write_text("from tandemq import TandemQ\napp = TandemQ(imports=['tq_tasks'])\n")
    app = load_app("tq_main:app")

    assert app.registry.names() == set()
    app.import_tasks()
    assert app.registry.names() == {"tq_tasks.hello"}
    with pytest.raises(ConfigurationError, match="'tq_gone' of TandemQ"):
        TandemQ(imports="tq_gone").import_tasks()
